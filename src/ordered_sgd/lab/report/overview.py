"""All that was reproduced in a few lines: how often ordered SGD was better, not clearly different, or worse."""

from collections import Counter
from collections.abc import Iterator, Sequence

from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.recipes.exhibit import Exhibit, Reproduced
from ordered_sgd.lab.experiments.requests import Request
from ordered_sgd.lab.report.findings import judged, never_ordered
from ordered_sgd.lab.report.verdicts import at_best_rates

NOTES = (
    "A line counts rows, and of best rates problems: better and worse when a 95 % interval of the difference, paired "
    "over seeds, leaves out zero. Of so many comparisons some do so by chance.",
    "random: as many samples, drawn at random. Rows in which q never moved are left out, and so are labels made wrong.",
)
_NUMBERS = ("test_error", "train_accuracy")  # that are counted; times and losses are not
_WORDS = ("better than", "not clearly different from", "worse than")
_DIVERGED = "not to be compared with"


def overview(asked: Sequence[tuple[Request, Sequence[Reproduced]]]) -> list[dict[str, str]]:
    """A line for each exhibit and what ordered SGD is held against there."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for request, results in asked:
        shown, name = request.shown(), f"{numbered(request.exhibit)}, {request.how.name}"
        if any(size is not None for size in (request.epochs, request.train_size, request.width)):
            name += ", smaller"  # not counted with whole rows
        if shown.along or shown.number not in _NUMBERS:
            continue
        for against, ordered, other in _pairs(shown, results):
            if not never_ordered(ordered):
                line = counts.setdefault((name, against), Counter())
                line[judged(ordered, other, shown.number)] += 1
    words = [*_WORDS, *([_DIVERGED] if any(_DIVERGED in line for line in counts.values()) else [])]
    return [
        {"exhibit, protocol": name, "ordered against": against}
        | {word.rpartition(" ")[0]: str(line[word]) for word in words}
        for (name, against), line in counts.items()
    ]


def _pairs(shown: Exhibit, results: Sequence[Reproduced]) -> Iterator[tuple[str, Arm, Arm]]:
    """What is compared: in words, an arm of ordered SGD, and the arm that it is held against."""
    if shown.crossed:
        for ordered, plain in at_best_rates(results, shown.number).values():
            yield "plain, each at its best rate", ordered, plain
    for one in results:
        if not shown.crossed:
            for arm in one.arms[1:]:
                if arm.name.startswith("ordered"):
                    _, _, engine = arm.name.partition(" ")
                    yield f"plain, by {engine}" if shown.compared else "plain", arm, one.arms[0]
        for arm in one.arms:
            if arm.name == "random":
                yield "random, at the same rates", one.arm(one.row.controls[0]), arm


def numbered(name: str) -> str:
    """``table1`` as Table 1.

    >>> numbered("figure4"), numbered("ablation"), numbered("whole-training")
    ('Figure 4', 'Ablation', 'Whole training')
    """
    word = name.rstrip("0123456789")
    return f"{word.capitalize().replace('-', ' ')} {name[len(word) :]}".strip()
