"""Figures 1 and 3 to 8 of the paper as specs. Figure 2, the weights gamma, needs no training: ``osgd gamma`` draws it.

The text does not give the epochs and the rate of Figure 1, the q of Figures 4 and 8, the rates of Figure 5 but one, and
the s of Figure 6: these are our choice, and the notes say so.
"""

from dataclasses import replace

from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RecipeRow, against_plain, printed_for
from ordered_sgd.lab.experiments.recipes.protocols import Protocol
from ordered_sgd.lab.experiments.recipes.published import TABLE1, PrintedRow
from ordered_sgd.lab.experiments.recipes.tables import EPOCHS, problem_row
from ordered_sgd.lab.experiments.spec import ExperimentSpec

FIXED_Q = (10, 20, 40)  # 10 is the text's example
FIGURE5_RATES = (0.5, 0.1, 0.05, 0.01, 0.005, 0.001)  # the text names 0.5
FIGURE6_SIZES = (32, 64, 128, 256)
FIGURE1_EPOCHS = 400

# Panels in the paper's order. "KMNIST" with nothing else is LeNet's, other colour images are PreActResNet18's.
FIGURE3 = (
    "mnist-logistic",
    "mnist-lenet",
    "kmnist-lenet",
    "cifar10-preact-resnet18",
    "semeion-lenet-aug",
    "kmnist-lenet-aug",
    "cifar100-preact-resnet18-aug",
    "svhn-preact-resnet18-aug",
)
FIGURE8 = ("cifar10-preact-resnet18-aug", "kmnist-lenet-aug", "fashion-mnist-lenet-aug", "semeion-lenet-aug")
_CIFAR10 = "cifar10-preact-resnet18"


def figure1(protocol: Protocol) -> Exhibit:
    """Four problems in the plane: points of the training set that are classified correctly.

    The scripts do not contain them, so that both protocols are the same here.
    """
    rows = tuple(_plane_row(panel, title) for panel, title in _PANELS.items())
    notes = (
        "The points are drawn by the seed; their places, spreads and radii are read from the published picture.",
        f"Neither epochs nor rate are stated: {FIGURE1_EPOCHS} epochs at 0.01, without a drop. Plain SGD is still "
        "improving then: with twice as many it gets all points of (a) right as well.",
    )
    return Exhibit("figure1", "Decision boundaries of four problems in the plane", "train_accuracy", rows, notes=notes)


_PANELS = {
    "a": "(a) two blobs, linear classifier",
    "b": "(b) a blob and four points, linear classifier",
    "c": "(c) rings, small network",
    "d": "(d) rings, tiny network",
}


def _plane_row(panel: str, title: str) -> RecipeRow:
    name = f"figure1{panel}"
    spec = ExperimentSpec(
        data=name, model=name, loss="binary", s=100, epochs=FIGURE1_EPOCHS, lr=0.01, drops=(), accuracy="clean"
    )
    return RecipeRow(name, title, against_plain(spec), controls=("ordered",))


def figure3(protocol: Protocol) -> Exhibit:
    """Learning curves of eight problems: test error and training loss by epoch."""
    rows = tuple(problem_row(name, protocol, TABLE1[name]) for name in FIGURE3)
    return Exhibit("figure3", "Learning curves of eight problems", "test_error", rows, notes=(EPOCHS,))


def figure7(protocol: Protocol) -> Exhibit:
    """Learning curves of all 18 problems."""
    rows = tuple(problem_row(name, protocol, printed) for name, printed in TABLE1.items())
    return Exhibit("figure7", "Learning curves of all problems", "test_error", rows, notes=(EPOCHS,))


def figure4(protocol: Protocol) -> Exhibit:
    """Effect of a fixed q on CIFAR-10."""
    return _fixed("figure4", "Effect of q, CIFAR-10", FIGURE8[:1], protocol)


def figure8(protocol: Protocol) -> Exhibit:
    """Effect of a fixed q in four problems."""
    return _fixed("figure8", "Effect of q, four problems", FIGURE8, protocol)


def _fixed(name: str, title: str, problems: tuple[str, ...], protocol: Protocol) -> Exhibit:
    rows = tuple(_fixed_row(problem, protocol) for problem in problems)
    notes = (
        f"The values of q are not stated, but for one: {', '.join(map(str, FIXED_Q))} of s = 64.",
        "Runs with a fixed q have no hidden rule: they never reach s/16.",
        "With augmentation: the text says so of Figure 8, whose first panel is Figure 4.",
        EPOCHS,
    )
    return Exhibit(name, title, "test_error", rows, notes=notes)


def _fixed_row(name: str, protocol: Protocol) -> RecipeRow:
    row = problem_row(name, protocol, TABLE1[name])
    fixed = [row.arms["ordered"].but(q=q, counts=False, hidden_rule=False) for q in FIXED_Q]
    return replace(row, arms={**row.arms, **{spec.method_name: spec for spec in fixed}})


def figure5(protocol: Protocol) -> Exhibit:
    """Learning rates on CIFAR-10 without augmentation."""
    rows = tuple(_rate_row(rate, protocol) for rate in FIGURE5_RATES)
    rates = ", ".join(f"{rate:g}" for rate in FIGURE5_RATES)
    notes = (f"The rates are not stated, but for 0.5: {rates}.", EPOCHS)
    return Exhibit("figure5", "Effect of the learning rate, CIFAR-10", "test_error", rows, notes=notes)


def _rate_row(rate: float, protocol: Protocol) -> RecipeRow:
    arms = against_plain(problem_row(_CIFAR10, protocol).arms["ordered"].but(lr=rate))
    notes = ("Published: the training loss of both methods is nan.",) if rate == 0.5 else ()
    return _cifar10_row(f"lr-{rate:g}", f"rate {rate:g}", arms, TABLE1[_CIFAR10] if rate == 0.01 else None, notes)


def figure6(protocol: Protocol) -> Exhibit:
    """Batch sizes on CIFAR-10 without augmentation; q is floor(s/2), floor(s/4), ... in both protocols."""
    rows = tuple(_size_row(s, protocol) for s in FIGURE6_SIZES)
    sizes = ", ".join(map(str, FIGURE6_SIZES))
    notes = (f"The sizes are not stated: {sizes}, all at the same rate.", "q is floor(s/2) to floor(s/16).", EPOCHS)
    return Exhibit("figure6", "Effect of the batch size, CIFAR-10", "test_error", rows, notes=notes)


def _size_row(s: int, protocol: Protocol) -> RecipeRow:
    arms = against_plain(problem_row(_CIFAR10, protocol).arms["ordered"].but(s=s, counts=False))
    return _cifar10_row(f"s-{s}", f"s = {s}", arms, TABLE1[_CIFAR10] if s == 64 else None)


def _cifar10_row(
    ending: str, words: str, arms: dict[str, ExperimentSpec], printed: PrintedRow | None, notes: tuple[str, ...] = ()
) -> RecipeRow:
    name, title = f"{_CIFAR10}-{ending}", f"CIFAR-10, PreActResNet18, {words}"
    return RecipeRow(name, title, arms, controls=("ordered",), notes=notes, **printed_for(arms, printed))
