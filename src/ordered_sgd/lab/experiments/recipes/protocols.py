"""The two protocols: the paper's text, and the scripts that its authors published.

They differ, and every difference is a switch that can be turned alone. Where the text is silent, `PAPER` takes the
scripts' value: epochs (50 without augmentation, 20 for Fashion-MNIST, 200 with it), the last smaller batch (kept), the
pass that training accuracy is taken in, scaling and augmentation (`lab.data.protocol`), the test error of the last
epoch.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.experiments.spec import ExperimentSpec, Loss, Options


@dataclass(frozen=True)
class Protocol:
    """A set of switches over `ExperimentSpec`. The defaults are the paper's text.

    Parameters
    ----------
    name
        Of the preset, and of the switches that were turned.
    last_drop
        Without augmentation, divide the rate by 10 at the start of epoch 50 too, which is the last.
    hidden_rule
        Multiply the rate by 0.1 once when training accuracy reaches 99.5 %, that of plain SGD as well; by 0.5 for
        random erasing.
    counts
        q is 32, 16, 8, 4 whatever s is, in place of floor(s/2), floor(s/4), ... The two are the same for s = 64.
    hinge
        The hinge of the SVM is the ``"sum"`` over the other classes, or that sum divided by the number of classes.
    lenet_hidden, lenet_dropout
        Units of LeNet's first fully connected layer, and the share of them that is dropped in training.
    accuracy
        Where training accuracy is taken, as in `ExperimentSpec`. The text is silent.

    Examples
    --------
    >>> PAPER.hidden_rule, AUTHORS_CODE.hidden_rule, PAPER.accuracy == AUTHORS_CODE.accuracy
    (False, True, True)
    """

    name: str = "paper"
    last_drop: bool = False
    hidden_rule: bool = False
    counts: bool = False
    hinge: Literal["sum", "mean"] = "sum"
    lenet_hidden: int = 1014
    lenet_dropout: float = 0.0
    accuracy: Literal["epoch", "pass", "clean"] = "pass"


PAPER = Protocol()
AUTHORS_CODE = Protocol(
    "authors-code",
    last_drop=True,
    hidden_rule=True,
    counts=True,
    hinge="mean",
    lenet_hidden=1024,
    lenet_dropout=0.5,
)
PROTOCOLS = {protocol.name: protocol for protocol in (PAPER, AUTHORS_CODE)}
SWITCHES = tuple(field.name for field in fields(Protocol) if field.name != "name")


def preset(name: str, **switches: Any) -> Protocol:
    """The protocol of that name, with some switches turned.

    >>> preset("paper", hidden_rule=True).name
    'paper, hidden_rule=True'
    """
    check_choice("preset", "name", name, tuple(PROTOCOLS))
    for switch, value in switches.items():
        check_choice("preset", "switch", switch, SWITCHES)
        _check_value(switch, value)
    turned = ", ".join([name, *(f"{switch}={value}" for switch, value in switches.items())])
    return replace(PROTOCOLS[name], **switches, name=turned)


def _check_value(switch: str, value: Any) -> None:
    """Refuse a value that would run as another one, or fail only when a model is built."""
    kind, remedy = get_type_hints(Protocol)[switch], f"The paper's is {getattr(PAPER, switch)}."
    if choices := get_args(kind):
        check_choice("preset", switch, value, choices, remedy)
        return
    rule, holds = {
        bool: ("be True or False", isinstance(value, bool)),
        int: ("be an int of at least 1", type(value) is int and value >= 1),
        float: ("be a share in [0, 1)", type(value) in (int, float) and 0 <= value < 1),
    }[kind]
    if not holds:
        raise ArgumentError(message("preset", switch, rule, repr(value), remedy))


def base(data: str, model: str, protocol: Protocol, *, augmented: bool = False) -> ExperimentSpec:
    """The ordered run of a data set and a model with the hyper-parameters that the paper fixed for all of them.

    >>> spec = base("mnist", "lenet", AUTHORS_CODE)
    >>> spec.epochs, spec.drops, dict(spec.model_options)
    (50, (10, 50), {'dropout': 0.5, 'hidden': 1024})
    """
    return ExperimentSpec(
        data=data,
        augment="standard" if augmented else "none",
        model=model,
        model_options=_options(model, protocol),
        loss=_loss(model, protocol),
        counts=protocol.counts,
        s=64,  # this, the optimizer and its three numbers: the text, "Experiment with fixed hyper-parameters"
        optimizer="sgd",
        lr=0.01,
        momentum=0.9,
        weight_decay=1e-4,
        epochs=_epochs(data, augmented),
        drops=_drops(augmented, protocol),
        hidden_rule=protocol.hidden_rule,
        accuracy=protocol.accuracy,
    )


def _epochs(data: str, augmented: bool) -> int:
    """The text is silent: the scripts' numbers."""
    if augmented:
        return 200
    return 20 if data == "fashion-mnist" else 50


def _drops(augmented: bool, protocol: Protocol) -> tuple[int, ...]:
    """The appendix of the text, "For other numerical results"; epoch 50 is the scripts' own."""
    if augmented:
        return 10, 100
    return (10, 50) if protocol.last_drop else (10,)


def _options(model: str, protocol: Protocol) -> Options:
    if model != "lenet":
        return ()
    return ("dropout", protocol.lenet_dropout), ("hidden", protocol.lenet_hidden)


def _loss(model: str, protocol: Protocol) -> Loss:
    if model != "svm":
        return "cross-entropy"
    return "hinge-mean" if protocol.hinge == "mean" else "hinge-sum"
