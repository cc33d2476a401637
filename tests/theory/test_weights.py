"""The gamma weights against exact fractions and 60-digit arithmetic, and what the paper says of them."""

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory import gamma_limit, gamma_weights
from ordered_sgd.theory._kernels import weights_numba
from ordered_sgd.theory._recurrence import BLOCK, weights_numpy
from ordered_sgd.theory.weights import _NUMBA_FROM

twins = pytest.mark.parametrize("weights", [weights_numba, weights_numpy])
LARGE = [(2, 1), (3, 1), (3, 2), (64, 1), (64, 16), (64, 63), (1000, 100), (5000, 1250), (5000, 4999)]


@st.composite
def triples(draw, largest=300):
    n = draw(st.integers(1, largest))
    s = draw(st.integers(1, n))
    return n, s, draw(st.integers(1, s))


def exact_weights(n, s, q):
    """Eq. 3 in integers; the one division rounds once."""
    sums = [sum(math.comb(j - 1, k) * math.comb(n - j, s - 1 - k) for k in range(q)) for j in range(1, n + 1)]
    return np.array([value / math.comb(n, s) for value in sums])


def exact_weights_by_differences(n, s, q):
    """The same for q < s, fast enough for all triples: suffix sums of the integers d_k C(n, s)."""
    total, weights = 0, np.zeros(n)
    for k in range(n - s + q, q - 1, -1):
        total += math.comb(k - 1, q - 1) * math.comb(n - k - 1, s - q - 1)
        weights[k - 1] = total / math.comb(n, s)
    weights[:q] = s / n
    return weights


def weight_to_60_digits(n, s, q, j):
    """Eq. 3 with its first term in integers and the others, all positive, by their ratios."""
    first = max(0, s - 1 - (n - j))
    if first >= q:
        return mpmath.mpf(0)
    with mpmath.workdps(60):
        term = mpmath.mpf(math.comb(j - 1, first) * math.comb(n - j, s - 1 - first)) / math.comb(n, s)
        total = term
        for k in range(first, min(q, j) - 1):
            term = term * ((j - 1 - k) * (s - k - 1)) / ((k + 1) * (n - j - s + k + 2))
            total += term
        return total


def relative_error(computed, exact):
    assert_array_equal(computed == 0, exact == 0)
    positive = exact > 0
    return np.max(np.abs(computed[positive] / exact[positive] - 1), initial=0.0)


def error_at_ranks(computed, ranks, n, s, q):
    exact = [weight_to_60_digits(n, s, q, int(j)) for j in ranks]
    with mpmath.workdps(60):
        return max(float(abs(mpmath.mpf(float(w)) / e - 1)) for w, e in zip(computed, exact, strict=True))


