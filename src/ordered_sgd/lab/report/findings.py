"""A comparison in words: what was found, also when the answer is "no difference" or "worse"."""

from collections.abc import Sequence

import numpy as np

from ordered_sgd.lab.experiments.comparison import GRID, Arm, Difference
from ordered_sgd.lab.experiments.store import Run
from ordered_sgd.lab.report.summary import comparable, difference, finite, interval, seconds_to


def verdicts(arms: Sequence[Arm]) -> list[str]:
    """What the comparison says, a sentence for each pair that matters."""
    sgd, ordered, random, *others = arms
    same = "at the same learning rate"
    pairs = [(ordered, sgd, same), (ordered, random, "with the same q and learning rate")]
    named = {arm.name: arm for arm in others}
    pairs += [
        (arm, named["adam"] if "adam" in name else named.get("sgd" + name.removeprefix("ordered"), sgd), same)
        for name, arm in named.items()
        if name.startswith("ordered") and not arm.tuned
    ]
    tuned = [arm for arm in others if arm.tuned]
    if tuned:
        pairs.append((tuned[1], tuned[0], "each at its best rate"))
        pairs.append((tuned[1], tuned[2], "with the same q and learning rate"))
    idle = [f"{arm.name} kept every batch whole: {_IDLE}" for arm in (ordered, *tuned[1:2]) if never_ordered(arm)]
    # A search cannot say that a rate at the end of its grid is the best.
    last = "no rate beyond {:g} was tried, and its best may lie there."
    ends = [f"{arm.name}: {last.format(arm.runs[0].spec.lr)}" for arm in tuned[:2] if ends_grid(arm)]
    points = _POINTS if sgd.runs[0].spec.loss != "squared" else _UNEXPLAINED
    said = [f"{a.name} is {judged(a, b)} {b.name} {how}: {in_points(a, b, points)}." for a, b, how in pairs]
    return [*said, *ends, *idle]


def ends_grid(arm: Arm) -> bool:
    """Whether its rate is the smallest or the largest of those that were tried."""
    return arm.runs[0].spec.lr in (GRID[0], GRID[-1])


_POINTS = "points of test error"
_UNEXPLAINED = "points of unexplained variance"
_IDLE = "training never became accurate enough for q to move, and this is plain SGD. Train longer, or fix q (--q 0.5)."


def never_ordered(arm: Arm) -> bool:
    """Whether no epoch of any run left a sample out."""
    return bool((arm.total("backpropagated") == arm.total("samples")).all()) and not arm.diverged


def against_first(arms: Sequence[Arm]) -> list[str]:
    """A sentence for every arm but the first: how its error and its processor time compare with the first one's."""
    plain, *others = arms
    judgements = [(arm, f"{judged(arm, plain)} {plain.name}: {in_points(arm, plain, _POINTS)}") for arm in others]
    return [f"{arm.name} is {judgement}; {_in_time(arm, plain)}." for arm, judgement in judgements]


def _in_time(arm: Arm, plain: Arm) -> str:
    """Shares of the plain run's time with the same seed; seconds of another processor are not its measure."""
    whole = plain.total("cpu_seconds")
    shares, until = arm.total("cpu_seconds") / whole, seconds_to(arm, plain, "cpu_seconds") / whole
    reached, seeds = int(np.isfinite(until).sum()), len(arm.runs)
    if any(_processor(one) != _processor(other) for one, other in zip(arm.runs, plain.runs, strict=True)):
        return f"it reaches its last error in {reached} of {seeds} seeds, but ran on another processor: no times"
    after = f" after {finite(np.mean, until):.2f} of it" if reached else ""
    share = f"{finite(np.mean, shares):.2f} of its training time"
    return f"it takes {share}, and reaches its last error{after} in {reached} of {seeds} seeds"


def _processor(run: Run) -> str | None:
    return run.versions.get("processor")


def judged(arm: Arm, other: Arm, number: str = "test_error") -> str:
    """What the paired difference of two arms allows to say; of accuracies the larger is the better."""
    if not comparable(arm, other):
        return "not to be compared with"
    return in_words(difference(other, arm, number) if number == "train_accuracy" else difference(arm, other, number))


def in_points(arm: Arm, other: Arm, unit: str, number: str = "test_error") -> str:
    """The paired difference of two arms with its interval, or why there is none."""
    if not comparable(arm, other):
        failed = (f"{one.name} diverged in {one.diverged} of {len(one.runs)} seeds" for one in (arm, other))
        return ", ".join(text for text, one in zip(failed, (arm, other), strict=True) if one.diverged)
    found = difference(arm, other, number)
    if found.seeds < 2:
        return f"{found.mean:+.2f} {unit} in one seed, which tells nothing"
    return f"{interval(found.mean, found.half)} {unit} over {found.seeds} seeds"


def in_words(difference: Difference) -> str:
    """What the interval of a difference in error allows to say.

    >>> in_words(Difference(-1.0, 0.5, 10)), in_words(Difference(-1.0, 1.5, 10))
    ('better than', 'not clearly different from')
    """
    if not difference.clear:
        return "not clearly different from"
    return "better than" if difference.mean < 0 else "worse than"
