"""Reading the pages of a site as a browser would: tags, ids, links, alternative texts."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags, links, ids and text of a page; asserts that tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.alts: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        found = [value for name in ("href", "src") if (value := given.get(name))]
        self.links += [value for value in found if not (tag == "img" and value.startswith("data:image/svg+xml,"))]
        self.ids += [given["id"]] if given.get("id") else []
        if tag == "img":
            self.alts.append(given.get("alt") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["style"], ["script"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def pages_from(index: Path) -> dict[Path, Page]:
    """The page and every page that can be reached from it."""
    found: dict[Path, Page] = {}
    waiting = [index.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = Page(path.read_text(encoding="utf-8"))
            targets = (target_of(path, link)[0] for link in found[path].links)
            waiting += [target for target in targets if target.suffix == ".html"]
    return found


def target_of(page: Path, link: str) -> tuple[Path, str]:
    """The file that a link on a page leads to, and the anchor in it."""
    assert not re.match(r"[a-z]+:|/", link), f"{page}: {link}"
    file, _, anchor = link.partition("#")
    return ((page.parent / unquote(file)).resolve() if file else page), unquote(anchor)


def check_links(pages: dict[Path, Page]) -> None:
    """Assert that all links lead to a file, and anchors to something on its page."""
    for path, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), path
        for link in page.links:
            target, anchor = target_of(path, link)
            assert target.is_file(), f"{path}: {link}"
            if anchor:
                assert anchor in pages[target].ids, f"{path}: {link}"
