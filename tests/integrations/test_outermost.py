"""Which modules a function calls itself."""

import copy
from typing import Any

import torch
from torch import nn

from ordered_sgd.integrations._outermost import OutermostCalls, reaches


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.loss = nn.Linear(3, 3), nn.Linear(3, 3), nn.MSELoss()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def names(module: Whole, function: Any, *, taken: bool = True) -> list[str]:
    """The modules that calls of the function tell of."""
    told = []
    by_module = {part: name or "itself" for name, part in module.named_modules()}

    def found(part: nn.Module, *_: Any) -> bool:
        told.append(by_module[part])
        return taken

    calls = OutermostCalls(module, found)
    run = calls.of(function)
    run()
    run()
    calls.restore()
    assert all(part._compiled_call_impl is None for part in module.modules())
    return told


def test_outermost_modules_with_parameters_are_told_of_once() -> None:
    whole, x = Whole(), torch.ones(2, 3)
    assert names(whole, lambda: whole(x)) == ["itself"]
    assert names(whole, lambda: whole.loss(whole.second(whole.dropout(x)), x)) == ["second"]
    assert names(whole, lambda: (whole.first(x), whole(x))) == ["first", "itself"]
    assert names(whole, lambda: whole(x), taken=False) == ["itself", "first", "second"]


def test_calls_outside_the_function_without_gradients_or_of_a_copy_do_not_count() -> None:
    whole, x = Whole(), torch.ones(2, 3)
    assert names(whole, torch.no_grad()(lambda: whole(x))) == []
    assert names(whole, lambda: copy.deepcopy(whole)(x)) == []
    calls = OutermostCalls(whole, lambda *_: 1 / 0)  # it is not asked
    assert whole(x).shape == (2, 3)
    calls.restore()


def test_what_stands_inside_a_call_is_found_and_nothing_else_happens() -> None:
    whole, x = Whole(), torch.ones(2, 3)
    whole.forward = lambda x: whole.loss(whole.dropout(x), x)  # type: ignore[method-assign]
    attributes, state = vars(whole), torch.get_rng_state()
    attributes["loss"] = whole.loss
    assert reaches(whole, "loss", whole, (x,), {})
    assert not reaches(whole, "loss", whole.first, (x,), {})
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(whole.loss, nn.MSELoss)
