"""`ExperimentSpec`: the only description of a run. The same spec gives the same numbers."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.data.protocol import KINDS, Kind
from ordered_sgd.lab.data.target import Task
from ordered_sgd.lab.experiments.spec_engines import ENGINES, OPTIONS, SpecEngine
from ordered_sgd.rules import RULES, AccuracyRule, LossMassRule, Rule, check_q

Method = Literal["sgd", "ordered", "random", "infobatch", "last-losses", "sampler", "infobatch-sampler"]
Loss = Literal["cross-entropy", "hinge-sum", "hinge-mean", "binary", "squared"]
METHODS: tuple[Method, ...] = get_args(Method)
SAMPLED: tuple[Method, ...] = ("sampler", "infobatch-sampler")  # load only what they pick
REPLAYED: tuple[Method, ...] = ("random", "last-losses")  # repeat q and learning rate of an ordered run
LOSSES: tuple[Loss, ...] = ("cross-entropy", "hinge-sum", "hinge-mean", "binary", "squared")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "augment": KINDS,
    "loss": LOSSES,
    "method": METHODS,
    "optimizer": ("sgd", "adam"),
    "task": ("auto", "classification", "regression"),
    "class_weight": ("none", "balanced"),
    "accuracy": ("epoch", "pass", "clean"),
    "engine": tuple(ENGINES),
}
PAPER_RULE = AccuracyRule()

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False)
class ExperimentSpec:
    """What is trained, on which data, and how: everything that the result of a run depends on.

    Parameters
    ----------
    data, target, augment
        A name that `lab.data.load` knows, a file and its label column, or ``package.module:function``; and the kind of
        augmentation (`lab.data.protocol`).
    task, class_weight
        Of a table ``"classification"`` or ``"regression"``; ``"auto"`` looks at the target. ``"balanced"`` weighs each
        loss by n / (classes * samples of its class), ``"none"`` does not.
    fingerprint
        Identifies data without a published name: if the file changes, it is a different run.
    train_size, validation
        Use only this many training samples (None: all), and hold out this share of them in place of the test set.
    flipped
        Share of the training labels that are replaced by a wrong class, drawn by the seed.
    model, model_options
        A name that `ordered_sgd.lab.models.build` knows, and its options as pairs.
    loss
        ``"hinge-sum"`` is the paper's text, ``"hinge-mean"`` the authors' scripts, ``"binary"`` is for Figure 1,
        ``"squared"`` for a regression: half the square of the residual, in standard deviations of the target.
    method
        ``"ordered"``, plain ``"sgd"``, or ``"random"``: q random samples, with the q of `path`. Two baselines choose
        samples before computing anything (`lab.experiments.baselines`): ``"infobatch"``, and ``"last-losses"``, which
        also follows `path`. ``"sampler"`` and ``"infobatch-sampler"`` choose before anything is loaded
        (`lab.experiments.sampled_epochs`).
    q
        A fixed count or share of each batch, or a rule of `ordered_sgd.rules`. A run with a `path` does not use it.
    trim, trim_epochs
        Drop this count or share of the largest losses of a batch first, growing over `trim_epochs` epochs.
    counts
        Use the levels 32, 16, 8 and 4 for the paper's rule at every batch size, as the authors' scripts do.
    path
        The (q, learning rate) of every epoch that a control repeats from the ordered run.
    s, epochs
        Batch size, and passes over the training set.
    optimizer, lr, momentum, nesterov, weight_decay
        ``"sgd"`` or ``"adam"`` (torch's defaults, with this learning rate and weight decay).
    drops
        Epochs, from 1, at whose start the learning rate is divided by 10.
    hidden_rule, hidden_factor
        Multiply the learning rate by this factor once, when training accuracy reaches 99.5 %, also for plain SGD. The
        authors' scripts do so: by 0.1, and by 0.5 in the one with random erasing.
    accuracy
        Training accuracy for the rules: counted during the ``"epoch"``; in a second ``"pass"`` in training mode, which
        also refreshes BatchNorm's running statistics; or on ``"clean"`` images, neither augmented nor mixed, in
        evaluation mode.
    engine
        An engine of `OrderedStep`, or ``"kernels"`` to train a linear model with the compiled kernels of
        `ordered_sgd.linear`.
    batchnorm, recall, candidates
        Options of the engine: how ``"rows"``, ``"twopass"`` and ``"memory"`` treat BatchNorm; the recall that
        ``"memory"`` aims at, or its fixed number of candidates.
    threads
        Threads of torch; the last bits of sums depend on their number.
    timed
        Whether the run's times are reported. A timed run needs a quiet machine, differs from the same run without
        `timed`, and evaluates L and L_q only after the last epoch.
    seed
        Seed of initial weights, order, augmentation, dropout and the held-out share.
    """

    data: str = "digits"
    target: str = "-1"
    task: Task = "auto"
    class_weight: str = "none"
    augment: Kind = "none"
    fingerprint: str = ""
    train_size: int | None = None
    validation: float = 0.0
    flipped: float = 0.0
    model: str = "logistic"
    model_options: Options = ()
    loss: Loss = "cross-entropy"
    method: Method = "ordered"
    q: float | Rule = PAPER_RULE
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
        for name, known in _CHOICES.items():
            check_choice(where, name, getattr(self, name), known)
        if self.fixed_q is not None:
            check_q(self.fixed_q, where)
        for holds, name, rule, got, remedy in self._constraints():
            if not holds:
                raise ArgumentError(message(where, name, rule, got, remedy))

    def _constraints(self) -> Iterator[tuple[bool, str, str, object, str]]:
        """Whether a field is as it must be; its name, the rule, what it is, and the remedy."""
        rules = f"be a number or one of the rules {', '.join(_RULES)}"
        known = self.fixed_q is not None or type(self.q) in RULES
        yield known, "q", rules, repr(self.q), "Use q=AccuracyRule() for the paper's schedule."
        for name in ("s", "epochs", "threads"):
            value, usual = getattr(self, name), type(self).__dataclass_fields__[name].default
            yield value >= 1, name, "be at least 1", value, f"Leave it out for {usual}."
        share, half_open = "be a share in (0, 1]", "be a share in [0, 1)"
        yield 0 <= self.validation < 1, "validation", half_open, self.validation, "Use 0.2 to hold out a fifth."
        yield 0 <= self.flipped < 1, "flipped", half_open, self.flipped, "Use 0.2 for a fifth."
        yield 0 < self.recall <= 1, "recall", share, self.recall, "Use recall=0.95, or candidates= for a fixed number."
        clean, remedy = self.accuracy == "clean", "Accuracy on mixed images stays near 55 %, and q would never move."
        yield clean or self.augment != "mixup", "accuracy", "be 'clean' with mixup", repr(self.accuracy), remedy
        for name in self._changed(OPTIONS):
            takes = [repr(engine) for engine in ENGINES if name in ENGINES[engine].options]
            rule, remedy = f"be used with engine {' or '.join(takes)}", f"Leave {name} out, or change the engine."
            yield repr(self.engine) in takes, name, rule, f"engine={self.engine!r}", remedy
        replayed, given = self.method in REPLAYED, len(self.path)
        rule, got = f"be given for {' and '.join(REPLAYED)} only", f"{given} epochs for method={self.method!r}"
        yield replayed == bool(given), "path", rule, got, "Take the path from the record of the ordered run."
        yield given in (0, self.epochs), "path", f"have {self.epochs} epochs", given, "Replay a run of the same length."

    def __eq__(self, other: object) -> bool:  # by what is written: q=1 is not q=1.0
        return isinstance(other, ExperimentSpec) and self._written == other._written

    def __hash__(self) -> int:
        return hash(self._written)

    @property
    def run_id(self) -> str:
        """A short name that no other spec has."""
        return hashlib.sha256(self._written.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The spec as one line of JSON, without the fields that have their default."""
        return self._written

    @cached_property
    def _written(self) -> str:
        changed = self._changed([field.name for field in fields(self)])
        if "q" in changed and self.fixed_q is None:
            changed |= _rule_to_json(changed.pop("q"))
        return json.dumps(changed, sort_keys=True)

    def _changed(self, names: Iterable[str]) -> dict[str, Any]:
        """The fields among these that differ from their defaults."""
        defaults = type(self).__dataclass_fields__
        return {name: value for name in names if (value := getattr(self, name)) != defaults[name].default}

    @classmethod
    def from_json(cls, text: str) -> "ExperimentSpec":
        """The spec that `to_json` wrote.

        >>> spec = ExperimentSpec(data="mnist", model="lenet", model_options=(("hidden", 1024),), q=0.25)
        >>> ExperimentSpec.from_json(spec.to_json()) == spec
        True
        """
        given = {name: _tuples(value) for name, value in json.loads(text).items()}
        if "rule" in given or "rule_options" in given:
            given["q"] = _rule_from_json(given.pop("rule", AccuracyRule.__name__), given.pop("rule_options", ()))
        return cls(**given)

    def but(self, **changes: Any) -> "ExperimentSpec":
        """The same spec with some fields changed."""
        return replace(self, **changes)

    @property
    def fixed_q(self) -> float | None:
        """The q of every epoch, where it is a number; None where a rule moves it."""
        return self.q if isinstance(self.q, int | float) else None

    @property
    def engine_used(self) -> SpecEngine:
        """What the name of the engine stands for."""
        return ENGINES[self.engine]

    @property
    def engine_options(self) -> tuple[str, dict[str, Any]]:
        """The name of `OrderedStep`'s engine, and its options."""
        engine = self.engine if self.method == "ordered" else self.engine_used.other or self.engine
        return engine, {name: getattr(self, name) for name in ENGINES[engine].options}

    @property
    def method_name(self) -> str:
        """What a table calls it: ``"ordered"``, ``"ordered q=16"``, ``"ordered adam"``, ``"ordered memory"``, ..."""
        words: list[str] = [self.method]
        if self.optimizer == "adam":
            words = ["adam"] if self.method == "sgd" else [self.method, "adam"]
        if self.class_weight != "none":
            words.append(f"{self.class_weight} weights")
        if self.method == "ordered":
            if self.fixed_q is not None:
                words.append(f"q={self.q!r}" if self.q == 1 else f"q={self.q:g}")  # 1 keeps one sample, 1.0 all
            elif isinstance(self.q, LossMassRule):
                words.append("loss mass")
            if self.engine_used.named:
                options = self._changed(self.engine_used.options)
                shown = [(self.engine_used.options[name], value) for name, value in options.items()]
                words += [self.engine, *(f"{n}={v}" if isinstance(v, str) else f"{n}={v:g}" for n, v in shown)]
        return " ".join(words)


_RULES = {rule.__name__: rule for rule in RULES}


def _rule_to_json(rule: Any) -> dict[str, Any]:
    """A rule as its name and options, leaving out what is default: specs had two fields for it."""
    options = sorted((f.name, value) for f in fields(rule) if (value := getattr(rule, f.name)) != f.default)
    named = {"rule": type(rule).__name__, "rule_options": options}
    return {name: value for name, value in named.items() if value and value != AccuracyRule.__name__}


def _rule_from_json(name: str, options: Options) -> Rule:
    check_choice("ExperimentSpec", "rule", name, tuple(_RULES))
    return _RULES[name](**dict(options))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
