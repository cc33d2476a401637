"""Every table and figure by name: `exhibit` gives one, `list_rows` all rows that can be run."""

from collections.abc import Callable

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.experiments.recipes import figures, tables
from ordered_sgd.lab.experiments.recipes.ablation import ablation
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RecipeRow
from ordered_sgd.lab.experiments.recipes.label_noise import label_noise
from ordered_sgd.lab.experiments.recipes.protocols import PAPER, Protocol
from ordered_sgd.lab.experiments.recipes.whole_training import batchnorm, memory, whole_training
from ordered_sgd.lab.experiments.recipes.work import work

_MADE = (
    *(tables.table1, tables.table2, tables.table3, tables.table4, tables.table5),
    *(figures.figure1, figures.figure3, figures.figure4, figures.figure5, figures.figure6, figures.figure7),
    *(figures.figure8, ablation, whole_training, memory, batchnorm, label_noise),
)
EXHIBITS: dict[str, Callable[[Protocol], Exhibit]] = {made.__name__.replace("_", "-"): made for made in _MADE}


def exhibit(name: str, protocol: Protocol = PAPER) -> Exhibit:
    """A table, a figure or the ablation by name, in a protocol.

    >>> from ordered_sgd.lab.experiments.recipes.protocols import AUTHORS_CODE
    >>> row = exhibit("table1", AUTHORS_CODE).rows[0]
    >>> row.id, list(row.arms), row.printed["sgd"], row.place
    ('semeion-logistic', ['sgd', 'ordered'], Printed(mean=10.76, std=0.35), 'Table 1, row 1')
    """
    if name == "figure2":  # the nearest name would be another figure
        rule, remedy = "be a table or a figure that is trained", "Figure 2 needs no training: run osgd gamma --figure2"
        raise ArgumentError(message("exhibit", "name", rule, repr(name), remedy))
    check_choice("exhibit", "name", name, tuple(EXHIBITS), "See them all: osgd reproduce --list")
    return EXHIBITS[name](protocol)


def list_rows(protocol: Protocol = PAPER) -> list[tuple[str, RecipeRow]]:
    """Every row of every exhibit, with the exhibit's name. Rows may share runs, which are then made only once."""
    return [(name, row) for name, made in EXHIBITS.items() for row in made(protocol).rows]


def row_work(row: RecipeRow) -> float:
    """The `work` of one trial of a row, controls included."""
    controls = [row.arms[name] for name in row.controls for _ in row.repeated]
    return sum(work(spec) for spec in [*row.different(), *controls])
