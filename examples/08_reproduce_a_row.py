"""A row of the paper's Table 1 through the library: recipe, specs, runs, records, table.

What `osgd reproduce table1 --rows semeion-logistic` does, in steps that can be taken apart. A recipe is a row of the
paper as specs, one for each method; a spec is the whole description of a run; runs are recorded epoch by epoch in a
file, are not run twice and go on where they were stopped; tables are made from records. The random control repeats the
q and the rate of every epoch of its ordered run. Both protocols are run: the paper's text, and the authors' scripts. A
second recipe is the same at the rate that is best for plain SGD, picked on a held-out fifth of the training set.

The row's data set, Semeion, comes with the package. With --data digits the same recipe is run on scikit-learn's digits,
and then no number of the paper stands beside ours.

Run: python examples/08_reproduce_a_row.py            (three minutes on an idle core; writes a folder, reproduced-row)
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ordered_sgd.lab.experiments.backends.processes import Processes
from ordered_sgd.lab.experiments.comparison import GRID, HELD_OUT
from ordered_sgd.lab.experiments.recipes import PROTOCOLS, Exhibit, RateSearch
from ordered_sgd.lab.experiments.recipes.exhibit import Reproduced
from ordered_sgd.lab.experiments.requests import Request, reproduce
from ordered_sgd.lab.experiments.store import Records, Run
from ordered_sgd.lab.report.reruns import q_by_epoch
from ordered_sgd.lab.report.sentences import compared
from ordered_sgd.lab.report.verdicts import found, table


def recipe(protocol: str, data: str, trials: int, epochs: int | None) -> Exhibit:
    """Table 1 with one row and its twin at SGD's best rate; the paper's numbers stay with its own data and rate."""
    shown = Request("table1", ("semeion-logistic",), trials, protocol, epochs=epochs).shown()
    (row,) = shown.rows
    if data != "semeion":
        title = f"{data}, logistic model"
        row = replace(row.but(data=data), id=f"{data}-logistic", title=title, printed={}, place=None)
    search = RateSearch("sgd", GRID, validation=HELD_OUT)
    tuned = replace(row, id=f"{row.id}-best-rate", search=search, printed={}, place=None)
    return replace(shown, rows=(row, tuned))


def carry_out(shown: Exhibit, records: Records, trials: int) -> list[Reproduced]:
    """The runs of all rows: searches for a rate, plain and ordered SGD of every seed, and the control of every run."""
    with Processes(records, workers=1) as run_all:  # workers=None: as many as there are cores
        return reproduce(shown.rows, run_all, trials=trials)


def told(recorded: Run) -> str:
    """What a record holds, in a few lines."""
    last = recorded.rows[-1]
    versions = ", ".join(f"{name} {version}" for name, version in recorded.versions.items())
    return (
        f"Run {recorded.spec.run_id} is described by\n  {recorded.spec.to_json()}\n"
        f"ran on {versions},\nhad q (epochs) {q_by_epoch(recorded)}, and of its last epoch it recorded\n"
        f"  test error {last.test_error:.2f} %, cross-entropy {last.test_cross_entropy:.3f}, "
        f"L {last.train_loss:.4f}, L_q {last.ordered_risk:.4f}, rate {last.lr:g}"
    )


def show(lines: Sequence[dict[str, str]], title: str, console: Console) -> None:
    """Print the table."""
    grid = Table("protocol", "method", title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fits 80 columns
    for head in list(lines[0])[2:]:
        grid.add_column(head, justify="right")
    for line in lines:
        grid.add_row(*line.values())
    console.print(grid)


def main() -> None:
    """Run the row in both protocols, print what was found and what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", choices=("semeion", "digits"), default="semeion")
    parser.add_argument("--trials", type=int, default=10, help="seeds; at least 2: the interval is over them")
    parser.add_argument("--epochs", type=int, help="fewer than the 50 of the recipe; every cell then says so")
    parser.add_argument("--records", type=Path, default=Path("reproduced-row"), help="a folder")
    arguments = parser.parse_args()
    records, console = Records(arguments.records), Console()
    lines = []
    for protocol in PROTOCOLS:
        shown = recipe(protocol, arguments.data, arguments.trials, arguments.epochs)
        with console.status(f"{shown.rows[0].id}, protocol {protocol}"):
            results = carry_out(shown, records, arguments.trials)
        for one, sentence in zip(results, found(results, shown), strict=True):
            _, ordered, random = one.arms
            for words in (sentence, f"{compared(ordered, random)}."):
                console.print(f"{protocol}: {words}", highlight=False, soft_wrap=True, markup=False)
            rate = one.row.arms["sgd"].lr
            lines += [{**line, "row": f"{protocol}, rate {rate:g}"} for line in table([one], shown)]
    show(lines, f"{shown.rows[0].title}: test error in percent, {arguments.trials} seeds", console)
    first = records.get(shown.rows[0].trial(0)["ordered"])
    assert first is not None
    console.print(told(first), highlight=False, soft_wrap=True, markup=False)
    print(f"{len(records.runs())} runs in {records.path}: start it again, and nothing is trained")


if __name__ == "__main__":
    main()
