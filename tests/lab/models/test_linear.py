import torch

from ordered_sgd.lab.models import LinearModel


def test_scores_are_a_matrix_product_of_the_flattened_samples_and_a_bias() -> None:
    model = LinearModel(12, classes=4).double()
    x = torch.randn(5, 3, 2, 2, dtype=torch.float64)
    weight, bias = model.parameters()
    expected = torch.einsum("schw,kchw->sk", x, weight.view(4, 3, 2, 2)) + bias
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model(x.to(memory_format=torch.channels_last)), expected)
    torch.testing.assert_close(model(x.reshape(5, 12)), expected)
