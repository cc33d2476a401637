"""Tables 1 to 5 of the paper as specs."""

from typing import NamedTuple

from ordered_sgd.lab.experiments.comparison import HELD_OUT
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, RateSearch, RecipeRow, against_plain, printed_for
from ordered_sgd.lab.experiments.recipes.protocols import Protocol, base
from ordered_sgd.lab.experiments.recipes.published import APPENDIX, TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, PrintedRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec

RATES = (1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001)  # the text, "Experiment with the best learning rate"
ADAM_RATE = 0.001  # torch's default


class PaperProblem(NamedTuple):
    """What a row is about: a data set, a model, and whether the images are augmented."""

    data: str
    model: str
    augmented: bool = False

    @property
    def id(self) -> str:
        """The name of its rows."""
        return f"{self.data}-{self.model}" + ("-aug" if self.augmented else "")

    @property
    def title(self) -> str:
        """Words for it, as in the paper."""
        return f"{_WORDS[self.data]}, {_WORDS[self.model]}" + (", augmented" if self.augmented else "")


_WORDS = {
    "semeion": "Semeion",
    "mnist": "MNIST",
    "kmnist": "KMNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "logistic": "logistic model",
    "svm": "SVM",
    "lenet": "LeNet",
    "preact-resnet18": "PreActResNet18",
}
_PLAIN = (
    PaperProblem("semeion", "logistic"),
    PaperProblem("mnist", "logistic"),
    PaperProblem("semeion", "svm"),
    PaperProblem("mnist", "svm"),
    *(PaperProblem(data, "lenet") for data in ("semeion", "mnist", "kmnist", "fashion-mnist")),
    *(PaperProblem(data, "preact-resnet18") for data in ("cifar10", "cifar100", "svhn")),
)
_AUGMENTED = tuple(
    problem._replace(augmented=True) for problem in _PLAIN if problem.model in ("lenet", "preact-resnet18")
)

# The 18 of Table 1 in its order, and the one of Appendix C.
PROBLEMS = {
    problem.id: problem for problem in (*_PLAIN, *_AUGMENTED, PaperProblem("semeion", "logistic", augmented=True))
}

EPOCHS = "The text does not say how many epochs: 50, 20 for Fashion-MNIST, 200 with augmentation, as in the scripts."
_WITH_BATCHNORM = "dense"  # the published gradient, which also flows through the samples that were not kept
ADAM = "The text says nothing about Adam: torch's defaults (rate 0.001, no weight decay), with SGD's drops."


def problem_row(name: str, protocol: Protocol, printed: PrintedRow | None = None) -> RecipeRow:
    """The row of a problem: plain SGD, ordered SGD and its control."""
    problem = PROBLEMS[name]
    spec = base(problem.data, problem.model, protocol, augmented=problem.augmented)
    arms = against_plain(spec.but(engine=_engine(problem)))
    return RecipeRow(name, problem.title, arms, controls=("ordered",), **printed_for(arms, printed))


def _engine(problem: PaperProblem, *, kernels: bool = True) -> str:
    """The engine of a problem; linear models use the kernels, many times faster than torch, unless told otherwise."""
    if problem.model == "preact-resnet18":
        return _WITH_BATCHNORM
    return "kernels" if kernels and problem.model in ("logistic", "svm") and not problem.augmented else "auto"


def table1(protocol: Protocol) -> Exhibit:
    """Test errors of SGD and ordered SGD: 18 rows, and the Semeion logistic row with augmentation of Appendix C."""
    rows = tuple(problem_row(name, protocol, printed) for name, printed in (TABLE1 | APPENDIX).items())
    return Exhibit("table1", "Test errors of SGD and ordered SGD", "test_error", rows, notes=(EPOCHS,))


def table2(protocol: Protocol) -> Exhibit:
    """Seconds per epoch in five of the rows with augmentation."""
    return _times("table2", "Seconds per epoch, five problems", TABLE2, protocol)


def table4(protocol: Protocol) -> Exhibit:
    """Seconds per epoch in all rows of Table 1."""
    return _times("table4", "Seconds per epoch, all problems", TABLE4, protocol)


def _times(name: str, title: str, printed: dict[str, PrintedRow], protocol: Protocol) -> Exhibit:
    rows = tuple(_time_row(problem, protocol, row) for problem, row in printed.items())
    note = "The paper's seconds are of GPUs: compare the ratio of two arms, not the seconds."
    return Exhibit(name, title, "seconds", rows, serial=True, notes=(EPOCHS, note))


