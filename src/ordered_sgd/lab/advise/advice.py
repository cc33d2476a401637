"""`advise`: one verdict for a model, and the figures behind it."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.advise.candidate import Candidate, make_candidate
from ordered_sgd.lab.advise.forecast import RECOMMENDED, WORTH, Expected, forecast
from ordered_sgd.lab.advise.steps import DENSE, StepCosts, measure_steps
from ordered_sgd.lab.advise.warmup import WarmUp, warm_up
from ordered_sgd.lab.advise.words import code_for, findings, speeds, verdict
from ordered_sgd.lab.bench.step_cost import machine
from ordered_sgd.lab.bench.subjects import SELECTIVE, SGD

EXACT = (DENSE, SELECTIVE, "twopass")
Progress = Callable[[float, str], object]


@dataclass(frozen=True)
class Advice:
    """What `advise` found.

    Attributes
    ----------
    worth : bool
        Whether an exact way takes at most 0.85 of the time of plain SGD.
    verdict : str
        The answer in a sentence or two.
    speeds, findings : tuple of str
        The figures behind it in sentences: the times of steps and of whole trainings, and what else was found.
    code : str
        The lines to write.
    expected : tuple of Expected
        The expected time of a whole training: plain SGD, the paper's rule, fixed q.
    best : Expected or None
        The exact way with the shortest time among those that may be recommended; None if nothing is exact.
    costs, warm_up : StepCosts, WarmUp
        What was measured of single steps, and in a short training.
    s, epochs : int
        Batch size, and the epochs of the training in question.
    machine : dict
        Where it was measured.
    """

    worth: bool
    verdict: str
    speeds: tuple[str, ...]
    findings: tuple[str, ...]
    code: str
    expected: tuple[Expected, ...]
    best: Expected | None
    costs: StepCosts
    warm_up: WarmUp
    s: int
    epochs: int
    machine: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join([self.verdict, "", *self.speeds, *self.findings, "", self.code]).rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, texts and lists, ready for JSON."""
        return asdict(self)


def advise(
    model: nn.Module,
    criterion: Callable[..., Tensor],
    loader: Iterable[Any],
    optimizer: Optimizer | None = None,
    *,
    epochs: int = 20,
    minutes: float = 3.0,
    progress: Progress = lambda share, text: None,
) -> Advice:
    """Whether ordered SGD would save time in this training, and how much: measured on the model itself.

    Copies of the model take steps with every engine at every q of the paper, and one copy trains for a short while.
    The model and the optimizer are not changed.

    Parameters
    ----------
    model, criterion
        As in the training loop; the criterion may be reduced or return one loss per sample.
    loader
        Yields the batches of an epoch: pairs (x, y), or dicts with ``"labels"``.
    optimizer
        That of the training; None for SGD with rate 0.01 and momentum 0.9.
    epochs
        Of the whole training whose time is in question.
    minutes
        About how long to measure.
    progress
        ``progress(share, text)`` is called while measuring.

    Examples
    --------
    >>> model = nn.Linear(20, 2)
    >>> loader = [(torch.randn(16, 20), torch.randint(2, (16,))) for _ in range(8)]
    >>> advise(model, nn.CrossEntropyLoss(), loader, minutes=0.02).worth  # a step too small for anything to pay
    False
    """
    for name, value in (("epochs", epochs), ("minutes", minutes)):
        if not value > 0:
            raise ArgumentError(message("advise", name, "be positive", value, "Leave it out for the default."))
    state = torch.get_rng_state()
    try:
        candidate = make_candidate(model, criterion, loader, optimizer)
        warm = warm_up(
            candidate, seconds=24 * minutes, tick=lambda share: progress(0.45 * share, "training for a while")
        )
        costs = measure_steps(
            candidate, seconds=24 * minutes, tick=lambda share: progress(0.45 + 0.55 * share, "timing steps")
        )
    finally:
        torch.set_rng_state(state)
    return conclude(candidate, costs, warm, epochs=epochs)


def conclude(candidate: Candidate, costs: StepCosts, warm: WarmUp, *, epochs: int) -> Advice:
    """The advice that follows from what was measured."""
    s, workers = candidate.s, bool(getattr(candidate.loader, "num_workers", 0))
    exact = [name for name in EXACT if all(step.exact for step in costs.steps if step.engine == name)]
    expected = forecast(costs, warm, s=s, epochs=epochs, workers=workers, engines=exact or [SGD])
    best = min((way for way in expected if exact and way.way in RECOMMENDED), key=lambda way: way.ratio, default=None)
    worth = best is not None and best.ratio <= WORTH and costs.leaves_out(best.engine)
    return Advice(
        worth=worth,
        verdict=verdict(candidate, costs, warm, expected, best, worth=worth, epochs=epochs),
        speeds=tuple(speeds(costs, expected, s)),
        findings=tuple(findings(candidate, costs, warm, workers=workers)),
        code=code_for(best if worth else None, coupled=candidate.coupled),
        expected=tuple(expected),
        best=best,
        costs=costs,
        warm_up=warm,
        s=s,
        epochs=epochs,
        machine=machine(),
    )
