"""Micro-batches give the gradient of plain accumulation for every model of the matrix, regrouped or whole."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Generator, nn

from ordered_sgd import OrderedStep, select_top_q
from tests.contracts.engine_cases import CASES
from tests.contracts.engine_cases_common import Case
from tests.contracts.engine_checks import call, frozen_sgd, gradient_error, gradients, quiet

# torch warns of itself where a gradient of its input is asked for; without -W error this warning is dropped
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
SIZES, Q = (6, 4, 5), 5
# Exact in two passes over one batch, but what one micro-batch changes is there in the next one.
CHANGING = ("InstanceNorm2d with running statistics",)
EVERY = [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def parts_of(case: Case, number: int) -> list[tuple[Any, Any]]:
    return [case.batch(s, Generator().manual_seed(100 * number + s)) for s in SIZES]


def accumulated(case: Case, model: nn.Module, number: int) -> torch.Tensor:
    """Leave the gradient of the q largest losses of all micro-batches by autograd alone; their positions come back."""
    model.zero_grad()
    with case.context():
        parts = [case.criterion(call(model, x), y) for x, y in parts_of(case, number)]
        losses = torch.cat([part.squeeze(1) if part.dim() == 2 else part for part in parts])
        rows = select_top_q(losses, Q)
        losses[rows].mean().backward()
    return rows


@pytest.mark.parametrize("case", EVERY)
def test_the_gradient_is_that_of_plain_accumulation(case: Case) -> None:
    torch.manual_seed(1)
    model = case.build()
    torch.manual_seed(1)
    twin = case.build()
    step = OrderedStep(model, case.criterion, frozen_sgd(model), q=Q)
    for number in range(3):  # a coupling may start late
        torch.manual_seed(number)
        rows = accumulated(case, twin, number)
        state = torch.get_rng_state()
        torch.manual_seed(number)
        with quiet(), case.context():
            record = step(parts_of(case, number))
        assert record.rows.tolist() == rows.tolist()
        assert gradient_error(gradients(model), gradients(twin)) <= case.tolerance
        assert torch.equal(torch.get_rng_state(), state)
        for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance)
    regrouped = record.engine == "micro-batches, regrouped"
    if case.coupled or case.name in CHANGING:
        assert not regrouped
        assert step.why
    elif case.twopass:
        assert regrouped or step.why is None, step.why  # None: every micro-batch is kept whole, or not at all
