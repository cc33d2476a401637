"""The one table of how often the host waits in a step: `WAYS`.

The checks of `tests/accelerator_cases.py` hold the library to it, and the page `docs/gpus.md` shows it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd import (
    AccuracyRule,
    LossMassRule,
    OrderedLoss,
    OrderedStep,
    multiclass_hinge,
    ordered_mean,
    selective_backward,
)
from ordered_sgd.engines import Memory, Rows
from tests.accelerator import NAME, Waits, watching
from tests.step_parts import CE, batch, network, sgd, weights

S, Q, BATCHES = 32, 8, 3
WARM, STEADY = 3 * BATCHES, 2 * BATCHES  # steps in which an engine may compile, compare and learn, and steps that count

Step = Callable[[Tensor, Tensor, Tensor], Any]  # x, y, and the samples' numbers on the CPU


@dataclass(frozen=True)
class Way:
    """A way to train, and how often the host waits in each of its steps, once the first ones are over.

    Parameters
    ----------
    name, why
        As the page shows it, and what is waited for.
    queue
        Reads and blocking copies: the host waits until the device has done everything before.
    event
        Waits for what was sent ahead, while the device works on: which targets are the ignored one, and two numbers
        that say whether the losses are finite.
    build
        Makes the step of a model.
    """

    name: str
    queue: int
    event: int
    why: str
    build: Callable[[nn.Module], Step]


def _loop(loss_of: Callable[[Tensor, Tensor], Tensor], model: nn.Module, run: Callable[[Tensor], Tensor]) -> Step:
    optimizer = sgd(model, fused=True)

    def step(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(run(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _mean(model: nn.Module) -> Step:
    return _loop(lambda outputs, y: ordered_mean(CE(outputs, y), Q), model, model)


def _loss(q: Any, criterion: Callable[..., Tensor] = CE) -> Callable[[nn.Module], Step]:
    return lambda model: _loop(OrderedLoss(criterion, q=q), model, model)


def _selective(model: nn.Module) -> Step:
    return _loop(lambda outputs, y: ordered_mean(CE(outputs, y), Q), model, selective_backward(model))


def step_of(q: Any = Q, fused: bool = True, parts: int = 1, **options: Any) -> Callable[[nn.Module], Step]:
    def build(model: nn.Module) -> Step:
        device = next(model.parameters()).device
        more = {"scaler": torch.amp.GradScaler(device.type, init_scale=8.0)} if options.get("scaler") else {}
        step = OrderedStep(model, CE, sgd(model, fused=fused), q=q, **{**options, **more})
        if parts > 1:
            return lambda x, y, index: step(list(zip(x.chunk(parts), y.chunk(parts), strict=True)))
        memory = isinstance(options.get("engine"), Memory)
        return lambda x, y, index: step(x, y, index=index if memory else None)

    return build


FUSED = "`dense`, fixed q, fused optimizer"
_SCALER = "`GradScaler`: whether the gradients are finite"
_GRADIENT = "which samples have a gradient"
_MEMORY = "how many samples are new; copies of the index and of the probes' places to the device"
WAYS = [
    Way("`ordered_mean` in a loop", 0, 0, "", _mean),
    Way("`OrderedLoss`, fixed q", 0, 0, "", _loss(Q)),
    Way("`OrderedLoss`, `AccuracyRule`", 0, 0, "", _loss(AccuracyRule(), multiclass_hinge)),
    Way("`OrderedLoss`, `LossMassRule`", 0, 0, "", _loss(LossMassRule())),
    Way(FUSED, 0, 2, "", step_of(engine="dense")),
    Way("`dense`, fixed q, fused optimizer, clipped", 0, 2, "", step_of(engine="dense", max_grad_norm=1.0)),
    Way('`dense`, fixed q, fused optimizer, `nonfinite="skip"`', 0, 1, "", step_of(engine="dense", nonfinite="skip")),
    Way("`dense`, fixed q, any other optimizer", 0, 2, "", step_of(fused=False, engine="dense")),
    Way("`dense`, `AccuracyRule`", 0, 2, "", step_of(AccuracyRule(), engine="dense")),
    Way("`dense`, `LossMassRule`", 0, 2, "", step_of(LossMassRule(), engine="dense")),
    Way("`dense`, `GradScaler`, fused optimizer", 0, 2, "", step_of(engine="dense", scaler=True)),
    Way("`dense`, `GradScaler`, any other", 1, 2, _SCALER, step_of(fused=False, engine="dense", scaler=True)),
    Way("`auto`, model too small for `rows`", 0, 2, "", step_of(engine="auto")),
    Way("`twopass`", 1, 2, "whether both passes agree", step_of(engine="twopass")),
    Way("`rows`", 1, 2, _GRADIENT, step_of(engine=Rows())),
    Way("`selective_backward` in a loop", 1, 0, _GRADIENT, _selective),
    Way(
        "two micro-batches",
        2,
        2,
        "which samples are kept; for each regrouped micro-batch, whether passes agree",
        step_of(parts=2),
    ),
    Way("`memory`, the rest as `dense`", 3, 2, _MEMORY, step_of(engine=Memory(candidates=12))),
]


def page_table() -> str:
    """`WAYS` as the page shows it."""
    lines = [
        "| step | waits for the queue | waits for an event | what the queue is waited for |",
        "| --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(f"| {way.name} | {way.queue} | {way.event} | {way.why} |" for way in WAYS)])


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(*batch(S), torch.arange(i * S, (i + 1) * S)) for i in range(BATCHES)]


def new_model(device: str, build: Callable[[], nn.Module] = network) -> nn.Module:
    """The same weights on either device."""
    torch.manual_seed(0)
    return build().to(device)


def train(
    way: Way, device: str, build: Callable[[], nn.Module] = network
) -> tuple[list[Tensor], list[Any], list[Waits]]:
    """Weights, what the steps returned, and what made the host wait in the last of them."""
    model = new_model(device, build)
    step, waits, found = way.build(model), [], []
    moved = [(x.to(device), y.to(device), index) for x, y, index in batches()]
    for number in range(WARM + STEADY):
        with watching() as seen:
            found.append(step(*moved[number % BATCHES]))
        if number >= WARM and not (_is_audit(found[-1]) or _plans_audit(seen)):
            waits.append(seen)
    return [w.cpu() for w in weights(model)], found, waits


def _is_audit(record: Any) -> bool:
    """Whether the engine with a memory scored the whole batch, at random: its reads are those of the page's text."""
    return getattr(record, "engine", "") == "dense" and getattr(record, "recall", None) == 1.0


def _plans_audit(seen: Waits) -> bool:
    """Whether the engine with a memory counted what it has seen, in order to plan its next audit."""
    return any("remembered.py" in read for read in seen.reads)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.cpu(), b.cpu())


def trains_as_on_the_cpu(way: Way) -> Callable[[], None]:
    """A check that the way trains as on the CPU, and waits as often as it says."""

    def check() -> None:
        on_cpu, expected, _ = train(way, "cpu")
        on_device, found, waits = train(way, NAME)
        for a, b in zip(on_device, on_cpu, strict=True):
            close(a, b)
        for a, b in zip(found, expected, strict=True):
            if isinstance(b, Tensor):
                close(a, b)
            else:
                assert (a.q, a.count, a.engine) == (b.q, b.count, b.engine)
                assert a.losses.device.type == a.rows.device.type == NAME
                assert torch.equal(a.rows.cpu(), b.rows)
                for name in ("losses", "ordered_loss", "mean_loss", "correct"):
                    close(getattr(a, name).float(), getattr(b, name).float())
        assert waits
        for seen in waits:
            assert seen.counts == (way.queue, way.event), f"{seen.reads=}, {seen.uploads=}, {seen.events=}"

    return check
