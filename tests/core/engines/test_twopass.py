import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from tests.contracts.engine_checks import quiet
from tests.core.step_parts import CE, batch, sgd


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
