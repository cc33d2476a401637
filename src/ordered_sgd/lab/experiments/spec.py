"""`ExperimentSpec`: the only description of a run. The same spec gives the same numbers."""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.data.protocol import KINDS, Kind
from ordered_sgd.rules import RULES, check_q

Method = Literal["sgd", "ordered", "random", "infobatch", "last-losses"]
Loss = Literal["cross-entropy", "hinge-sum", "hinge-mean", "binary"]
METHODS: tuple[Method, ...] = ("sgd", "ordered", "random", "infobatch", "last-losses")
REPLAYED: tuple[Method, ...] = ("random", "last-losses")  # repeat the q and the rates of an ordered run
LOSSES: tuple[Loss, ...] = ("cross-entropy", "hinge-sum", "hinge-mean", "binary")
OPTIMIZERS = ("sgd", "adam")
ACCURACIES = ("epoch", "pass", "clean")

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class ExperimentSpec:
    """What is trained, on what, and how; nothing that a result depends on stands elsewhere.

    Parameters
    ----------
    data, target, augment
        A name that `lab.data.load` knows, a file and its column of labels, or ``package.module:function``; and the
        kind of augmentation (`lab.data.protocol`).
    fingerprint
        Of data that no published name stands for: when the file changes, the run is another one.
    train_size, validation
        Use so many training samples only (None: all); and hold out this share of them in place of the test set.
    flipped
        Share of the training labels that is changed to a wrong class, drawn by the seed.
    model, model_options
        A name that `ordered_sgd.lab.models.build` knows, and its options as pairs.
    loss
        ``"hinge-sum"`` is the paper's text, ``"hinge-mean"`` the authors' scripts, ``"binary"`` for Figure 1.
    method
        ``"ordered"``, plain ``"sgd"``, or ``"random"``: q samples at random along `path`. Two baselines choose before
        anything is computed (`lab.experiments.baselines`): ``"infobatch"``, and ``"last-losses"`` along `path`.
    q
        Fixed number or share of samples; None for the rule.
    rule, rule_options
        Name of a rule of `ordered_sgd.rules`, the paper's being ``"AccuracyRule"``, and its options as pairs.
    trim, trim_epochs
        Drop this count or share of the largest losses of a batch first, growing over so many epochs.
    counts
        The levels of the paper's rule are 32, 16, 8 and 4 whatever s is, as in the authors' scripts.
    path
        The (q, learning rate) of every epoch that a control repeats from the ordered run.
    s, epochs
        Batch size, and passes over the training set.
    optimizer, lr, momentum, nesterov, weight_decay
        ``"sgd"`` or ``"adam"`` (torch's defaults, with this learning rate and weight decay).
    drops
        Epochs, from 1, at whose start the rate is divided by 10.
    hidden_rule, hidden_factor
        Multiply the rate once when training accuracy reaches 99.5 %, plain SGD's too, as the authors' scripts do: by
        0.1, and by 0.5 in the one with random erasing.
    accuracy
        Training accuracy for the rules: counted in the ``"epoch"`` as it goes; in a second ``"pass"`` after it, in
        training mode, which also refreshes BatchNorm's running statistics; or of ``"clean"`` images, neither augmented
        nor mixed, in evaluation mode.
    engine, batchnorm
        Of `OrderedStep`; or ``"kernels"`` for a linear model by the compiled kernels of `ordered_sgd.linear`.
    recall, candidates
        Of ``engine="memory"``: the recall to hold, or a fixed number of candidates.
    threads
        Of torch: sums depend on it in the last bits.
    timed
        Whether its seconds are to be shown: such a run is made on a quiet machine, and is another one than the same run
        among others. What nobody asks of it is left out: L and L_q are taken after the last epoch alone.
    seed
        Of initial weights, order, augmentation, dropout, and of the held-out share.
    """

    data: str = "digits"
    target: str = "-1"
    augment: Kind = "none"
    fingerprint: str = ""
    train_size: int | None = None
    validation: float = 0.0
    flipped: float = 0.0
    model: str = "logistic"
    model_options: Options = ()
    loss: Loss = "cross-entropy"
    method: Method = "ordered"
    q: float | None = None
    rule: str = "AccuracyRule"
    rule_options: Options = ()
    trim: float = 0
    trim_epochs: int = 5
    counts: bool = False
    path: tuple[tuple[int, float], ...] = ()
    s: int = 64
    epochs: int = 50
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    drops: tuple[int, ...] = (10,)
    hidden_rule: bool = False
    hidden_factor: float = 0.1
    accuracy: Literal["epoch", "pass", "clean"] = "epoch"
    engine: str = "auto"
    batchnorm: str | None = None
    recall: float = 0.95
    candidates: float | None = None
    threads: int = 1
    timed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        where = "ExperimentSpec"
        choices: dict[str, tuple[Any, ...]] = {
            "augment": KINDS,
            "loss": LOSSES,
            "method": METHODS,
            "optimizer": OPTIMIZERS,
            "accuracy": ACCURACIES,
            "rule": tuple(rule.__name__ for rule in RULES),
        }
        for name, known in choices.items():
            check_choice(where, name, getattr(self, name), known)
        if self.q is not None:
            check_q(self.q, where)
        for name, least in (("s", 1), ("epochs", 1), ("threads", 1)):
            if getattr(self, name) < least:
                remedy = f"Leave it out for {type(self).__dataclass_fields__[name].default}."
                raise ArgumentError(message(where, name, f"be at least {least}", getattr(self, name), remedy))
        for name, remedy in (("validation", "Use 0.2 to hold out a fifth."), ("flipped", "Use 0.2 for a fifth.")):
            if not 0 <= getattr(self, name) < 1:
                raise ArgumentError(message(where, name, "be a share in [0, 1)", getattr(self, name), remedy))
        if self.augment == "mixup" and self.accuracy != "clean":
            remedy = "Of mixed images it stays near 55 %, and q would never move."
            raise ArgumentError(message(where, "accuracy", "be 'clean' with mixup", repr(self.accuracy), remedy))
        if self.engine != "memory" and (self.recall, self.candidates) != (0.95, None):
            got = f"engine={self.engine!r}"
            remedy = "Leave recall and candidates out, or use engine='memory'."
            raise ArgumentError(message(where, "recall and candidates", "stand with engine='memory'", got, remedy))
        if (self.method in REPLAYED) != bool(self.path):
            remedy = "Take the path from the record of the ordered run."
            rule = "be given for method='random' and 'last-losses', and for them alone"
            raise ArgumentError(message(where, "path", rule, f"{len(self.path)} epochs of it", remedy))
        if self.path and len(self.path) != self.epochs:
            remedy = "Replay a run of the same length."
            raise ArgumentError(message(where, "path", f"have {self.epochs} epochs", len(self.path), remedy))

    def __eq__(self, other: object) -> bool:  # by what is written: q=1 is not q=1.0
        return isinstance(other, ExperimentSpec) and self._written == other._written

    def __hash__(self) -> int:
        return hash(self._written)

    @property
    def run_id(self) -> str:
        """A short name that no other spec has."""
        return hashlib.sha256(self._written.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The spec as one line of JSON, in which only what differs from the defaults is written."""
        return self._written

    @cached_property
    def _written(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: value for name, value in shown.items() if value != _DEFAULTS[name]}
        return json.dumps(changed, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ExperimentSpec":
        """The spec that `to_json` wrote.

        >>> spec = ExperimentSpec(data="mnist", model="lenet", model_options=(("hidden", 1024),), q=0.25)
        >>> ExperimentSpec.from_json(spec.to_json()) == spec
        True
        """
        return cls(**{name: _tuples(value) for name, value in json.loads(text).items()})

    def but(self, **changes: Any) -> "ExperimentSpec":
        """The same spec with some fields changed."""
        return replace(self, **changes)

    @property
    def method_name(self) -> str:
        """What a table calls it: ``"ordered"``, ``"ordered q=16"``, ``"ordered adam"``, ``"ordered memory"``, ..."""
        words: list[str] = [self.method]
        if self.optimizer == "adam":
            words = ["adam"] if self.method == "sgd" else [self.method, "adam"]
        if self.q is not None and self.method == "ordered":
            words.append(f"q={self.q!r}" if self.q == 1 else f"q={self.q:g}")  # 1 keeps one sample, 1.0 all
        if self.engine == "memory" and self.method == "ordered":
            words.append("memory")
            if self.candidates is not None:
                words.append(f"c={self.candidates:g}")
            elif self.recall != 0.95:
                words.append(f"recall={self.recall:g}")
        return " ".join(words)


_DEFAULTS = asdict(ExperimentSpec())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
