"""English prose from docstrings, and the removal of repeated text.

`paragraphs` turns one docstring into its paragraphs of prose; `Novelty` refuses a paragraph when half of it occurs in
paragraphs kept earlier. Both depend on the characters alone: they use no Unicode tables and no hashing that varies
between processes or versions of Python, so that the corpus (`builtin.py`) has the same bytes everywhere.

What counts as prose, in this order:
  1. fenced code, doctests, literal blocks (after `::`), directives (`.. math::`) with what is indented under them, and
     the sections References, See Also, Citation are left out; underlined headings lose heading and underline;
  2. lines are joined to paragraphs: a blank line, a change of indentation or a bullet starts a new one;
  3. markup is undone: :class:`~a.Name` is Name, ``x`` and *x* are x, [`~A.b`] is A.b, footnote marks [1]_ go;
  4. a paragraph stays if it has 6 words, 3 of 4 of its blank-separated pieces are plain words, and it ends a sentence.
"""

import re
import zlib
from collections.abc import Iterator

MINIMUM_WORDS = 6
WORD_SHARE = 0.75
SHINGLE = 5
KNOWN_SHARE = 0.5

_SKIPPED_SECTIONS = {"references", "reference", "see also", "citation", "citations", "bibliography"}
_UNDERLINE = re.compile(r"([=~^*#\-])\1{2,}")
_BULLET = re.compile(r"(?:[-*+•]|\(?[0-9]{1,2}[.)])[ ]+")
_WORD = re.compile(r"[(\"'\[]*[A-Za-z]+(?:['-][A-Za-z]+)*[.,;:!?)\"'\]]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # from docstrings that say "\rightarrow" without r"..."
_SENTENCE_END = re.compile(r"[.!?:][)\"']?$")
_MARKUP = (
    (re.compile(r"\[[0-9A-Za-z]{1,12}\]_"), ""),
    (re.compile(r":[a-z]+(?::[a-z]+)?:`[!~.]*([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),
    (re.compile(r"\[`~?([^`]+)`\](?:\([^)]*\))?"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`~?([^`]+)`_{0,2}"), r"\1"),
    (re.compile(r"(?<![0-9A-Za-z_)*])(\*{1,2})([^* ][^*]*)\1(?![0-9A-Za-z_(*])"), r"\2"),
    (re.compile(r"</?[A-Za-z][A-Za-z0-9]*>"), ""),
    (re.compile(r"[ ]+([.,;:!?])(?=[ ]|$)"), r"\1"),
    (re.compile(r"[ ]{2,}"), " "),
)


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of prose in a docstring, one line each, in order."""
    joined = (" ".join(lines) for lines in _joined(_text_lines(docstring)))
    return [text for text in map(_plain, joined) if _is_prose(text)]


class Novelty:
    """Remembers the word shingles of kept paragraphs.

    A shingle is 5 words in a row, lower case, remembered as its CRC-32. A paragraph whose shingles are known to at
    least one half is refused, and its shingles are not remembered.
    """

    def __init__(self) -> None:
        self._known: set[int] = set()

    def keep(self, paragraph: str) -> bool:
        """Whether the paragraph is new; if so, it is remembered."""
        words = re.findall(r"[a-z0-9]+", paragraph.lower())
        shingles = {
            zlib.crc32(" ".join(words[i : i + SHINGLE]).encode()) for i in range(max(1, len(words) - SHINGLE + 1))
        }
        if len(shingles & self._known) >= KNOWN_SHARE * len(shingles):
            return False
        self._known |= shingles
        return True


def _text_lines(docstring: str) -> Iterator[tuple[int, str]]:
    """(indentation, text) of the lines that may be prose; text is empty where a paragraph must end."""
    lines = [line.rstrip() for line in docstring.expandtabs(8).split("\n")]
    lines[0] = lines[0].lstrip()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line), default=0)
    lines[1:] = [line[margin:] for line in lines[1:]]
    fenced = doctest = skipped_section = False
    literal: int | None = None  # what is indented deeper than this is no prose
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        doctest = bool(text) and (doctest or text.startswith(">>>"))
        if text and literal is not None and indent <= literal:
            literal = None
        if text.startswith(("```", "~~~")):
            fenced, text = not fenced, ""
        elif text and _UNDERLINE.fullmatch(following.strip()):
            skipped_section, text = text.lower().rstrip(":") in _SKIPPED_SECTIONS, ""
        elif _UNDERLINE.fullmatch(text) or fenced or doctest or skipped_section or literal is not None:
            text = ""
        elif text.startswith(".. "):
            literal, text = indent, ""
        elif text.endswith("::"):
            literal, text = indent, text[:-1]
        yield indent, text


def _joined(lines: Iterator[tuple[int, str]]) -> Iterator[list[str]]:
    """Lines grouped to paragraphs; bullets are removed."""
    group: list[str] = []
    margin = 0
    for indent, text in lines:
        bullet = _BULLET.match(text)
        if group and (bullet or not text or indent != margin):
            yield group
            group = []
        if text:
            margin = indent + (bullet.end() if bullet else 0)
            group.append(text[bullet.end() :] if bullet else text)
    if group:
        yield group


def _plain(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip(" ")


def _is_prose(text: str) -> bool:
    pieces = text.split(" ")
    words = sum(bool(_WORD.fullmatch(piece)) for piece in pieces)
    plain = words >= MINIMUM_WORDS and words >= WORD_SHARE * len(pieces)
    return plain and bool(_SENTENCE_END.search(text)) and not _CONTROL.search(text)
