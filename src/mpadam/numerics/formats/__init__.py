"""The storage formats, one file each: found here, not listed.

A file declares one `mpadam.numerics.card.FormatCard` for each name, and imports torch, if at all, where it builds the
format: a study reads cards without torch.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING

from mpadam.cards import cards_in
from mpadam.numerics.card import FormatCard

if TYPE_CHECKING:
    from mpadam.numerics.base import Format

#: name -> card, the widest format first
CARDS: dict[str, FormatCard] = {
    card.name: card for card in sorted(cards_in(__name__, FormatCard).values(), key=lambda card: -card.bytes_per_weight)
}
#: `masters` of a regime (`fp8e4m3-bf16` has masters `fp8e4m3`) -> card
BY_MASTERS: dict[str, FormatCard] = {card.masters: card for card in CARDS.values()}


def card_of(masters: str) -> FormatCard:
    """The format behind the `masters` of a regime, or of that name. ValueError for any other word."""
    card = BY_MASTERS.get(masters) or CARDS.get(masters)
    if card is None:
        raise ValueError(f"masters = {masters!r}: give one of {', '.join(BY_MASTERS)}")
    return card


@cache
def _built(name: str) -> Format:
    return CARDS[name].build()


def get_format(name: str | Format) -> Format:
    """The format called `name`; a format object is returned as it is. ValueError with the nearest names."""
    if not isinstance(name, str):
        return name
    if name not in CARDS:
        near = difflib.get_close_matches(name, CARDS, n=3, cutoff=0.3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"weight format {name!r} is unknown: {hint}There are {', '.join(CARDS)}")
    return _built(name)
