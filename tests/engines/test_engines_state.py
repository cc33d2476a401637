"""What a pass changes besides the parameters moves once a step, however many passes an engine runs."""

import pytest
import torch
from torch import Tensor, nn

from ordered_sgd import OrderedStep
from ordered_sgd.engines import ENGINES
from tests.contracts.engine_checks import quiet
from tests.step_parts import batch, network, sgd


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
