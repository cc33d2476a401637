"""What the paper does not show: whole trainings with every engine, in error and in time."""

from dataclasses import replace

from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RecipeRow
from ordered_sgd.lab.experiments.recipes.protocols import Protocol, base
from ordered_sgd.lab.experiments.recipes.shrink import shrink
from ordered_sgd.lab.experiments.recipes.tables import PROBLEMS
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.rules import LinearDecay

WHOLE = ("mnist-lenet", "fashion-mnist-lenet")
WHOLE_EPOCHS = 12
CANDIDATES = 16  # with dropout the largest losses are a matter of chance, and fewer than hold the recall may do
LESS_RECALL = 0.8  # between the two: candidates that still adapt, to less than the engine's own target
OTHER_RATES = (0.03, 0.1)  # of SGD, beside the given one: a larger step alone may explain what is gained
BATCHNORM_EPOCHS, BATCHNORM_WIDTH, BATCHNORM_SAMPLES = 8, 0.125, 10_000  # one file of the five
_ONLINE = "Training accuracy is counted while training: there is no second pass over the data."
_CLOCK = (
    "Time is that of the processor in training steps, with one thread; on a machine that does nothing else it is the "
    "time that passes."
)


def whole_training(protocol: Protocol) -> Exhibit:
    """Time and error of a whole training of LeNet with each engine, beside plain SGD and the random control."""
    rows = []
    for name in WHOLE:
        problem = PROBLEMS[name]
        spec, shrunk = shrink(base(problem.data, problem.model, protocol), epochs=WHOLE_EPOCHS)
        spec = spec.but(drops=(10,), accuracy="epoch")
        engines = {engine: spec.but(engine=engine) for engine in ("dense", "rows", "twopass")}
        arms = _arms(spec, engines)
        rows.append(RecipeRow(name, problem.title, arms, controls=("ordered rows",), shrunk=shrunk))
    notes = (
        f"{WHOLE_EPOCHS} epochs, the rate divided by 10 from epoch 10 on. {_ONLINE}",
        _CLOCK,
        "The random control scores all samples as well, to be comparable; by itself it could do without.",
    )
    return Exhibit("whole-training", "Whole trainings by engine", "test_error", tuple(rows), compared=True, notes=notes)


def memory(protocol: Protocol) -> Exhibit:
    """The engine with a memory in whole trainings, beside the exact engine, other rates of SGD, and baselines."""
    rows = []
    for row in whole_training(protocol).rows:
        plain, exact = row.arms["sgd"], row.arms["ordered rows"]
        arms = {
            "sgd": plain,
            "ordered rows": exact,
            "ordered memory": exact.but(engine="memory"),
            f"ordered memory recall={LESS_RECALL:g}": exact.but(engine="memory", recall=LESS_RECALL),
            f"ordered memory c={CANDIDATES}": exact.but(engine="memory", candidates=CANDIDATES),
            "infobatch": plain.but(method="infobatch", hidden_rule=False),
            **{f"sgd at {rate:g}": plain.but(lr=rate) for rate in OTHER_RATES},
        }
        rows.append(replace(row, arms=arms, repeated=("random", "last-losses")).but(timed=True))
    notes = (
        f"{WHOLE_EPOCHS} epochs, the rate divided by 10 from epoch 10 on. {_ONLINE}",
        _CLOCK,
        f"memory holds a recall of 0.95, or the one that is named; c={CANDIDATES} are so many candidates in every "
        "batch, or q if that is more, whatever the recall; random and last-losses repeat the q and the rates of "
        "ordered rows.",
        "infobatch drops samples whose last loss is below the mean with probability 1/2 and lets the others of them "
        "count twice, but not in the last eighth of the epochs; it knows no training accuracy for the hidden rule and "
        "goes without. last-losses keeps the q with the largest losses of the last time that they were trained on, and "
        "scores nothing.",
        "SGD's best rate is the one with the lowest error here, on the test set: a choice in its favour.",
    )
    return Exhibit("memory", "An engine with a memory", "test_error", tuple(rows), compared=True, notes=notes)


def batchnorm(protocol: Protocol) -> Exhibit:
    """What the engines' treatments of BatchNorm do to the error, on CIFAR-10."""
    full = base("cifar10", "preact-resnet18", protocol).but(accuracy="epoch", hidden_rule=False, counts=False, lr=0.05)
    spec, shrunk = shrink(full, epochs=BATCHNORM_EPOCHS, width=BATCHNORM_WIDTH, train_size=BATCHNORM_SAMPLES)
    spec = spec.but(drops=(7,), q=LinearDecay(BATCHNORM_EPOCHS, end=0.25))
    engines = {
        "dense": spec.but(engine="dense"),
        "rows": spec.but(engine="rows", batchnorm="full-batch"),
        "twopass": spec.but(engine="twopass", batchnorm="subset"),
    }
    row = RecipeRow("cifar10-preact-resnet18", "CIFAR-10, PreActResNet18", _arms(spec, engines), shrunk=shrunk)
    notes = (
        "dense is the one-liner; rows takes the statistics of the whole batch, and BatchNorm's backward over the kept "
        "samples; twopass takes the statistics of the kept samples.",
        "q falls from s to s/4 by the calendar: so short a training does not reach the accuracies of the paper's rule; "
        "rate 0.05, a tenth from epoch 7 on.",
        _CLOCK,
    )
    return Exhibit("batchnorm", "Engines and BatchNorm", "test_error", (row,), compared=True, notes=notes)


def _arms(spec: ExperimentSpec, engines: dict[str, ExperimentSpec]) -> dict[str, ExperimentSpec]:
    plain = spec.but(method="sgd", counts=False)
    return {"sgd": plain, **{f"ordered {engine}": ordered for engine, ordered in engines.items()}}
