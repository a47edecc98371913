"""What the extras of the package install, and the one place that says which of them is missing.

The optimizers, formats and probes need torch and numpy alone. A room that imports other packages asks for their extra
in its `__init__`, before any of its modules is imported:

    require("pipeline")
"""

from functools import cache
from importlib.util import find_spec

#: extra -> modules of the packages that pyproject.toml lists for it
EXTRAS = {
    "hf": ("accelerate", "transformers"),
    "pipeline": (
        *("datasets", "huggingface_hub", "jinja2", "matplotlib", "networkx", "pandas", "psutil", "pydantic", "rich"),
        *("scipy", "seaborn", "snakemake", "sympy", "tabulate", "tokenizers", "transformers", "yaml"),
    ),
}


class MissingExtraError(ModuleNotFoundError):
    """Packages of an extra are not installed; the message says which, and how to install them."""


@cache  # a room asks once for each of its packages that is imported
def require(extra: str) -> None:
    """Raise MissingExtraError where a package of this extra is not installed."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"not installed: {', '.join(missing)}; install with  pip install '.[{extra}]'  in the clone"
        )
