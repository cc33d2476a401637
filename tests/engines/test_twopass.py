import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from tests.contracts.engine_checks import quiet
from tests.step_parts import CE, batch, sgd


class Centred(nn.Module):
    """Subtracts the mean of the batch once it is told to, and counts how often it is run."""

    on, runs = False, 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x - x.mean(0) if self.on else x


def test_after_a_coupling_that_came_late_a_step_is_one_pass() -> None:
    torch.manual_seed(0)
    centred = Centred()
    model = nn.Sequential(nn.Linear(6, 8), centred, nn.Linear(8, 4))
    step = OrderedStep(model, CE, sgd(model), q=4, engine="twopass")
    assert step(*batch()).engine == "twopass"
    centred.on = True
    with quiet():
        assert step(*batch()).engine == "dense"
    centred.runs = 0
    assert step(*batch()).engine == "dense"
    assert centred.runs == 1
    assert step.why is not None
    assert step.why.startswith("samples influence each other in ")


class Routed(nn.Module):
    """Two experts, each run only if a sample asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out, route = x.new_zeros(len(x), 4), (x[:, 0] > 0).long()
        for number, expert in enumerate(self.experts):
            rows = (route == number).nonzero().squeeze(1)
            if rows.numel():
                out = out.index_copy(0, rows, expert(x[rows]))
        return out


def test_an_expert_that_half_of_the_samples_does_not_ask_for_is_no_coupling() -> None:
    torch.manual_seed(0)
    model = Routed()
    step = OrderedStep(model, CE, sgd(model), q=4, engine="twopass")
    x, y = batch()
    x[:, 0] = torch.arange(32) % 2 - 0.5  # the second expert: at odd positions only
    assert step(x, y).engine == "twopass"


class DropConnect(nn.Module):
    """Drops weights, not samples: its noise does not have the batch in it, whatever its size."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(units, 6))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, nn.functional.dropout(self.weight, 0.5, self.training))


@pytest.mark.parametrize("units", [64, 32, 6])
def test_noise_of_weights_is_used_again_whole(units: int) -> None:
    torch.manual_seed(0)
    model, twin = DropConnect(units), DropConnect(units)
    twin.load_state_dict(model.state_dict())
    steps = [
        OrderedStep(net, CE, sgd(net), q=3, engine=engine)  # type: ignore[arg-type]
        for net, engine in ((model, "twopass"), (twin, "dense"))
    ]
    for s in (12, 32, 8):
        x, y = batch(s)
        for step in steps:
            torch.manual_seed(1)
            record = step(x, y)
        assert steps[0].why is None
        assert record.q == 3
    torch.testing.assert_close(model.weight, twin.weight)


class Patches(nn.Module):
    """BatchNorm whose gradient comes in transposed: torch's backward on the CPU is wrong for one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.norm(x).flatten(2).transpose(1, 2)
        return self.head(patches.contiguous() ** 2).mean(1)


def test_a_single_kept_sample_has_the_dense_gradient_where_torchs_backward_of_one_sample_is_wrong() -> None:
    gradients = []
    for engine in ("dense", "twopass"):
        torch.manual_seed(0)
        model = Patches()
        model.norm.eval()
        step = OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.0), q=1, engine=engine)  # type: ignore[arg-type]
        record = step(torch.randn(8, 5, 3, 4), torch.arange(8) % 4)
        assert (record.engine, record.q) == (engine, 1)
        gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
    for found, expected in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(found, expected)
