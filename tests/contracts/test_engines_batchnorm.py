"""How close the treatments of BatchNorm come to the one-liner's gradient, on real images and a real network."""

import copy

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from ordered_sgd.engines import Rows, TwoPass
from ordered_sgd.lab.data import load
from ordered_sgd.lab.models import PreActResNet18

CRITERION = nn.CrossEntropyLoss(reduction="none")
TREATMENTS = {"rows": Rows(batchnorm="full-batch"), "twopass": TwoPass(batchnorm="subset")}


def gradient(model: nn.Module, engine: str, x: Tensor, y: Tensor, q: int) -> Tensor:
    """What one step leaves in the parameters of a copy."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    record = OrderedStep(model, CRITERION, optimizer, q=q, engine=TREATMENTS.get(engine, engine))(x, y)
    assert record.engine == engine
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_full_batch_statistics_are_closer_to_the_one_liner_than_those_of_the_subset(real_root: object) -> None:
    torch.manual_seed(0)
    images = load("cifar10", partial=True)
    x, y = torch.from_numpy(images.x).float() / 255, torch.from_numpy(images.y)
    model = PreActResNet18(width=0.25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = torch.randperm(len(x)).split(64)
    for rows in batches[:100]:
        optimizer.zero_grad()
        CRITERION(model(x[rows]), y[rows]).mean().backward()
        optimizer.step()
    for q, least in ((32, 0.95), (16, 0.9), (8, 0.85)):
        found: dict[str, list[float]] = {name: [] for name in TREATMENTS}
        for rows in batches[100:104]:
            dense = gradient(model, "dense", x[rows], y[rows], q)
            for name in TREATMENTS:
                other = gradient(model, name, x[rows], y[rows], q)
                found[name].append(torch.cosine_similarity(dense, other, dim=0).item())
        means = {name: sum(values) / len(values) for name, values in found.items()}
        print(f"q = {q}: " + ", ".join(f"{name} {value:.3f}" for name, value in means.items()))
        assert means["rows"] > means["twopass"]
        assert means["rows"] > least


class Mixed(nn.Module):
    """BatchNorm, and samples that are mixed with others: a coupling that no treatment of BatchNorm looks after."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(x)).relu()
        scores: Tensor = self.head(0.7 * hidden + 0.3 * hidden.roll(1, 0))
        return scores


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_coupling_beside_batchnorm_is_found_and_run_densely() -> None:
    torch.manual_seed(0)
    model, twin = Mixed(), Mixed()
    twin.load_state_dict(model.state_dict())
    x, y = torch.randn(16, 6), torch.randint(4, (16,))
    step = OrderedStep(
        model, CRITERION, torch.optim.SGD(model.parameters(), lr=0.0), q=5, engine=Rows(batchnorm="full-batch")
    )
    with pytest.warns(UserWarning, match="engine rows: samples must not influence each other"):
        record = step(x, y)
    assert record.engine == "dense"
    OrderedStep(twin, CRITERION, torch.optim.SGD(twin.parameters(), lr=0.0), q=5, engine="dense")(x, y)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)
