"""The paper's tables and figures as specs: `exhibit` gives one by name, `list_rows` all that there is to run."""

from collections.abc import Callable
from typing import NamedTuple

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.experiments.recipes import figures, tables
from ordered_sgd.lab.experiments.recipes.ablation import ablation
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RateSearch, RecipeRow
from ordered_sgd.lab.experiments.recipes.label_noise import label_noise
from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE, PAPER, PROTOCOLS, SWITCHES, Protocol, preset
from ordered_sgd.lab.experiments.recipes.published import Printed
from ordered_sgd.lab.experiments.recipes.shrink import shrink
from ordered_sgd.lab.experiments.recipes.whole_training import batchnorm, memory, whole_training
from ordered_sgd.lab.experiments.recipes.work import work

__all__ = [
    "AUTHORS_CODE",
    "EXHIBITS",
    "PAPER",
    "PROTOCOLS",
    "SWITCHES",
    "TRIALS",
    "Exhibit",
    "ListedRow",
    "Printed",
    "Protocol",
    "RateSearch",
    "RecipeRow",
    "exhibit",
    "list_rows",
    "preset",
    "shrink",
    "work",
]

TRIALS = 10  # "over ten random trials"

EXHIBITS: dict[str, Callable[[Protocol], Exhibit]] = {
    "table1": tables.table1,
    "table2": tables.table2,
    "table3": tables.table3,
    "table4": tables.table4,
    "table5": tables.table5,
    "figure1": figures.figure1,
    "figure3": figures.figure3,
    "figure4": figures.figure4,
    "figure5": figures.figure5,
    "figure6": figures.figure6,
    "figure7": figures.figure7,
    "figure8": figures.figure8,
    "ablation": ablation,
    "whole-training": whole_training,
    "memory": memory,
    "batchnorm": batchnorm,
    "label-noise": label_noise,
}


def exhibit(name: str, protocol: Protocol = PAPER) -> Exhibit:
    """A table, a figure or the ablation by name, in a protocol.

    >>> row = exhibit("table1", AUTHORS_CODE).rows[0]
    >>> row.id, list(row.arms), row.printed["sgd"], row.place
    ('semeion-logistic', ['sgd', 'ordered'], Printed(mean=10.76, std=0.35), 'Table 1, row 1')
    """
    if name == "figure2":  # the nearest name would be another figure
        rule, remedy = "be a table or a figure that is trained", "Figure 2 needs no training: run osgd gamma --figure2"
        raise ArgumentError(message("exhibit", "name", rule, repr(name), remedy))
    check_choice("exhibit", "name", name, tuple(EXHIBITS), "See them all: osgd reproduce --list")
    return EXHIBITS[name](protocol)


class ListedRow(NamedTuple):
    """A row in a list: where it belongs, its id and title, its runs, and their `work` in all."""

    exhibit: str
    id: str
    title: str
    runs: int
    work: float


def list_rows(protocol: Protocol = PAPER, trials: int = TRIALS) -> list[ListedRow]:
    """Every row of every exhibit, with the number of runs and an estimate of their work.

    Random-q controls are counted as the ordered runs that they repeat. A run that several rows have in common is
    counted in each, though it is made once.
    """
    return [
        ListedRow(name, row.id, row.title, trials * row.runs, trials * row_work(row))
        for name, made in EXHIBITS.items()
        for row in made(protocol).rows
    ]


def row_work(row: RecipeRow) -> float:
    """The `work` of one trial of a row, controls included."""
    controls = [row.arms[name] for name in row.controls for _ in row.repeated]
    return sum(work(spec) for spec in [*row.different(), *controls])
