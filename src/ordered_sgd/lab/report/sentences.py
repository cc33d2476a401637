"""The difference of two arms as a sentence: methods as people name them, and never more than the numbers allow."""

from typing import NamedTuple

import numpy as np

from ordered_sgd.lab.experiments.comparison import Arm, Difference
from ordered_sgd.lab.report.summary import comparable, difference, interval, spreads, values_of

RANDOM = "a random choice of as many samples"
_NAMES = {
    "sgd": "SGD",
    "adam": "Adam",
    "ordered": "ordered SGD",
    "ordered adam": "ordered Adam",
    "random": RANDOM,
    "sampler": "the batch sampler",
    "infobatch": "InfoBatch",
    "infobatch-sampler": "the InfoBatch sampler",
    "last-losses": "a choice by the losses of the epoch before",
}


class _Measure(NamedTuple):
    """How a number is spoken of: its name, its unit, that of a difference, and the words for less and for more."""

    name: str
    unit: str
    points: str
    less: str
    more: str


_MEASURES = {
    "test_error": _Measure("test error", " %", "points", "has a lower test error than", "has a higher test error than"),
    "train_accuracy": _Measure(
        "training accuracy", " %", "points", "has a lower training accuracy than", "has a higher training accuracy than"
    ),
    "unexplained": _Measure(
        "unexplained variance",
        " % of the variance unexplained",
        "points of unexplained variance",
        "leaves less unexplained than",
        "leaves more unexplained than",
    ),
    "seconds": _Measure("time per epoch", " s per epoch", "s", "takes less time than", "takes more time than"),
}


def spoken(name: str) -> str:
    """The name of an arm as people say it.

    >>> spoken("ordered"), spoken("sgd at 0.03"), spoken("ordered adam"), spoken("sgd balanced weights")
    ('ordered SGD', 'SGD at 0.03', 'ordered Adam', 'SGD with balanced class weights')
    >>> spoken("ordered q=0.25"), spoken("ordered rows"), spoken("ordered loss mass")
    ('ordered SGD with q = 0.25', 'ordered SGD by rows', 'ordered SGD by loss mass')
    >>> spoken("ordered memory recall=0.8"), spoken("random for ordered rows")
    ('ordered SGD with a memory, recall = 0.8', 'random for ordered rows')
    """
    base, at, rate = name.partition(" at ")
    method = max((known for known in _NAMES if f"{base} ".startswith(f"{known} ")), key=len, default="")
    rest = base.removeprefix(method).strip()
    if not method or (rest and method not in ("sgd", "adam", "ordered", "ordered adam")):
        return name
    return f"{_NAMES[method]}{''.join(_detail(word) for word in _split(rest))}{at}{rate}"


def _split(rest: str) -> list[str]:
    """The parts of a name behind the method: class weights, q or a rule, and an engine with its options."""
    found = [part for part in ("balanced weights", "loss mass") if part in rest]
    for part in found:
        rest = rest.replace(part, "").strip()
    q, _, engine = rest.partition(" ") if rest.startswith("q=") else ("", "", rest)
    return [*found, *filter(None, (q, engine))]


def _detail(part: str) -> str:
    if part == "balanced weights":
        return " with balanced class weights"
    if part.startswith("q="):
        return f" with q = {part.removeprefix('q=')}"
    if part.startswith("memory"):
        return f" with a memory{part.removeprefix('memory').replace(' ', ', ').replace('=', ' = ')}"
    return f" by {part}"


def compared(arm: Arm, other: Arm, number: str = "test_error", *, names: tuple[str, str] | None = None) -> str:
    """What the paired difference of two arms allows to say, without the full stop.

    `names` stand for the arms; by default they are `spoken`.
    """
    one, two = names or (spoken(arm.name), spoken(other.name))
    if not comparable(arm, other):
        failed = zip((one, two), (arm, other), strict=True)
        why = " and ".join(
            f"{name} diverged in {a.diverged} of {len(a.runs)} seeds" for name, a in failed if a.diverged
        )
        return f"{one} cannot be compared with {two}: {why}"
    found, measure = difference(arm, other, number), _measure(arm, number)
    first, second = (f"{name} ({_mean(a, number):.2f}{measure.unit})" for name, a in ((one, arm), (two, other)))
    if found.clear:
        words = measure.less if found.mean < 0 else measure.more
        return f"{first} {words} {second}: {over_seeds(found, measure.points)}"
    if found.seeds < 2:
        return f"{first} and {second} differ by {found.mean:+.2f} {measure.points} in one seed, which tells nothing"
    if not spreads(found):
        if abs(found.mean) < 1e-9:
            return (
                f"{one} and {two} have the same {measure.name} in all {found.seeds} seeds: {first.split('(')[-1][:-1]}"
            )
        same = f"{found.mean:+.2f} {measure.points} in all {found.seeds} seeds"
        return f"{first} and {second} differ by {same}; without a spread over seeds there is no interval"
    return f"{first} and {second} do not differ clearly: {over_seeds(found, measure.points)}"


def _measure(arm: Arm, number: str) -> _Measure:
    """How the number is spoken of; the test error of a regression is a share of the variance."""
    if number == "test_error" and arm.runs[0].spec.loss == "squared":
        return _MEASURES["unexplained"]
    return _MEASURES.get(number, _MEASURES["test_error"])


def over_seeds(found: Difference, points: str) -> str:
    """A difference with its interval, with as many decimals as it takes to show whether the interval has zero in it.

    >>> over_seeds(Difference(-1.0, 0.25, 5), "points"), over_seeds(Difference(0.0412, 0.0391, 5), "points")
    ('-1.00 ± 0.25 points over 5 seeds', '+0.041 ± 0.039 points over 5 seeds')
    """
    for digits in (2, 3, 4):
        shown = (round(abs(found.mean), digits), round(found.half, digits))
        if (shown[0] > shown[1]) == found.clear:
            return f"{found.mean:+.{digits}f} ± {found.half:.{digits}f} {points} over {found.seeds} seeds"
    return f"{interval(found.mean, found.half)} {points} over {found.seeds} seeds"


def sentence(text: str) -> str:
    """The text with a capital first letter and a full stop.

    >>> sentence("ordered SGD is better")
    'Ordered SGD is better.'
    """
    return f"{text[:1].upper()}{text[1:]}."


def _mean(arm: Arm, number: str) -> float:
    return float(np.mean(values_of(arm, number)[0]))
