"""What a pass changes besides the parameters moves once a step, however many passes an engine runs."""

import random
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep, ordered_mean, selective_backward
from ordered_sgd.engines import ENGINES
from tests.contracts.engine_checks import quiet
from tests.step_parts import CE, batch, network, same, sgd, weights


class Counting(nn.Module):
    """Cross-entropy over a temperature that follows the scores, and how often it was computed."""

    calls: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, scores: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        loss = nn.functional.cross_entropy(scores / self.scale.clone(), y, reduction="none")
        with torch.no_grad():
            self.scale.mul_(0.99)
        return loss


@pytest.mark.parametrize("engine", list(ENGINES))
def test_buffers_of_the_criterion_move_once_a_step(engine: str) -> None:
    torch.manual_seed(0)
    model, criterion = network(), Counting()
    step = OrderedStep(model, criterion, sgd(model), q=4, engine=engine)  # type: ignore[arg-type]
    x, y = batch()
    with quiet():
        for _ in range(6):
            step(x, y, index=torch.arange(len(x)))
    assert criterion.calls.item() == 6
    assert criterion.scale.item() == pytest.approx(0.99**6)


class Momentum(nn.Module):
    """A classifier beside an average of its weights that the forward moves itself, as the key encoder of MoCo."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.query, self.key = network(), network()
        self.key.requires_grad_(False)
        self.how = how

    @torch.no_grad()
    def _move(self) -> None:
        for key, query in zip(self.key.parameters(), self.query.parameters(), strict=True):
            if self.how == "in place":
                key.lerp_(query, 0.1)
            elif self.how == "in place of .data":
                key.data.mul_(0.9).add_(query.data, alpha=0.1)
            else:
                key.data = key.data * 0.9 + query.data * 0.1

    def forward(self, x: Tensor) -> Tensor:
        self._move()
        out: Tensor = self.query(x) + self.key(x)
        return out


@pytest.mark.parametrize("engine", ["rows", "twopass"])
@pytest.mark.parametrize("how", ["in place", "in place of .data", "other .data"])
def test_parameters_that_a_forward_changes_move_once_a_step(engine: str, how: str) -> None:
    found = []
    for one in ("dense", engine):
        torch.manual_seed(0)
        model = Momentum(how)
        step = OrderedStep(model, CE, sgd(model), q=4, engine=one)  # type: ignore[arg-type]
        torch.manual_seed(1)
        with quiet():
            for _ in range(4):
                step(*batch())
        found.append(weights(model))
    assert same(*found)
    assert step.why is not None
    assert "a pass changes the parameter 'key.0.weight'" in step.why


class Called(nn.Module):
    """Counts its calls in Python and uses the count, as a warm-up does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = network(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layers(x) * min(1.0, self.calls / 10)
        return out


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_python_counter_moves_once_a_step_and_compiles_nothing_again(engine: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Called()
    step = OrderedStep(model, CE, sgd(model), q=4, engine=engine)  # type: ignore[arg-type]
    x, y = batch()
    with quiet():
        for _ in range(30):
            record = step(x, y, index=torch.arange(len(x)))
    assert model.calls == 30
    assert record.engine == ("dense" if engine == "auto" else engine)


class Compiled(nn.Module):
    """Has a part that the user compiled in one piece, which torch does not do while operations are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()
        self.part = torch.compile(torch.sin, fullgraph=True, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.part(self.layers(x))
        return out


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_part_that_the_user_compiled_in_one_piece_trains_as_it_does_densely(engine: str) -> None:
    found = []
    for one in ("dense", engine):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Compiled()
        step = OrderedStep(model, CE, sgd(model), q=4, engine=one)  # type: ignore[arg-type]
        torch.manual_seed(1)
        with quiet():
            for _ in range(3):
                step(*batch(), index=torch.arange(32))
        found.append(weights(model))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)


class Stateful(nn.Module):
    """A network whose forward keeps something between steps, in a way of its own."""

    average: Tensor

    def __init__(self, keep: Callable[["Stateful", Tensor], Tensor], **held: Any) -> None:
        super().__init__()
        self.first, self.last, self.keep = nn.Linear(6, 8), nn.Linear(8, 4), keep
        self.calls = 0
        self.register_buffer("average", torch.zeros(8))
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.first(x).tanh()
        out: Tensor = self.last(h + self.keep(self, h.detach()))
        return out


def late_average(model: Stateful, h: Tensor) -> Tensor:
    before = model.average.clone()
    if model.calls > 6:
        model.average.lerp_(h.mean(0), 0.5)
    return before


def late_number(model: Any, h: Tensor) -> Tensor:
    if model.calls % 5 == 0:
        model.rare += 1
    return torch.full((8,), float(model.rare))


def plain_tensor(model: Any, h: Tensor) -> Tensor:
    before = model.plain
    model.plain = 0.9 * model.plain + 0.1 * h.mean(0)
    return cast("Tensor", before)


def plain_tensor_in_place(model: Any, h: Tensor) -> Tensor:
    before = model.plain.clone()
    model.plain.lerp_(h.mean(0), 0.1)
    return cast("Tensor", before)


def late_buffer(model: Any, h: Tensor) -> Tensor:
    if not hasattr(model, "late"):
        model.register_buffer("late", torch.zeros(8))
    before = model.late.clone()
    model.late += h.mean(0)
    return cast("Tensor", before)


def listed(model: Any, h: Tensor) -> Tensor:
    model.log.append(len(model.log))
    return h.new_full((8,), 0.1 * len(model.log))


def cached(model: Any, h: Tensor) -> Tensor:
    if h.shape[1] not in model.cache:
        model.cache[h.shape[1]] = torch.randn(8)
    return cast("Tensor", model.cache[h.shape[1]])


def dropped_by(draw: Callable[[], float]) -> Callable[[Stateful, Tensor], Tensor]:
    return lambda model, h: h if draw() < 0.5 else -h


KEPT: dict[str, Callable[[], nn.Module]] = {
    "an average that starts late": lambda: Stateful(late_average),
    "a number that moves late": lambda: Stateful(late_number, rare=0),
    "a plain tensor": lambda: Stateful(plain_tensor, plain=torch.zeros(8)),
    "a plain tensor in place": lambda: Stateful(plain_tensor_in_place, plain=torch.zeros(8)),
    "a buffer registered late": lambda: Stateful(late_buffer),
    "a list": lambda: Stateful(listed, log=[]),
    "a cache": lambda: Stateful(cached, cache={}),
    "Python's random numbers": lambda: Stateful(dropped_by(random.random)),
    "NumPy's random numbers": lambda: Stateful(dropped_by(np.random.random)),
    "lazy layers": lambda: nn.Sequential(nn.LazyLinear(8), nn.Dropout(0.5), nn.LazyBatchNorm1d(), nn.Linear(8, 4)),
}


def trained(make: Callable[[], nn.Module], how: str, steps: int) -> dict[str, Any]:
    """What is left of a training, and where the generators stand."""
    torch._dynamo.reset()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    model = make()
    optimizer = sgd(model)
    step = None if how == "selective" else OrderedStep(model, CE, optimizer, q=4, engine=how)  # type: ignore[arg-type]
    if step is None:
        selective_backward(model)
    with quiet():
        for _ in range(steps):
            x, y = batch(12)
            if step is not None:
                step(x, y)
                continue
            optimizer.zero_grad()
            ordered_mean(CE(model(x), y), q=4).backward()
            optimizer.step()
    held = {name: value for name, value in vars(model).items() if name in ("calls", "rare", "plain", "log")}
    generators = {"torch": torch.rand(()), "python": random.random(), "numpy": np.random.random()}  # noqa: NPY002
    return {
        **{name: p.detach() for name, p in model.named_parameters()},
        **dict(model.named_buffers()),
        **held,
        **generators,
    }


BY_SELECTIVE = (  # in the short run by `selective_backward`, all else by rows
    "a number that moves late",
    "a plain tensor in place",
    "a list",
    "Python's random numbers",
)
PAIRS = [
    pytest.param(kept, how, marks=pytest.mark.slow if (kept in BY_SELECTIVE) != (how == "selective") else ())
    for kept, how in product(KEPT, ["rows", "selective"])
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("kept", "how"), [*product(KEPT, ["twopass"]), *PAIRS])
def test_what_a_forward_keeps_moves_once_a_step(kept: str, how: str) -> None:
    steps = 9 if "late" in kept else 4
    found, expected = (trained(KEPT[kept], one, steps) for one in (how, "dense"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


class Pairs(nn.Module):
    """Takes its samples in pairs, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.view(x.shape[0] // 2, 2, 6)).flatten(0, 1)
        return out


def test_twopass_runs_densely_once_some_samples_cannot_be_run_alone() -> None:
    model = Pairs()
    step = OrderedStep(model, CE, sgd(model), q=3, engine="twopass")
    assert [step(*batch(12)).engine for _ in range(2)] == ["dense", "dense"]
    assert step.why is not None
    assert "cannot be run by themselves (shape '[1, 2, 6]' is invalid" in step.why


class Hooking(nn.Module):
    """Sets hooks in its first pass and notes that it did, as models of Transformers do."""

    hooked = False

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.seen = network(), []

    def forward(self, x: Tensor) -> Tensor:
        if not self.hooked:
            self.layers[0].register_forward_hook(lambda module, given, out: self.seen.append(out))
            self.hooked = True
        self.seen.clear()
        out: Tensor = self.layers(x)
        assert len(self.seen) == 1
        return out + self.seen[0].mean(1, keepdim=True)


@pytest.mark.parametrize("engine", ["rows", "twopass"])
def test_hooks_that_a_first_pass_sets_are_set_once(engine: str) -> None:
    found = []
    for one in (engine, "dense"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Hooking()
        step = OrderedStep(model, CE, sgd(model), q=4, engine=one)  # type: ignore[arg-type]
        with quiet():
            for _ in range(3):
                step(*batch(12))
        assert len(model.layers[0]._forward_hooks) == 1
        found.append(weights(model))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
