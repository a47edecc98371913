"""Prose from docstrings: what is kept, what is left out, and how much repetition is too much."""

from __future__ import annotations

import textwrap

import pytest

from mpadam.data.builtin import Novelty, paragraphs

SENTENCE = "The quick brown fox jumps over the lazy dog."


def of(text: str) -> list[str]:
    return paragraphs(textwrap.dedent(text))


def test_lines_become_paragraphs() -> None:
    text = """Return the sum of all the numbers
        in a list.

        The list may be empty, and then
        the sum of it is zero.
        """
    expected = [
        "Return the sum of all the numbers in a list.",
        "The list may be empty, and then the sum of it is zero.",
    ]
    assert paragraphs(text) == expected


@pytest.mark.parametrize(
    "noise",
    [
        ">>> the quick brown fox jumps over the lazy dog.\nThe quick brown fox jumps over the lazy cat.",
        "```python\nThe quick brown fox jumps over the lazy cat.\n\nThe quick brown fox jumps over a lazy cat.\n```",
        ".. math::\n\n    The quick brown fox jumps over the lazy cat.",
        ".. note:: The quick brown fox jumps over the lazy cat.\n    The quick brown fox jumps over a lazy cat.",
        "Parameters\n----------",
        "See Also\n========\nThe quick brown fox jumps over the lazy cat.",
        "References\n----------\n.. [1] The quick brown fox jumps over the lazy cat.",
        "G : graph",
        "a = b + c ; d = e + f ; g = h(i) ; j = k(l) .",
        "too short to keep.",
        "A sentence that never comes to its end but goes on",
        "The arrow in this sentence is broken: A\rightarrow B.",
    ],
)
def test_what_is_no_prose_is_left_out(noise: str) -> None:
    assert of(f"{SENTENCE}\n\n{noise}\n") == [SENTENCE]


def test_text_after_a_skipped_section_is_kept() -> None:
    text = f"References\n==========\n{SENTENCE}\n\nNotes\n=====\nNotes are kept, since they are prose as well.\n"
    assert of(text) == ["Notes are kept, since they are prose as well."]


def test_a_literal_block_ends_where_its_indentation_ends() -> None:
    text = (
        f"Here is how this may be done in practice::\n\n    The code of it says this and that and more.\n\n{SENTENCE}\n"
    )
    assert of(text) == ["Here is how this may be done in practice:", SENTENCE]


def test_definitions_and_bullets_are_paragraphs_of_their_own() -> None:
    text = f"""\
        x : int
            The number of nodes that the graph shall have.
        - {SENTENCE}
        - The second bullet goes on over the end
          of its first line.
        """
    assert of(text) == [
        "The number of nodes that the graph shall have.",
        SENTENCE,
        "The second bullet goes on over the end of its first line.",
    ]


@pytest.mark.parametrize(
    ("markup", "plain"),
    [
        (":class:`~sympy.core.Symbol`", "sympy.core.Symbol"),
        (":py:meth:`a name <target.of.it>`", "a name"),
        ("``x``", "x"),
        ("`x`", "x"),
        ("*x*", "x"),
        ("**x**", "x"),
        ("[`Model.forward`]", "Model.forward"),
        ("[docs](https://example.org)", "docs"),
        ("p**2 or q**3", "p**2 or q**3"),
        ("x [1]_", "x"),
        ("<x>y</x>", "y"),
    ],
)
def test_markup_is_undone(markup: str, plain: str) -> None:
    text = "This is a sentence about {} and nothing else that could matter here to any of us."
    assert of(text.format(markup)) == [text.format(plain)]


def test_the_same_paragraph_is_new_once() -> None:
    novelty = Novelty()
    assert novelty.keep(SENTENCE)
    assert not novelty.keep(SENTENCE)
    assert not novelty.keep(SENTENCE.upper().replace(" ", "  "))


def test_half_of_the_shingles_decides() -> None:
    known = "one two three four five six seven eight nine ten."
    # 10 words have 6 shingles of 5; the first has 3 of them in common with the known text, the second 2
    half = "one two three four five six seven alpha beta gamma."
    less = "one two three four five six alpha beta gamma delta."
    for text, kept in ((half, False), (less, True)):
        novelty = Novelty()
        assert novelty.keep(known)
        assert novelty.keep(text) is kept


def test_a_refused_paragraph_is_not_remembered() -> None:
    novelty = Novelty()
    assert novelty.keep("one two three four five six seven eight nine ten.")
    assert not novelty.keep("one two three four five six seven alpha beta gamma.")
    assert novelty.keep("six seven alpha beta gamma delta epsilon zeta eta theta.")
