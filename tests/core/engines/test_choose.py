"""What `auto` runs, and that it has made up its mind after a few steps."""

import pytest
import torch
from torch import nn

from ordered_sgd import OrderedStep
from ordered_sgd.core.engines.rows import _BackwardOfRows
from ordered_sgd.models import LeNet
from tests.contracts.engine_checks import Listed

QS = (64, 32, 16, 8, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_ten_steps_with_each_q_nothing_is_compiled_or_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = LeNet(size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, rule=Listed(QS))
    work: list[str] = []
    check = _BackwardOfRows._check
    monkeypatch.setattr(_BackwardOfRows, "_check", lambda *given: (work.append("compare"), check(*given))[1])
    compiled = torch._dynamo.utils.counters["stats"]
    for q in QS:
        before: tuple[int, int] | None = None
        for number in range(20):
            record = step(torch.randn(64, 1, 16, 16), torch.randint(10, (64,)))
            if number == 9:
                before = compiled["unique_graphs"], len(work)
        assert record.q == q
        assert record.engine == ("dense" if q == 64 else "rows")
        assert (compiled["unique_graphs"], len(work)) == before
        step.end_epoch()
    assert work == ["compare"]  # one graph for every q, compared once