def ranks_to_check(weights, n, s, q):
    """The edges, random ones, and the last rank whose weight is not below 1e-299."""
    last = int(np.count_nonzero(weights >= 1e-299))
    edges = [1, q, min(q + 1, last), last // 2 + 1, max(last - 1, 1), last]
    return np.unique(np.concatenate([edges, np.random.default_rng(n + s + q).integers(1, last + 1, 10)]))


@twins
@pytest.mark.parametrize("largest", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_every_triple_of_small_n_is_exact_to_5e_14(weights, largest):
    worst = 0.0
    for n in range(2, largest + 1):
        for s in range(2, n + 1):
            for q in range(1, s):
                worst = max(worst, relative_error(weights(n, s, q), exact_weights_by_differences(n, s, q)))
    assert worst <= 5e-14


def test_the_two_exact_forms_agree():
    for n, s, q in [(9, 4, 2), (30, 7, 3), (41, 40, 39), (60, 2, 1)]:
        assert_allclose(exact_weights_by_differences(n, s, q), exact_weights(n, s, q), rtol=3e-16)


@twins
@pytest.mark.parametrize("triples", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_sampled_triples_to_n_300_are_exact_to_5e_14(weights, triples):
    rng = np.random.default_rng(0)
    for _ in range(triples):
        n = int(rng.integers(61, 301))
        s = int(rng.integers(2, n + 1))
        q = int(rng.integers(1, s))
        assert relative_error(weights(n, s, q), exact_weights_by_differences(n, s, q)) <= 5e-14
    for n in (61, 300):  # the mode formula divides by s - 2
        assert relative_error(weights(n, 2, 1), exact_weights_by_differences(n, 2, 1)) <= 5e-14


@twins
@pytest.mark.parametrize("n", [10**4, 10**6])
@pytest.mark.parametrize(("s", "q"), LARGE)
def test_large_n_agrees_with_60_digits_to_1e_13(weights, n, s, q):
    computed = weights(n, s, q)
    ranks = ranks_to_check(computed, n, s, q)
    assert error_at_ranks(computed[ranks - 1], ranks, n, s, q) <= 1e-13
    assert np.all(np.diff(computed) <= 0)
    assert computed.max() == s / n
    assert math.isclose(math.fsum(computed), q, rel_tol=1e-13)


@pytest.mark.slow
@twins
@pytest.mark.parametrize(("s", "q"), [(2, 1), (3, 2), (64, 16), (5000, 1250)])
def test_n_1e8_agrees_with_60_digits_to_1e_12(weights, s, q):
    n = 10**8
    computed = weights(n, s, q)
    ranks = ranks_to_check(computed, n, s, q)
    assert error_at_ranks(computed[ranks - 1], ranks, n, s, q) <= 1e-12


@pytest.mark.parametrize(("n", "s", "q"), [(10**4, 1000, 100), (10**6, 5000, 1250), (10**6, 5000, 1)])
def test_the_far_tail_down_to_1e_299_is_among_the_ranks_checked(n, s, q):
    computed = weights_numba(n, s, q)
    assert computed[ranks_to_check(computed, n, s, q) - 1].min() < 1e-298


@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
@pytest.mark.parametrize(("s", "q"), [(2, 1), (3, 2), (100, 30), (BLOCK - 1, 7)])
def test_the_twins_agree_where_a_block_ends(n, s, q):
    assert_allclose(weights_numpy(n, s, q), weights_numba(n, s, q), rtol=1e-14, atol=1e-300)


@given(triples())
@settings(deadline=None)
def test_chosen_ranks_are_exact_to_3e_14(triple):
    n, s, q = triple
    exact = exact_weights_by_differences(n, s, q) if q < s else np.full(n, s / n)
    assert relative_error(gamma_weights(n, s, q, ranks=np.arange(1, n + 1)), exact) <= 3e-14


@pytest.mark.parametrize("n", [10**4, 10**8, 10**13])
@pytest.mark.parametrize(("s", "q"), LARGE)
def test_chosen_ranks_of_large_n_agree_with_60_digits_to_3e_14(n, s, q):
    ranks = np.unique(np.geomspace(1, n - s + q, 8).astype(np.int64))
    computed = gamma_weights(n, s, q, ranks=ranks)
    kept = computed >= 1e-299
    assert error_at_ranks(computed[kept], ranks[kept], n, s, q) <= 3e-14
    assert all(weight_to_60_digits(n, s, q, int(j)) < 2e-299 for j in ranks[~kept])


def test_chosen_ranks_come_in_any_shape_and_number():
    everything = gamma_weights(100_000, 50, 20)
    ranks = np.random.default_rng(0).integers(1, 100_001, (400, 50))
    assert_allclose(gamma_weights(100_000, 50, 20, ranks=ranks), everything[ranks - 1], rtol=3e-14)
    assert gamma_weights(9, 3, 2, ranks=1).shape == ()
    assert gamma_weights(9, 3, 2, ranks=np.empty(0, dtype=int)).shape == (0,)


@given(triples(largest=200))
@settings(deadline=None)
def test_weights_sum_to_q_never_increase_and_end_at_rank_n_minus_s_plus_q(triple):
    n, s, q = triple
    weights = gamma_weights(n, s, q)
    assert weights.dtype == np.float64
    assert math.isclose(math.fsum(weights), q, rel_tol=1e-14)
    assert np.all(np.diff(weights) <= 0)
    assert np.all(weights[: n - s + q] > 0)
    assert np.all(weights[n - s + q :] == 0) or q == s


@given(triples(largest=24))
def test_weights_reach_s_over_n_exactly_for_the_first_q_ranks(triple):
    n, s, q = triple
    weights = gamma_weights(n, s, q)
    assert_array_equal(weights == s / n, np.arange(1, n + 1) <= (q if q < s else n))


@given(triples(largest=60))
def test_differences_have_the_closed_form(triple):
    n, s, q = triple
    if q == s:
        return  # all weights are equal
    j = range(1, n)
    closed = [math.comb(i - 1, q - 1) * math.comb(n - i - 1, s - q - 1) / math.comb(n, s) for i in j]
    assert_allclose(-np.diff(gamma_weights(n, s, q)), closed, rtol=1e-12, atol=4e-16)


@pytest.mark.parametrize(("n", "s"), [(1, 1), (5, 1), (5, 5), (7, 3), (10**6, 64)])
def test_q_equal_to_s_gives_s_over_n_everywhere(n, s):
    assert_array_equal(gamma_weights(n, s, s), np.full(n, s / n))
    assert_array_equal(gamma_weights(n, s, s, ranks=[1, n]), [s / n, s / n])


@pytest.mark.parametrize("q", [1, 3, 7])
def test_a_batch_of_everything_keeps_the_first_q(q):
    assert_array_equal(gamma_weights(7, 7, q), np.arange(7) < q)


def test_numba_serves_large_n_and_numpy_serves_without_it(monkeypatch):
    n = _NUMBA_FROM
    assert_array_equal(gamma_weights(n, 64, 16), weights_numba(n, 64, 16))
    monkeypatch.setitem(sys.modules, "numba", None)  # what an import then meets is a missing module
    for name in ("ordered_sgd.theory._kernels", "ordered_sgd.jit"):
        monkeypatch.delitem(sys.modules, name)
    assert_array_equal(gamma_weights(n, 64, 16), weights_numpy(n, 64, 16))


def test_importing_the_theory_loads_neither_torch_nor_numba():
    code = "import sys, ordered_sgd.theory; print({'torch', 'numba'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


@pytest.mark.parametrize(("s", "q"), [(1, 1), (2, 1), (10, 3), (10, 9), (64, 16)])
def test_the_limit_is_the_sum_of_proposition_1(s, q):
    z = np.linspace(0, 1, 51)
    terms = [
        z**k * (1 - z) ** (s - k - 1) * (math.factorial(s) // (math.factorial(k) * math.factorial(s - k - 1)))
        for k in range(q)
    ]
    assert_allclose(gamma_limit(z, s, q), np.sum(terms, axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("s", "q"), [(10, 3), (100, 30), (100, 60), (10, 10)])
def test_n_gamma_tends_to_the_limit_with_an_error_of_order_1_over_n(s, q):
    distance = {}
    for n in (10**3, 10**4, 10**5):
        z = np.arange(1, n + 1) / n
        distance[n] = np.max(np.abs(n * gamma_weights(n, s, q) - gamma_limit(z, s, q)))
    assert 8 * distance[10**4] <= distance[10**3] <= 12 * distance[10**4] + 1e-9
    assert 8 * distance[10**5] <= distance[10**4] <= 12 * distance[10**5] + 1e-9


def test_proposition_1_as_printed_fails_since_gamma_itself_tends_to_zero():
    s, q, z = 10, 3, 0.2
    literal = [gamma_weights(n, s, q, ranks=int(z * n)) for n in (10**3, 10**6, 10**9)]
    assert literal[-1] < 1e-8 < gamma_limit(z, s, q)
    assert_allclose(10**9 * literal[-1], gamma_limit(z, s, q), rtol=1e-7)


def test_the_limit_takes_any_shape_and_the_ends():
    assert gamma_limit(0.3, 10, 3).shape == ()
    assert_array_equal(gamma_limit([[0.0], [1.0]], 10, 3), [[10.0], [0.0]])
    assert_array_equal(gamma_limit([0.0, 0.5, 1.0], 4, 4), [4.0, 4.0, 4.0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: gamma_weights(0, 1, 1), "gamma_weights: n must be an int of at least 1; got 0. Pass the number of"),
        (lambda: gamma_weights(5, 6, 1), "gamma_weights: s must be an int from 1 to n = 5; got 6. A mini-batch has"),
        (lambda: gamma_weights(5, 3, 4), "gamma_weights: q must be an int from 1 to s = 3; got 4. For a share"),
        (lambda: gamma_weights(5, 3, 0.5), "gamma_weights: q must be an int from 1 to s = 3; got 0.5. For a share"),
        (lambda: gamma_weights(5, 3, True), "gamma_weights: q must be an int from 1 to s = 3; got True. For a share"),
        (lambda: gamma_weights("5", 3, 1), "gamma_weights: n must be an int of at least 1; got '5'. Pass the number"),
        (
            lambda: gamma_weights(5, 3, 1, ranks=[0]),
            "gamma_weights: ranks must be integers from 1 to n = 5; got 0. Rank",
        ),
        (
            lambda: gamma_weights(5, 3, 1, ranks=[6]),
            "gamma_weights: ranks must be integers from 1 to n = 5; got 6. Rank",
        ),
        (
            lambda: gamma_weights(5, 3, 1, ranks=[1.0]),
            "gamma_weights: ranks must be integers from 1 to n = 5; got dtype",
        ),
        (
            lambda: gamma_weights(2**56, 64, 1, ranks=1),
            "gamma_weights: n * s must be below 2**62 when ranks are given;",
        ),
        (lambda: gamma_limit(0.5, 3, 4), "gamma_limit: q must be an int from 1 to s = 3; got 4. For a share"),
        (
            lambda: gamma_limit([0.5, 1.5], 3, 2),
            "gamma_limit: z must lie in [0, 1]; got 1.5. Pass z = j / n for rank j.",
        ),
        (lambda: gamma_limit(math.nan, 3, 2), "gamma_limit: z must lie in [0, 1]; got nan. Pass z = j / n for rank j."),
    ],
)
def test_a_wrong_argument_gets_one_clear_message(call, text):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_numpy_integers_are_ints():
    assert_array_equal(gamma_weights(np.int64(5), np.int32(3), np.uint8(2)), gamma_weights(5, 3, 2))


def test_the_derivative_of_the_limit_is_the_term_with_l_equal_to_q_minus_1() -> None:
    # the paper's proof of Proposition 1 leaves an l in the factorials of the one term that remains
    s, q, z, h = 10, 3, 0.3, 1e-6
    slope = (gamma_limit(z + h, s, q) - gamma_limit(z - h, s, q)) / (2 * h)

    def term(k: int) -> float:
        return -math.factorial(s) / (math.factorial(k) * math.factorial(s - k - 2)) * z**k * (1 - z) ** (s - k - 2)

    assert slope == pytest.approx(term(q - 1), rel=1e-6)
