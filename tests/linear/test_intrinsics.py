"""The exponential, and the announcement of compilation."""

import logging

import numba
import numpy as np
import pytest

from ordered_sgd.linear.intrinsics import announced, exp


@numba.njit
def exponentials(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = exp(x[i])
    return out


def test_the_exponential_of_float32_is_right_to_rounding() -> None:
    x = np.concatenate([np.linspace(-87, 0, 100_001), [-0.0, -1e-8]]).astype(np.float32)
    expected = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(exponentials(x), expected, rtol=1.5e-7)
    assert exponentials(np.zeros(1, np.float32))[0] == 1
    assert 0 < exponentials(np.array([-1e30], np.float32))[0] < 2e-38


def test_the_exponential_of_float64_is_the_library_s() -> None:
    x = np.linspace(-700, 0, 1001)
    np.testing.assert_allclose(exponentials(x), np.exp(x), rtol=1e-15)
    assert exp(-1.0) == pytest.approx(np.exp(-1.0))  # outside of kernels as well


def test_compilation_is_announced_once_and_only_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    @numba.njit
    def inner(x: float) -> float:
        return x + 1

    @numba.njit
    def outer(x: float) -> float:
        return inner(x)

    with caplog.at_level(logging.INFO, "ordered_sgd.linear"), announced():
        assert outer(1.0) == 2
        assert outer(2.0) == 3
    assert [record.message.split()[0] for record in caplog.records] == ["compiling", "compiled"]
    assert {record.levelname for record in caplog.records} == {"INFO"}
