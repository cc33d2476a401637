"""A comparison in words: what was found, also when the answer is "no difference" or "worse"."""

from collections.abc import Sequence

import numpy as np

from ordered_sgd.lab.experiments.comparison import GRID, LADDER, Arm, Difference
from ordered_sgd.lab.experiments.recipes.exhibit import TRIALS
from ordered_sgd.lab.experiments.recipes.protocols import PAPER
from ordered_sgd.lab.experiments.recipes.published import TABLE1
from ordered_sgd.lab.experiments.recipes.tables import problem_row
from ordered_sgd.lab.experiments.spec import PAPER_RULE, ExperimentSpec
from ordered_sgd.lab.experiments.store import Run
from ordered_sgd.lab.report.sentences import compared, sentence, spoken
from ordered_sgd.lab.report.summary import comparable, difference, finite, seconds_to
from ordered_sgd.rules import AccuracyRule

PAPER_RATE = ExperimentSpec().lr


def verdicts(arms: Sequence[Arm]) -> list[str]:
    """What the comparison says: at the given rate, then at the best rates, then of the other arms.

    Where q never moved there is nothing to compare, and that is said instead.
    """
    sgd, ordered, random, *others = arms
    tuned, extra = [arm for arm in others if arm.tuned], [arm for arm in others if not arm.tuned]
    if never_ordered(ordered) and (not tuned or never_ordered(tuned[1])):
        return [idle(ordered, advice=True), *_extras(sgd, extra)]
    printed = beside_printed(ordered.runs[0].spec)
    return [
        *_at(f"at {_rate(ordered)}", sgd, ordered, random),
        *([printed] if printed else []),
        *(_at_best(*tuned) if tuned else []),
        *_extras(sgd, extra),
    ]


def _at(where: str, sgd: Arm, ordered: Arm, random: Arm) -> list[str]:
    """Ordered SGD against SGD and against the control, or why it is neither better nor worse."""
    if never_ordered(ordered):
        return [sentence(f"{where}, {idle(ordered).rstrip('.')}")]
    names = tuple(spoken(arm.name.partition(" at ")[0]) for arm in (ordered, sgd))
    return [
        sentence(f"{where}, {compared(ordered, sgd, names=(names[0], names[1]))}"),
        sentence(compared(ordered, random, names=(names[0], spoken("random")))),
    ]


def _at_best(sgd: Arm, ordered: Arm, random: Arm) -> list[str]:
    """The same, each at the best rate that was found, and whether a better one may lie outside of what was tried."""
    rates = [arm.runs[0].spec.lr for arm in (ordered, sgd)]
    shown = f"{rates[0]:g}" if rates[0] == rates[1] else f"{rates[0]:g} and {rates[1]:g}"
    rate = "rates" if rates[0] != rates[1] else "rate, the same for both"
    last = [
        f"No learning rate beyond {at:g} was tried, and the best of {name} may lie there."
        for name, at in zip(("ordered SGD", "SGD"), rates, strict=True)
        if at in (LADDER[0], LADDER[-1])
    ]
    return [*_at(f"at their best learning {rate} ({shown})", sgd, ordered, random), *last]


def _extras(sgd: Arm, extra: Sequence[Arm]) -> list[str]:
    """Arms that were asked for beside the three: each against plain SGD, ordered Adam against Adam."""
    named = {arm.name: arm for arm in extra}
    return [
        sentence(
            compared(arm, named["adam"] if "adam" in name else named.get("sgd" + name.removeprefix("ordered"), sgd))
        )
        for name, arm in named.items()
        if name.startswith(("ordered", "sampler"))
    ]


def _rate(arm: Arm) -> str:
    spec = arm.runs[0].spec
    whose = "the paper's learning rate" if spec.lr == PAPER_RATE and spec.optimizer == "sgd" else "a learning rate of"
    return f"{whose}, {spec.lr:g}" if whose.startswith("the") else f"{whose} {spec.lr:g}"


