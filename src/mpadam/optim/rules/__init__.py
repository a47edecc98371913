"""The update rules, one file each: found here, not listed.

A file declares a `mpadam.optim.card.Rule` and the function that it names, line by line as in docs/algorithm.md. It
imports torch, if at all, inside that function: a study reads cards without torch.
"""

from mpadam.cards import cards_in
from mpadam.optim.card import Rule

#: name -> card
RULES: dict[str, Rule] = cards_in(__name__, Rule)
