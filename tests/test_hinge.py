import pytest
import torch

from ordered_sgd import multiclass_hinge
from ordered_sgd.errors import ArgumentError


def test_the_sum_is_the_paper_s_formula_written_out() -> None:
    scores, target = torch.randn(20, 7, dtype=torch.float64), torch.randint(0, 7, (20,))
    expected = [
        sum(max(0.0, 1 + float(row[j] - row[y])) for j in range(7) if j != y)
        for row, y in zip(scores, target.tolist(), strict=True)
    ]
    torch.testing.assert_close(multiclass_hinge(scores, target), torch.tensor(expected, dtype=torch.float64))


def test_the_mean_over_classes_is_torch_s_multi_margin_loss_with_its_gradient() -> None:
    scores, target = torch.randn(20, 7, dtype=torch.float64, requires_grad=True), torch.randint(0, 7, (20,))
    ours = multiclass_hinge(scores, target, margin=0.5, over_classes="mean")
    theirs = torch.nn.functional.multi_margin_loss(scores, target, margin=0.5, reduction="none")
    torch.testing.assert_close(ours, theirs)
    (a,) = torch.autograd.grad(ours.sum(), scores)
    (b,) = torch.autograd.grad(theirs.sum(), scores)
    torch.testing.assert_close(a, b)


def test_an_unknown_way_over_classes_is_refused_with_a_near_miss() -> None:
    with pytest.raises(
        ArgumentError, match=r"over_classes must be one of sum, mean; got 'means'. Did you mean 'mean'\?"
    ):
        multiclass_hinge(torch.zeros(1, 2), torch.zeros(1).long(), over_classes="means")  # type: ignore[arg-type]
