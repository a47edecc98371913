"""Cards: a rule or a format is one file in the package of its kind, and the objects it declares there are found by
reading that package. Nothing else lists them. No torch here, nor in the modules that declare cards when imported.

    RULES = cards_in("mpadam.optim.rules", Rule)         name -> card
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol, TypeVar


class Card(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Card)


def cards_in(package: str, kind: type[T]) -> dict[str, T]:
    """Every object of `kind` that a module of `package` declares, by name; modules in alphabetical order.

    Raises ValueError where two cards have one name.
    """
    found: dict[str, T] = {}
    for info in sorted(iter_modules(import_module(package).__path__), key=lambda info: info.name):
        module = import_module(f"{package}.{info.name}")
        for card in vars(module).values():
            if isinstance(card, kind) and found.setdefault(card.name, card) is not card:
                raise ValueError(f"{module.__name__}: another card of {package} is named {card.name!r}; rename one")
    return found
