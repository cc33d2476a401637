"""Per-sample losses that torch lacks."""

from typing import Literal

from torch import Tensor

from ordered_sgd.errors import check_choice


def multiclass_hinge(
    scores: Tensor, target: Tensor, *, margin: float = 1.0, over_classes: Literal["sum", "mean"] = "sum"
) -> Tensor:
    """Multiclass hinge loss of each sample (Weston & Watkins): sum over j != y of max(0, margin + scores_j - scores_y).

    Parameters
    ----------
    scores
        Shape (s, C).
    target
        Class indices, shape (s,).
    margin
        How far the right class must be ahead.
    over_classes
        ``"sum"`` as in the paper's text; ``"mean"`` divides by C, as the authors' scripts and
        `torch.nn.MultiMarginLoss` do.

    Examples
    --------
    >>> import torch
    >>> multiclass_hinge(torch.tensor([[2.0, 1.5, 0.0]]), torch.tensor([0]))
    tensor([0.5000])
    """
    check_choice("multiclass_hinge", "over_classes", over_classes, ("sum", "mean"))
    right = scores.gather(1, target.unsqueeze(1))
    shortfall = (margin + scores - right).clamp(min=0)
    shortfall = shortfall.scatter(1, target.unsqueeze(1), 0)  # the right class does not compete with itself
    return shortfall.sum(1) if over_classes == "sum" else shortfall.mean(1)
