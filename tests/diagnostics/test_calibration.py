import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd.diagnostics.calibration import best_temperature, calibration_error, cross_entropy
from ordered_sgd.errors import ArgumentError


def drawn(n: int = 500, classes: int = 4, sharpness: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose softmax at temperature `sharpness` is exactly the distribution of the labels."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n, classes))
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(classes, p=p) for p in probabilities])
    return sharpness * scores, y


def test_cross_entropy_is_torch_s() -> None:
    scores, y = drawn()
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(y)).item()
    assert cross_entropy(scores, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0])
def test_the_best_temperature_undoes_sharpening(sharpness: float) -> None:
    scores, y = drawn(n=20_000, sharpness=sharpness)
    assert best_temperature(scores, y) == pytest.approx(sharpness, rel=0.05)


@given(st.integers(0, 100))
def test_no_temperature_is_better_than_the_best(seed: int) -> None:
    scores, y = drawn(n=40, sharpness=3.0, seed=seed)
    best = cross_entropy(scores, y, temperature=best_temperature(scores, y))
    grid = [cross_entropy(scores, y, temperature=t) for t in np.geomspace(0.02, 50, 60)]
    assert best <= min(grid) + 1e-6


def test_calibration_error_is_that_of_a_loop_over_bins() -> None:
    scores, y = drawn(sharpness=4.0)
    probabilities = torch.softmax(torch.from_numpy(scores), 1).numpy()
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    total = 0.0
    for low in np.arange(10) / 10:
        inside = (confidence >= low) & (confidence < low + 0.1)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert calibration_error(scores, y, bins=10) == pytest.approx(total, abs=1e-12)


def test_a_calibrated_model_has_a_small_error_and_a_sharpened_one_a_large_one() -> None:
    scores, y = drawn(n=20_000)
    assert calibration_error(scores, y) < 0.02
    assert calibration_error(5 * scores, y) > 0.2
    assert calibration_error(5 * scores, y, temperature=5.0) == pytest.approx(calibration_error(scores, y))


@pytest.mark.parametrize(
    ("scores", "y", "text"),
    [
        ([[1.0, 2.0]], [2], "y must be class numbers below 2; got int64 from 2 to 2. Labels"),
        ([[1.0, 2.0]], [0.5], "y must be class numbers below 2"),
        ([1.0, 2.0], [0, 1], "hold one row and one label per sample"),
        (np.empty((0, 2)), np.empty(0, int), "hold one row and one label per sample"),
    ],
)
def test_bad_input_gets_one_clear_error(scores: object, y: object, text: str) -> None:
    with pytest.raises(ArgumentError, match=text.replace("(", r"\(")):
        cross_entropy(scores, y)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="bins must be at least 1"):
        calibration_error([[1.0, 2.0]], [0], bins=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_are_taken_as_they_come_out_of_a_model(dtype: torch.dtype) -> None:
    scores, y = drawn()
    rounded = torch.from_numpy(scores).to(dtype)
    found = best_temperature(rounded.clone().requires_grad_(), torch.from_numpy(y))
    assert found == pytest.approx(best_temperature(rounded.double().numpy(), y), rel=1e-6)
    assert calibration_error(rounded.requires_grad_(), torch.from_numpy(y)) == pytest.approx(
        calibration_error(rounded.detach().double().numpy(), y), abs=1e-6
    )


def test_labels_temperatures_and_scores_that_mean_nothing_are_one_clear_error() -> None:
    scores = np.array([[1.0, 0.0], [0.0, 1.0]])
    for call in (cross_entropy, best_temperature, calibration_error):
        with pytest.raises(ArgumentError, match=r"y must be class numbers below 2; got .*'cat'.*searchsorted"):
            call(scores, ["cat", "dog"])
        with pytest.raises(ArgumentError, match="scores must be finite; got nan for class 1 of sample 0"):
            call([[1.0, np.nan], [0.0, 1.0]], [0, 1])
    for call in (cross_entropy, calibration_error):
        for temperature in (-1.0, 0.0, np.nan, np.inf):
            with pytest.raises(ArgumentError, match="temperature must be positive and finite; got"):
                call(scores, [0, 1], temperature=temperature)
