"""Ten million gamma weights against one cumsum plus one exp over the same array, in one interleaved run."""

import numpy as np
import pytest

from ordered_sgd.lab.bench.timing import interleave
from ordered_sgd.theory._kernels import weights_numba
from ordered_sgd.theory._recurrence import weights_numpy


@pytest.mark.bench
@pytest.mark.parametrize(("s", "q"), [(3, 2), (64, 1), (64, 16), (1000, 100)])
def test_gamma_weights_cost_about_a_cumsum_and_an_exp(s, q):
    n = 10**7
    weights = weights_numba(n, s, q)
    seconds = interleave(
        {
            "cumsum": lambda: np.cumsum(weights),
            "exp": lambda: np.exp(weights),
            "numba": lambda: weights_numba(n, s, q),
            "numpy": lambda: weights_numpy(n, s, q),
        },
        rounds=11,
    )
    yardstick = seconds["cumsum"].median + seconds["exp"].median
    ratios = {twin: seconds[twin].median / yardstick for twin in ("numba", "numpy")}
    assert ratios["numba"] <= 1.5, ratios
    assert ratios["numpy"] <= 15, ratios
