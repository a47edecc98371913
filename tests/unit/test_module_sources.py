"""What a module is made of: its imports, read and not run."""

from __future__ import annotations

import ast

from mpadam.imports import code_of, files_of, imported_names
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


def test_issue_19_imports_matched_in_the_text_are_those_that_ast_finds() -> None:
    """In every module of the package; parsing them all took half a second of each `snakemake -n`."""
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 200
    for path in paths:
        source = path.read_text(encoding="utf-8")
        assert set(imported_names(source)) == set(by_ast(ast.parse(source))), path


def by_ast(node: ast.AST) -> list[str]:
    """Names of the package that statements import, without those below `if TYPE_CHECKING`."""
    found = []
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.If) and isinstance(inner.test, ast.Name) and inner.test.id == "TYPE_CHECKING":
            continue
        if isinstance(inner, ast.ImportFrom):
            found += [f"{inner.module}.{alias.name}" for alias in inner.names]
        if isinstance(inner, ast.Import):
            found += [alias.name for alias in inner.names]
        found += by_ast(inner)
    return [name for name in found if name.partition(".")[0] == "mpadam"]


def test_names_in_strings_are_no_imports_and_comments_and_aliases_are_no_names() -> None:
    text = '"""Example:\n\nfrom mpadam.study import grid\n"""\n'
    statement = "from mpadam.data import (\n    c4 as text,  # or (\n    hub,\n)\n"
    assert imported_names(text + statement) == ["mpadam.data.c4", "mpadam.data.hub"]
