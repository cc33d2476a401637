"""What a `SelectionTracker` saw: the data map, the losses over time, the classes chosen, and the hardest samples."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.diagnostics.tracker import LEVELS, ClassShare, SelectionTracker
from ordered_sgd.lab.data.naming import shortened
from ordered_sgd.lab.experiments.artifacts import TRACKER, unpack_tracker
from ordered_sgd.lab.experiments.comparison import Arm
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.report.canvas import COLOURS, drawable, new_figure
from ordered_sgd.lab.report.contact import contact_sheet

_RING = COLOURS[2]
_MOST_CLASSES = 20  # bars that still have room for their names
_HEIGHT = 3.6  # inches


class Chosen(NamedTuple):
    """What the report says of the samples that a run chose: sentences, and functions that draw pictures, by title."""

    found: str
    pictures: dict[str, Callable[[], Any]]


def chosen_by(arms: Sequence[Arm], artifact: Callable[[ExperimentSpec, str], bytes | None]) -> Chosen | None:
    """What the first run of the first ordered arm chose; None where no tracker is recorded or it saw no epoch."""
    spec = next((arm.runs[0].spec for arm in arms if arm.runs[0].spec.method == "ordered"), None)
    content = None if spec is None else artifact(spec, TRACKER)
    if spec is None or content is None:
        return None
    tracker, hardest, images = unpack_tracker(content)
    if tracker.epoch == 0:
        return None
    whose = f"{spec.method_name}, seed {spec.seed}"
    pictures: dict[str, Callable[[], Any]] = {f"Which samples were chosen: {whose}": partial(draw_tracker, tracker)}
    if images is not None and images.shape[1] in (1, 3, 4):
        title = f"The hardest {len(images)}: {whose}\nbelow each: label, mean loss, times chosen / times seen"
        pictures[f"The hardest samples: {whose}"] = partial(hardest_sheet, tracker, images, hardest, title=title)
    return Chosen(f"{whose}: {in_words(tracker)}", pictures)


def in_words(tracker: SelectionTracker) -> str:
    """How much was saved, which classes were chosen most and least, and how many labels are suspect.

    >>> tracker = SelectionTracker(4, y=[0, 0, 1, 1], classes=("cat", "dog"))
    >>> tracker.update([0, 1, 2, 3], [0.1, 0.2, 0.9, 0.4], rows=[1, 2, 3])
    >>> in_words(tracker)
    '25 % of the samples seen needed no backward pass. Kept most often for its size: dog (1.33 times its share); least
    often: cat (0.67 times). No suspicious labels: the losses show no separate group of outliers.'
    """
    saved = f"{100 * tracker.saved:.0f} % of the samples seen needed no backward pass."
    if tracker.y is None:
        return saved
    shares = sorted(_seen_classes(tracker), key=lambda share: share.ratio)
    least, most = shares[0], shares[-1]
    named = len(tracker.suspects().indices)
    suspects = f"{named:,} of {tracker.n:,} labels are suspicious: their losses stand apart"
    if not named:
        suspects = "No suspicious labels: the losses show no separate group of outliers"
    return (
        f"{saved} Kept most often for its size: {shortened(most.name)} ({most.ratio:.2f} times its share); "
        f"least often: {shortened(least.name)} ({least.ratio:.2f} times). {suspects}."
    )


def draw_tracker(tracker: SelectionTracker, *, wrong: NDArray[np.bool_] | None = None) -> Any:
    """A figure with the data map, the losses over time, and how often each class is chosen where classes are known.

    Parameters
    ----------
    tracker
        With at least one epoch.
    wrong
        Which labels are known to be wrong, shape (n,): they are ringed in the data map in place of the suspects.
    """
    panels = [_losses, _classes] if tracker.y is not None else [_losses]
    figure, (first, *others) = new_figure(1 + len(panels), width=4.4, height=_HEIGHT)
    _data_map(figure, first, tracker, wrong)
    for draw, axis in zip(panels, others, strict=True):
        draw(axis, tracker)
    return figure


def hardest_sheet(
    tracker: SelectionTracker, images: NDArray[np.uint8], indices: NDArray[np.int64], *, title: str = ""
) -> bytes:
    """A contact sheet (PNG) of samples, each with its label, its mean loss and how often it was chosen.

    Parameters
    ----------
    tracker
        With the labels of the training set.
    images, indices
        Images (k, channels, height, width), and their positions in the training set, shape (k,).
    title
        Words above the sheet.
    """
    mean, seen, chosen = tracker.data_map().mean[indices], tracker.seen[indices], tracker.chosen[indices]
    labels = np.array(tracker.classes)[tracker.y[indices]] if tracker.y is not None else indices.astype(str)
    captions = [
        f"{label}: {loss:.2g}, {kept}/{of}" for label, loss, kept, of in zip(labels, mean, chosen, seen, strict=True)
    ]
    return contact_sheet(images, np.arange(len(images)), captions, title=title)


def _data_map(figure: Any, axis: Any, tracker: SelectionTracker, wrong: NDArray[np.bool_] | None) -> None:
    mean, spread = tracker.data_map()
    share = tracker.chosen / np.maximum(1, tracker.seen)
    order = np.argsort(share, kind="stable")  # those chosen most on top
    style = {"s": 7, "cmap": "viridis", "vmin": 0, "vmax": 1, "linewidths": 0, "rasterized": True}
    dots = axis.scatter(spread[order], mean[order], c=share[order], **style)
    figure.colorbar(dots, ax=axis, label="times chosen / times seen", shrink=0.85)
    words, ringed = (
        ("suspects", tracker.suspects().indices) if wrong is None else ("wrong labels", np.flatnonzero(wrong))
    )
    if len(ringed):
        rings = {"s": 26, "facecolors": "none", "edgecolors": _RING, "linewidths": 0.8, "rasterized": True}
        axis.scatter(spread[ringed], mean[ringed], label=words, **rings)
        axis.legend(frameon=False, fontsize="small", loc="upper left", handletextpad=0.2)
    axis.set(xlabel="spread of the loss over epochs", ylabel="mean loss over epochs", title="Data map")


def _losses(axis: Any, tracker: SelectionTracker) -> None:
    levels = tracker.loss_quantiles.T
    epochs = np.arange(1, levels.shape[1] + 1)
    colour, half = COLOURS[1], len(LEVELS) // 2
    for place in range(1, half):
        low, high = levels[place], levels[-1 - place]
        words = f"{100 * LEVELS[place]:.0f} to {100 * LEVELS[-1 - place]:.0f} %"
        axis.fill_between(epochs, low, high, color=colour, alpha=0.15 + 0.12 * place, linewidth=0, label=words)
    axis.plot(epochs, levels[half], color=colour, linewidth=1.6, label="median")
    axis.plot(epochs, levels[-1], color=_RING, linewidth=1.0, label="largest")
    axis.set(xlabel="epoch", ylabel="loss", title="Losses over time", yscale="log")
    axis.xaxis.get_major_locator().set_params(integer=True)
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.2)  # room for the legend above the lines
    axis.legend(frameon=False, fontsize="small", loc="upper right", ncols=2)


def _classes(axis: Any, tracker: SelectionTracker) -> None:
    shares = sorted(_seen_classes(tracker), key=lambda share: -share.ratio)
    if len(shares) > _MOST_CLASSES:
        shares = shares[: _MOST_CLASSES // 2] + shares[-_MOST_CLASSES // 2 :]  # chosen most, and least
    axis.barh(range(len(shares)), [share.ratio for share in shares], color=COLOURS[1], height=0.7)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set(
        yticks=range(len(shares)),
        yticklabels=[drawable(share.name) for share in shares],
        title="Classes among the chosen",
    )
    axis.set_xlabel("share of the chosen / share of the seen")
    axis.invert_yaxis()


def _seen_classes(tracker: SelectionTracker) -> list[ClassShare]:
    return [share for share in tracker.class_shares() if share.seen]
