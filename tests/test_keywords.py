from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd import OrderedLoss, OrderedStep
from ordered_sgd.errors import ArgumentError
from tests.step_parts import CE


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("grad_clip", "Did you mean max_grad_norm="),
        ("max_gradnorm", "Did you mean max_grad_norm="),
        ("top_k", "Did you mean q="),
        ("batchnorm", "Did you mean engine="),
        ("unit", "They are model, criterion, optimizer, q, selection"),
    ],
)
def test_a_keyword_that_a_step_does_not_know_is_answered_with_one_that_it_knows(name: str, remedy: str) -> None:
    model = nn.Linear(2, 2)
    options: dict[str, Any] = {name: 1.0}
    with pytest.raises(
        TypeError, match=f"OrderedStep: a keyword must be one of its parameters; got '{name}'. {remedy}"
    ):
        OrderedStep(model, CE, torch.optim.SGD(model.parameters(), lr=0.1), **{"q": 2, **options})


def test_a_loss_answers_with_its_own_parameters_and_the_public_ones_only() -> None:
    with pytest.raises(
        ArgumentError, match=r"OrderedLoss: a keyword must .*; got 'grad_clip'. They are criterion"
    ) as error:
        OrderedLoss(CE, q=2, grad_clip=1.0)  # type: ignore[call-arg]
    assert "_where" not in str(error.value)
