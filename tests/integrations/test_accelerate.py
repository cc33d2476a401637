"""A loop of Accelerate with `selective_backward` before or after `prepare`; see also contracts/test_trainers.py."""

from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd import OrderedLoss, explain_backward, selective_backward
from tests.integrations.trainers import batches, network, sgd

pytestmark = pytest.mark.xdist_group("trainers")
SLOW = pytest.mark.slow


def train(when: str, precision: str, parts: int, autocast: str) -> tuple[torch.Tensor, Any]:
    """The weights after a pass over the data, and the model that `prepare` returned."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=False)  # another Accelerator may have another precision
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=parts)
    model, loss_fn = network(), OrderedLoss(nn.CrossEntropyLoss(reduction="none"), q=3)
    if when == "before":
        selective_backward(model)
    prepared, optimizer, loader = accelerator.prepare(model, sgd(model), batches())
    if when == "after":
        selective_backward(prepared)
    for x, y in loader:
        with accelerator.accumulate(prepared):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast == "loss"):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast != ""):
                    outputs = prepared(x)
                loss = loss_fn(outputs, y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    AcceleratorState._reset_state(reset_partial_state=False)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), prepared


@pytest.mark.parametrize(
    ("when", "precision", "parts", "autocast"),
    [
        ("after", "bf16", 2, ""),
        pytest.param("before", "bf16", 2, "", marks=SLOW),
        pytest.param("before", "no", 1, "model", marks=SLOW),
        pytest.param("after", "no", 1, "loss", marks=SLOW),
    ],
)
def test_the_weights_are_those_of_the_loop_without_it(when: str, precision: str, parts: int, autocast: str) -> None:
    expected, _ = train("never", precision, parts, autocast)
    found, model = train(when, precision, parts, autocast)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    report = explain_backward(model)
    assert (report.passes, report.skipping, report.rows) == (10, 10, 30)
