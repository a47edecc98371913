"""What a module is made of: its imports, read and not run."""

from __future__ import annotations

from mpadam.imports import code_of, files_of
from mpadam.source import PACKAGE


def names(*modules: str) -> set[str]:
    return {path.relative_to(PACKAGE).as_posix() for path in files_of(*modules)}


def test_issue_19_every_figure_has_the_style_among_its_sources() -> None:
    """Lists by hand left it out of Figure 3's: a new colour remade Figure 4 alone."""
    for figure in ("figure1", "figure3", "figure4", "claims_figure"):
        assert "analysis/style.py" in names(f"mpadam.exhibits.{figure}"), figure


def test_an_exhibit_has_its_own_sources_and_not_those_of_another() -> None:
    found = names("mpadam.exhibits.figure4")
    assert {"exhibits/figure4.py", "exhibits/kit/perplexity.py", "analysis/cells.py", "__init__.py"} <= found
    assert not {"exhibits/figure3.py", "exhibits/figure6.py", "training/loop.py"} & found
    assert code_of("mpadam.exhibits.figure4") != code_of("mpadam.exhibits.figure6")


def test_data_of_a_package_and_imports_inside_functions_count_and_those_of_type_checkers_do_not() -> None:
    assert "claims/claimed/01-1.yaml" in names("mpadam.claims.data")
    assert "mpadam/optim/optimizer.py" not in names("mpadam.source")
    assert "exhibits/write.py" in names("mpadam.commands.aggregate")
    assert "exhibits/kit/table.py" not in names("mpadam.exhibits.registry")
