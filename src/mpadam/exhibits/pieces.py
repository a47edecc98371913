"""Which tables and figures a target makes of its runs: those of `all`, and those that `all_paper` makes besides."""

from __future__ import annotations

from mpadam.analysis.ablation_figure import ablation_figure
from mpadam.analysis.ablations import ablation_table
from mpadam.analysis.collect import Collected
from mpadam.analysis.entries import main_entries, without_levels
from mpadam.analysis.figure6 import figure6
from mpadam.analysis.figures import figure4, figure4_all, figure4_as_in_paper
from mpadam.analysis.pictures import Picture
from mpadam.analysis.tables import Table, hyperparameters, table2
from mpadam.analysis.write_backs import write_back_table


def tables(collected: Collected) -> list[Table]:
    """In the order to read them."""
    if not collected.paths.view:
        return [table2(without_levels(collected)), hyperparameters(collected)]
    return [
        table2(main_entries(collected)),
        write_back_table(collected),
        ablation_table(collected),
        hyperparameters(collected),
    ]


def pictures(collected: Collected) -> list[Picture]:
    """In the order to see them."""
    if not collected.paths.view:
        return [figure4(without_levels(collected))]
    return [
        figure4_as_in_paper(collected),
        figure4_all(collected),
        figure6(collected),
        ablation_figure(collected),
    ]
