"""Smaller versions of a spec, for machines and patience of all sizes; they always say so."""

import math

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.experiments.spec import ExperimentSpec

WITH_WIDTH = ("preact-resnet18",)  # models with an option `width`


def shrink(
    spec: ExperimentSpec, *, epochs: int | None = None, train_size: int | None = None, width: float | None = None
) -> tuple[ExperimentSpec, str]:
    """The spec with fewer epochs, fewer samples and a narrower model, and a note on what shrank.

    Nothing ever grows: what is small already stays as it is, and the note does not mention it.

    Parameters
    ----------
    spec
        What the paper has.
    epochs
        At most so many. The epochs at which the rate drops move in proportion, but not before the second.
    train_size
        At most so many training samples.
    width
        Multiplier in (0, 1] of the channels of every stage, for PreActResNet18.

    Examples
    --------
    >>> smaller, note = shrink(ExperimentSpec(data="mnist", epochs=50, drops=(10,)), epochs=20, train_size=6000)
    >>> smaller.drops, note
    ((4,), '20 of 50 epochs, 6,000 of 60,000 samples')
    """
    _check(epochs, train_size, width)
    notes = []
    if epochs is not None and epochs < spec.epochs:
        notes.append(f"{epochs} of {spec.epochs} epochs")
        drops = tuple(max(2, math.ceil(drop * epochs / spec.epochs)) for drop in spec.drops)
        spec = spec.but(epochs=epochs, drops=drops)
    if train_size is not None and train_size < train_samples(spec):
        notes.append(f"{train_size:,} of {train_samples(spec):,} samples")
        spec = spec.but(train_size=train_size)
    if width is not None and width < 1:
        notes.append(f"width {width:g}")
        spec = _narrow(spec, width)
    return spec, ", ".join(notes)


def train_samples(spec: ExperimentSpec) -> int:
    """Samples that a run is trained on, if the data set is here as it was published."""
    n = available_samples(spec)
    return n if spec.validation == 0 else n - max(1, round(spec.validation * n))


def available_samples(spec: ExperimentSpec) -> int:
    """Samples of the published training set, as many as the spec takes."""
    check_choice("available_samples", "data", spec.data, tuple(CATALOG), "Only the sizes of these data sets are known.")
    n = CATALOG[spec.data].counts["train"]
    return n if spec.train_size is None else min(n, spec.train_size)


def _narrow(spec: ExperimentSpec, width: float) -> ExperimentSpec:
    remedy = "Leave the width out, and make epochs or samples fewer."
    check_choice("shrink", "model of a narrower row", spec.model, WITH_WIDTH, remedy)
    options = dict(spec.model_options) | {"width": width}
    return spec.but(model_options=tuple(sorted(options.items())))


def _check(epochs: int | None, train_size: int | None, width: float | None) -> None:
    for name, value in (("epochs", epochs), ("train_size", train_size)):
        if value is not None and value < 1:
            remedy = "Leave it out for the paper's number."
            raise ArgumentError(message("shrink", name, "be at least 1", value, remedy))
    if width is not None and not 0 < width <= 1:
        remedy = "Use width=0.25 for a quarter of the channels."
        raise ArgumentError(message("shrink", "width", "be a share in (0, 1]", width, remedy))
