"""How much there is to compute: an estimate that a short measurement turns into time on a machine."""

import math
from functools import cache

import torch
from torch.utils.flop_counter import FlopCounterMode

from ordered_sgd.lab.data.catalog import CATALOG
from ordered_sgd.lab.experiments.plan import EVALUATE
from ordered_sgd.lab.experiments.recipes.shrink import available_samples, train_samples
from ordered_sgd.lab.experiments.spec import ExperimentSpec, Options
from ordered_sgd.lab.models import build
from ordered_sgd.rules import resolve_q

BACKWARD = 2.0  # a backward pass in forward passes
BATCH = 2e7  # what a batch costs beside its arithmetic: 0.4 ms at 50 GFLOP/s, measured with the logistic model


def work(spec: ExperimentSpec) -> float:
    """Floating-point operations of a run, roughly, and the overhead of its batches in the same unit.

    Training, the pass that training accuracy is taken in, and the two evaluations after each epoch. A rule that moves
    q is taken to keep all samples: the estimate is then an upper bound.

    >>> short, long = (work(ExperimentSpec(epochs=epochs)) for epochs in (1, 10))
    >>> round(long / short, 6)
    10.0
    """
    n, m = train_samples(spec), judged_samples(spec)
    s = min(spec.s, n)
    entry = CATALOG[spec.data]
    forward = forward_flops(spec.model, spec.model_options, entry.shape, len(entry.classes))
    passes = 1 if spec.accuracy == "pass" else 0
    arithmetic = forward * (n * (2 + passes) + m + BACKWARD * n * _kept(spec, s))
    batches = math.ceil(n / s) * (1 + passes) + math.ceil(n / EVALUATE) + math.ceil(m / EVALUATE)
    return spec.epochs * (arithmetic + batches * BATCH)


def judged_samples(spec: ExperimentSpec) -> int:
    """Samples of the test set, or of the held-out share."""
    if spec.validation > 0:
        return available_samples(spec) - train_samples(spec)
    return CATALOG[spec.data].counts["test"]


@cache
def forward_flops(model: str, options: Options, shape: tuple[int, ...], classes: int) -> float:
    """Floating-point operations of a forward pass, of one sample; counted without computing anything."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        build(model, shape, classes, **dict(options))(torch.empty(2, *shape))  # BatchNorm wants more than one sample
    flops: float = counter.get_total_flops() / 2
    return flops


def _kept(spec: ExperimentSpec, s: int) -> float:
    """Share of the samples that is back-propagated."""
    if spec.path:
        return sum(min(q, s) for q, _ in spec.path) / (s * len(spec.path))
    if spec.method == "ordered" and spec.fixed_q is not None:
        return resolve_q(spec.fixed_q, s) / s
    return 1.0