def idle(arm: Arm, *, advice: bool = False) -> str:
    """That q never moved, why, and on request what to try."""
    if not isinstance(arm.runs[0].spec.q, AccuracyRule):
        return "q never moved: every batch was kept whole, so ordered SGD was plain SGD."
    threshold = PAPER_RULE.thresholds[0]
    reached = max((row.train_accuracy or 0.0 for run in arm.runs for row in run.rows), default=0.0)
    how = f"stayed below {threshold:.0%}" if reached < threshold else f"passed {threshold:.0%} in the last epoch only"
    text = f"q never moved: training accuracy {how.replace('%', ' %')}, so ordered SGD was plain SGD."
    return f"{text} Try --q 0.25 for a fixed q, or more --epochs." if advice else text


def never_ordered(arm: Arm) -> bool:
    """Whether no epoch of any run left a sample out."""
    return bool((arm.total("backpropagated") == arm.total("samples")).all()) and not arm.diverged


def beside_printed(spec: ExperimentSpec) -> str | None:
    """What the paper prints for the setting of a comparison, as a remark; None for one that is not in its Table 1."""
    for name in TABLE1:
        row = problem_row(name, PAPER, TABLE1[name])
        printed, theirs = TABLE1[name], row.arms["ordered"]
        fields = ("data", "augment", "model", "loss", "s", "lr", "optimizer", "train_size", "momentum", "weight_decay")
        if all(getattr(spec, field) == getattr(theirs, field) for field in fields):
            text = (
                f"The paper printed {printed.plain.mean:.2f} % for SGD and {printed.ordered.mean:.2f} % for ordered SGD"
            )
            text += f", after {theirs.epochs} epochs over {TRIALS} seeds"
            return f"{text}." if spec.epochs == theirs.epochs else f"{text}; here it is {spec.epochs} epochs."
    return None


def ends_grid(arm: Arm) -> bool:
    """Whether its rate is the smallest or the largest of those that exhibits try."""
    return arm.runs[0].spec.lr in (GRID[0], GRID[-1])


def against_first(arms: Sequence[Arm]) -> list[str]:
    """A sentence for every arm but the first: how its error and its processor time compare with the first one's."""
    plain, *others = arms
    return [f"{compared(arm, plain)}; {_in_time(arm, plain)}." for arm in others]


def _in_time(arm: Arm, plain: Arm) -> str:
    """Shares of the plain run's time with the same seed; seconds of another processor are not its measure."""
    time, error = (_of(spoken(plain.name), what) for what in ("training time", "last error"))
    whole = plain.total("cpu_seconds")
    shares, until = arm.total("cpu_seconds") / whole, seconds_to(arm, plain, "cpu_seconds") / whole
    reached, seeds = int(np.isfinite(until).sum()), len(arm.runs)
    if any(_processor(one) != _processor(other) for one, other in zip(arm.runs, plain.runs, strict=True)):
        return f"it reaches {error} in {reached} of {seeds} seeds, but ran on another processor: no times"
    after = f" after {finite(np.mean, until):.2f} of it" if reached else ""
    share = f"{finite(np.mean, shares):.2f} of {time}"
    return f"it takes {share}, and reaches {error}{after} in {reached} of {seeds} seeds"


def _of(name: str, what: str) -> str:
    return f"the {what} of {name}" if " at " in name or " by " in name else f"{name}'s {what}"


def _processor(run: Run) -> str | None:
    return run.versions.get("processor")


def judged(arm: Arm, other: Arm, number: str = "test_error") -> str:
    """What the paired difference of two arms allows to say; of accuracies the larger is the better."""
    if not comparable(arm, other):
        return "not to be compared with"
    return in_words(difference(other, arm, number) if number == "train_accuracy" else difference(arm, other, number))


def in_words(difference: Difference) -> str:
    """What the interval of a difference in error allows to say.

    >>> in_words(Difference(-1.0, 0.5, 10)), in_words(Difference(-1.0, 1.5, 10))
    ('better than', 'not clearly different from')
    """
    if not difference.clear:
        return "not clearly different from"
    return "better than" if difference.mean < 0 else "worse than"
