import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.models import Figure1Network


def logistic_loss(scores: Tensor, y: Tensor) -> Tensor:
    """The paper's, log(1 + exp(-y a)) with y in {-1, 1}, written out."""
    return torch.log1p(torch.exp(-(2 * y - 1) * scores))


@pytest.mark.parametrize(
    ("panel", "widths"), [("a", [2, 1]), ("b", [2, 1]), ("c", [2, 20, 20, 20, 1]), ("d", [2, 10, 10, 10, 1])]
)
def test_layers_are_those_of_the_text(panel: str, widths: list[int]) -> None:
    model = Figure1Network(panel)
    linear = [layer for layer in model.layers if isinstance(layer, nn.Linear)]
    assert [linear[0].in_features, *(layer.out_features for layer in linear)] == widths
    x = torch.randn(7, 2)
    expected = x
    for layer in linear[:-1]:
        expected = F.relu(expected @ layer.weight.T + layer.bias)
    expected = (expected @ linear[-1].weight.T + linear[-1].bias)[:, 0]
    torch.testing.assert_close(model(x), expected)
    assert model(x).shape == (7,)


def test_binary_cross_entropy_of_the_score_is_the_papers_logistic_loss() -> None:
    scores, y = Figure1Network("d").double()(torch.randn(9, 2, dtype=torch.float64)), torch.arange(9) % 2
    found = F.binary_cross_entropy_with_logits(scores, y.double(), reduction="none")
    torch.testing.assert_close(found, logistic_loss(scores, y))


def test_an_unknown_panel_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"Figure1Network: panel must be one of a, b, c, d; got 'e'"):
        Figure1Network("e")  # type: ignore[arg-type]
