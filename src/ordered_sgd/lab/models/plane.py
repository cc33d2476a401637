"""The networks of Figure 1: binary classifiers of points in the plane."""

from typing import Literal

from torch import Tensor, nn

from ordered_sgd.errors import check_choice

Panel = Literal["a", "b", "c", "d"]

# Units of each hidden layer; none for the linear classifier. Appendix of the paper, "For 2-D illustrations".
HIDDEN: dict[Panel, tuple[int, ...]] = {"a": (), "b": (), "c": (20, 20, 20), "d": (10, 10, 10)}


class Figure1Network(nn.Module):
    """One score per point, shape (s,): positive for class 1, and 0 on the boundary.

    Panels (a) and (b) are linear; (c) and (d) have three hidden layers of 20 and 10 ReLU units. The paper's text gives
    the loss, "(binary) cross entropy", but not the number of outputs. This network has one, as in the paper's logistic
    loss log(1 + exp(-y a)) of a score a. Use
    ``F.binary_cross_entropy_with_logits(scores, y.float(), reduction="none")`` with y in {0, 1}.
    Two outputs with a softmax would have the same boundaries, given by their difference.

    Parameters
    ----------
    panel : str
        Panel of Figure 1: ``"a"``, ``"b"``, ``"c"`` or ``"d"``.

    Examples
    --------
    >>> import torch
    >>> Figure1Network("c")(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        check_choice("Figure1Network", "panel", panel, tuple(HIDDEN))
        layers: list[nn.Module] = []
        width = 2  # a point's coordinates
        for units in HIDDEN[panel]:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (s,) of points (s, 2)."""
        scores: Tensor = self.layers(x)
        return scores.squeeze(1)
