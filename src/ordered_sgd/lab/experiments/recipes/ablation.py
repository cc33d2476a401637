"""What of the published gain comes from where: samples kept, hidden rate rule, hinge, learning rate."""

from itertools import product

from ordered_sgd.lab.experiments.comparison import GRID
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RecipeRow, against_plain, printed_for
from ordered_sgd.lab.experiments.recipes.protocols import Protocol
from ordered_sgd.lab.experiments.recipes.published import APPENDIX, TABLE1
from ordered_sgd.lab.experiments.recipes.tables import PROBLEMS, problem_row
from ordered_sgd.lab.experiments.spec import ExperimentSpec, Loss

ABLATED = ("semeion-logistic", "semeion-svm", "semeion-lenet", "semeion-lenet-aug", "mnist-logistic", "mnist-svm")
_HINGES: dict[str, Loss] = {"sum": "hinge-sum", "mean": "hinge-mean"}


def ablation(protocol: Protocol, problems: tuple[str, ...] = ABLATED) -> Exhibit:
    """{top q, random q, plain} x {hidden rule on, off} x {hinge sum, mean, for SVM} x a grid of rates.

    A row for each cell but the first factor, which is its arms and the control; the protocol decides all else. Ids read
    ``semeion-svm-hidden-on-hinge-mean-lr-0.01``.
    """
    rows = tuple(row for name in problems for row in _cells(name, protocol))
    notes = ("The problems and the rates are our choice; the paper's rate is 0.01.",)
    return Exhibit("ablation", "Where the gain comes from", "test_error", rows, crossed=True, notes=notes)


def _cells(name: str, protocol: Protocol) -> list[RecipeRow]:
    ordered = problem_row(name, protocol).arms["ordered"]
    hinges = tuple(_HINGES) if PROBLEMS[name].model == "svm" else (None,)
    return [_cell(name, ordered, *switches) for switches in product((False, True), hinges, GRID)]


def _cell(name: str, ordered: ExperimentSpec, hidden: bool, hinge: str | None, rate: float) -> RecipeRow:
    words = [f"hidden-{'on' if hidden else 'off'}", *([f"hinge-{hinge}"] if hinge else []), f"lr-{rate:g}"]
    loss = _HINGES[hinge] if hinge else ordered.loss
    arms = against_plain(ordered.but(hidden_rule=hidden, loss=loss, lr=rate))
    printed = (TABLE1 | APPENDIX)[name] if rate == ordered.lr else None
    title = f"{PROBLEMS[name].title}; {', '.join(word.replace('-', ' ', 1) for word in words)}"
    return RecipeRow("-".join([name, *words]), title, arms, controls=("ordered",), **printed_for(arms, printed))
