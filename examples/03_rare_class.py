"""A rare class in a table: error of each class under plain, ordered and class-weighted training.

The table is scikit-learn's breast-cancer data; of the malignant rows in the training half nine in ten are left out, so
that one training row in twenty is malignant. The test half keeps its own. Ordered training spends its steps on the rows
it gets wrong, many of them of the rare class; weights say outright that the class matters. Both are shown, over many
splits, with the difference to plain training: won or lost.

Run: python examples/03_rare_class.py            (half a minute; writes rare-class.png)
     python examples/03_rare_class.py --splits 5
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ordered_sgd.linear import OrderedLogisticRegression

RARE, COMMON = 0, 1  # malignant, benign
KEPT = 0.1  # share of the malignant training rows
METHODS: dict[str, dict[str, Any]] = {
    "plain": {"q": 1.0},
    "ordered, q = 1/2": {"q": 0.5},
    "ordered, q = 1/8": {"q": 0.125},
    "plain, class weights": {"q": 1.0, "class_weight": "balanced"},
    "ordered, class weights": {"q": 0.5, "class_weight": "balanced"},
}


def split(seed: int) -> tuple[NDArray[Any], ...]:
    """Training rows with few malignant ones, and test rows as they are: X, y of each."""
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
    kept = (y_train != RARE) | (np.random.default_rng(seed).random(len(y_train)) < KEPT)
    return X_train[kept], y_train[kept], X_test, y_test


def errors(seed: int) -> NDArray[np.float64]:
    """Test error in percent of every method on the rare and on the common class, shape (methods, 2)."""
    X_train, y_train, X_test, y_test = split(seed)
    found = []
    for options in METHODS.values():
        classifier = OrderedLogisticRegression(max_iter=100, batch_size=64, random_state=seed, **options)
        model = make_pipeline(StandardScaler(), classifier).fit(X_train, y_train)
        wrong = model.predict(X_test) != y_test
        found.append([100 * wrong[y_test == label].mean() for label in (RARE, COMMON)])
    return np.array(found)


def half_width(differences: NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval of their mean."""
    return float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))


def show(results: NDArray[np.float64]) -> None:
    """A table of means, with paired differences to plain training; results have shape (splits, methods, 2)."""
    table = Table(title=f"test error in percent, mean of {len(results)} splits; in brackets the difference to plain")
    for column in ("method", "malignant (rare)", "benign", "mean of both"):
        table.add_column(column, justify="left" if column == "method" else "right")
    both = np.concatenate([results, results.mean(axis=2, keepdims=True)], axis=2)
    for position, name in enumerate(METHODS):
        cells = []
        for place in range(3):
            values, difference = both[:, position, place], both[:, position, place] - both[:, 0, place]
            shown = f" ({difference.mean():+.1f} ± {half_width(difference):.1f})" if position else ""
            cells.append(f"{values.mean():.1f}{shown}")
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    names = list(METHODS)
    best = names[int(both[:, :, 2].mean(axis=0).argmin())]
    ordered = both[:, names.index("ordered, q = 1/2"), 0] - both[:, 0, 0]
    clear = abs(ordered.mean()) > half_width(ordered)
    console.print(
        f"Ordered training alone {'changes' if clear else 'does not clearly change'} the error of the rare class; "
        f"the lowest mean over both classes has: {best}."
    )
    console.print(
        "Plain training is the better choice when errors on the rare class are not dearer than others, or when weights "
        "can say what matters."
    )


def draw(results: NDArray[np.float64], path: Path) -> None:
    """Bars of both classes' errors, a pair for each method, with one standard deviation over splits."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(METHODS))
    for column, (label, colour) in enumerate((("malignant (rare)", "#D55E00"), ("benign", "#0072B2"))):
        mean, std = results[:, :, column].mean(axis=0), results[:, :, column].std(axis=0)
        axis.barh(places + (column - 0.5) * 0.38, mean, 0.36, xerr=std, color=colour, label=label)
    axis.set(yticks=places, yticklabels=list(METHODS), xlabel="test error (%)", xlim=(0, None))
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run all splits, print the table, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("rare-class.png"))
    arguments = parser.parse_args()
    results = np.array([errors(seed) for seed in track(range(arguments.splits), description="splits", transient=True)])
    show(results)
    draw(results, arguments.out)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
