"""The documentation site: README, docs/ and an API reference from the docstrings. Built by `make docs`.

The source folder is the root of the repository, so that a link between two pages is the same link on the site and where
the files are browsed. A link to any other file of the repository leads to a copy of it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

import mpadam

ROOT = Path(__file__).parents[1]
#: caption in the navigation -> pages; those of docs/ that stand nowhere come last, those that do not exist are left out
NAVIGATION = {
    "Optimizers": ["optimizers", "which-optimizer", "update-probe", "algorithm", "api", "memory", "speed"],
    "Ideas": ["glossary", "verdicts", "concepts/axes", "concepts/formats", "concepts/regimes", "concepts/claims"],
    "The study": ["workflow", "configuration", "data", "training", "fp8", "diagnostics", "costs", "cluster"],
    "Help": ["faq", "troubleshooting", "concepts/identity", "reference-commands", "contributing"],
}
#: a folder that is copied as a whole, since its pages link to each other
BROWSED = "results/example"

project = "mpadam"
author = "The mpadam authors"
copyright = "the mpadam authors; MIT"
release = mpadam.__version__
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "docs/**.md", "results/README.md"]
exclude_patterns = [".*", "build", "downloads", "src", "tests", "results/*/**"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a page may begin below its title where another includes it

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!mpadam\.\w+$).*")]  # other packages, and types that are not public
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
default_role = "code"

html_theme = "furo"
html_title = "mpadam"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}


def navigation() -> str:
    """The table of contents, as MyST, for the end of the first page."""
    found = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    rest = sorted(found - {name for names in NAVIGATION.values() for name in names})
    groups = {caption: [f"docs/{name}" for name in names if name in found] for caption, names in NAVIGATION.items()} | {
        "More": [*(f"docs/{name}" for name in rest), "results/README", "CHANGELOG"]
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in groups.items()
    )


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += navigation()


# --- links to files that are no pages --------------------------------------------------------------------------------


def keep_links_to_files(app: Sphinx, tree: nodes.document) -> None:
    """A file of the repository is linked where it is; MyST would make it a download under another name."""
    folder = (ROOT / app.env.docname).parent
    for link in list(tree.findall(addnodes.download_reference)):
        file = (folder / link["reftarget"]).resolve().relative_to(ROOT)
        FILES.add(BROWSED if file.is_relative_to(BROWSED) else file.as_posix())
        link.replace_self(nodes.reference("", "", *link.children, refuri=link["reftarget"], internal=False))


FILES: set[str] = set()


def copy_files(app: Sphinx, error: Exception | None) -> None:
    """What pages link to, at its place; and the first page under the name that a server looks for."""
    if error:
        return
    out = Path(app.outdir)
    for name in FILES:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, out / name, **({"dirs_exist_ok": True} if copy is shutil.copytree else {}))
    shutil.copy(out / f"{root_doc}.html", out / "index.html")


# --- docstrings ------------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"(?:- )?(\w[\w.]*(?:, \w[\w.]*)*)(?:: | {2,})(\S.*)")


def to_rst(app: Sphinx, *of_what: Any) -> None:
    """A docstring of this project as reStructuredText: paragraphs, indented code, and entries `name: text`."""
    lines: list[str] = of_what[-1]
    blocks = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    lines[:] = [line for block in blocks for line in (*_block(block.split("\n")), "")]


def _block(lines: list[str]) -> Iterator[str]:
    if all(line.startswith("    ") for line in lines):
        yield from ("::", "", *lines)
        return
    in_item = False
    for line in lines:
        starts, continues = _item(line), in_item and line.startswith(" ")
        if bool(starts or continues) != in_item:
            yield ""
        in_item = bool(starts or continues)
        yield starts or ("  " if continues else "") + _text(line.strip())


def _item(line: str) -> str | None:
    if entry := _ENTRY.fullmatch(line):
        return f"- **{_text(entry[1])}**: {_text(entry[2])}"
    return f"- {_text(line[2:])}" if line.startswith("- ") else None


def _text(line: str) -> str:
    """Names in backticks as code, everything else as it is written."""
    line = re.sub(r"^(\w+)(?=[.)] )", r"\1\\", line)  # no list of numbers begins here
    parts = re.split(r"`([^`]+)`", line)
    return "".join(
        f"``{part}``" if index % 2 else re.sub(r"([*|_`]|\\(?![.)]))", r"\\\1", part)
        for index, part in enumerate(parts)
    )


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", keep_links_to_files, priority=400)  # before Sphinx collects downloads
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("build-finished", copy_files)