def _time_row(name: str, protocol: Protocol, printed: PrintedRow) -> RecipeRow:
    """Beside ordered SGD as this package computes it, the one line of the paper, which saves no time by itself."""
    saving = {"engine": "auto"}
    if _engine(PROBLEMS[name]) == _WITH_BATCHNORM:  # auto, which is exact, would save no time
        saving = {"engine": "rows", "batchnorm": "full-batch"}
    row = problem_row(name, protocol).but(**saving)
    arms = {**row.arms, "ordered dense": row.arms["ordered"].but(engine="dense", batchnorm=None)}
    return RecipeRow(name, row.title, arms, **printed_for(arms, printed)).but(timed=True)


def table3(protocol: Protocol) -> Exhibit:
    """Test errors on CIFAR-10 at the rate that is best for SGD, with three kinds of augmentation."""
    rows = (_searched(protocol), _searched(protocol, HELD_OUT), _random_erasing(protocol), _mixup())
    title = "Test errors at SGD's best rate, CIFAR-10, three kinds of augmentation"
    return Exhibit("table3", title, "test_error", rows)


def _searched(protocol: Protocol, validation: float = 0.0) -> RecipeRow:
    """Standard augmentation: SGD's best rate of a grid, by its test error as published, or by a held-out share."""
    name = "cifar10-preact-resnet18-aug"
    row = problem_row(name, protocol, None if validation else TABLE3[name])
    where = f"a held-out share of {validation:g}" if validation else "the test set, as published"
    return RecipeRow(
        name + ("-validation" if validation else ""),
        f"{row.title}; rate picked on {where}",
        row.arms,
        row.printed,
        row.place,
        row.controls,
        search=RateSearch("sgd", RATES, validation),
        notes=("The text does not say by how many runs the rate was picked: by as many as there are trials.",),
    )


def _random_erasing(protocol: Protocol) -> RecipeRow:
    """WRN-28-10 as in the authors' script, which halves the rate when q reaches s/16, plain SGD's too."""
    hidden = {"hidden_rule": True, "hidden_factor": 0.5} if protocol.hidden_rule else {}
    spec = ExperimentSpec(
        data="cifar10",
        augment="random-erasing",
        model="wrn-28-10",
        engine=_WITH_BATCHNORM,
        s=128,
        epochs=300,
        lr=0.1,
        momentum=0.9,
        weight_decay=5e-4,
        drops=(101, 201),  # after 100 and 200 epochs
        accuracy="epoch",
    ).but(**hidden)
    arms, name = against_plain(spec), "cifar10-wrn-28-10-random-erasing"
    notes = (
        "The text refers to Zhong et al. (2017): the numbers are of the script that the authors made of its code.",
        "That script undoes the halving at the next drop of the rate; here it stays.",
    )
    title = "CIFAR-10, WRN-28-10, random erasing"
    return RecipeRow(name, title, arms, controls=("ordered",), notes=notes, **printed_for(arms, TABLE3[name]))


def _mixup() -> RecipeRow:
    """PreActResNet18 as in Verma et al. (2019); the same in both protocols, because no script was published."""
    spec = ExperimentSpec(
        data="cifar10",
        augment="mixup",
        model="preact-resnet18",
        engine=_WITH_BATCHNORM,
        s=100,
        epochs=2000,
        lr=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-4,
        drops=(501, 1001, 1501),  # after 500, 1000 and 1500 epochs
        accuracy="clean",
    )
    arms, name = against_plain(spec), "cifar10-preact-resnet18-mixup"
    notes = (
        "The text refers to Verma et al. (2019), whose numbers these are.",
        "The authors published no script of it: both protocols are the same here.",
        "Training accuracy is that of clean images: of mixed ones it stays near 55 %, and q would never move.",
    )
    title = "CIFAR-10, PreActResNet18, mixup"
    return RecipeRow(name, title, arms, controls=("ordered",), notes=notes, **printed_for(arms, TABLE3[name]))


def table5(protocol: Protocol) -> Exhibit:
    """Test errors of Adam and ordered Adam: the 18 rows of Table 1."""
    rows = tuple(_adam_row(name, protocol, printed) for name, printed in TABLE5.items())
    return Exhibit("table5", "Test errors of Adam and ordered Adam", "test_error", rows, notes=(EPOCHS, ADAM))


def _adam_row(name: str, protocol: Protocol, printed: PrintedRow) -> RecipeRow:
    row = problem_row(name, protocol)
    ordered = row.arms["ordered"]
    engine = _engine(PROBLEMS[name], kernels=False)  # the kernels have no Adam
    arms = against_plain(ordered.but(optimizer="adam", lr=ADAM_RATE, weight_decay=0.0, engine=engine))
    return RecipeRow(name, row.title, arms, controls=("ordered adam",), **printed_for(arms, printed))
