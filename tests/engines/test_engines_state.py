"""What a pass changes besides the parameters moves once a step, however many passes an engine runs."""

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
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
