"""The ordered risk against its definition by enumeration, its neighbours, and what a choice of q means."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from ordered_sgd.errors import ArgumentError
from ordered_sgd.theory import (
    average_spectrum,
    average_top_k_spectrum,
    cvar_spectrum,
    effective_sample_size,
    equivalent_cvar_level,
    gamma_limit,
    gamma_weights,
    maximal_spectrum,
    ordered_risk,
    ordered_spectrum,
    sample_weights,
    share_of_hardest,
    spectral_risk,
)

LOSSES = np.array([0.3, 2.0, 0.1, 2.0, 0.7, 5.5, 0.1, 1.2])
small_pairs = pytest.mark.parametrize(("s", "q"), [(s, q) for s in range(1, 9) for q in range(1, s + 1)])


@st.composite
def losses_and_choice(draw):
    losses = draw(st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=40))
    s = draw(st.integers(1, len(losses)))
    return np.array(losses), s, draw(st.integers(1, s))


def mini_batches(s):
    return [list(batch) for batch in itertools.combinations(range(LOSSES.size), s)]


@small_pairs
def test_l_q_is_the_expected_mean_of_the_q_largest_of_a_mini_batch(s, q):
    expected = np.mean([np.sort(LOSSES[batch])[::-1][:q].mean() for batch in mini_batches(s)])
    assert math.isclose(ordered_risk(LOSSES, s, q), expected, rel_tol=1e-14)


@small_pairs
def test_sample_weights_are_the_shares_of_mini_batches_that_keep_each_sample(s, q):
    kept = np.zeros(LOSSES.size)
    for batch in mini_batches(s):
        kept[sorted(batch, key=lambda i: (-LOSSES[i], i))[:q]] += 1  # ties to the lower index
    assert_allclose(sample_weights(LOSSES, s, q), kept / len(mini_batches(s)), rtol=1e-14)


@given(losses_and_choice())
@settings(deadline=None)
def test_l_q_lies_between_the_mean_and_the_maximum(case):
    losses, s, q = case
    slack = 1e-12 * np.max(np.abs(losses))
    assert losses.mean() - slack <= ordered_risk(losses, s, q) <= losses.max() + slack


@given(losses_and_choice())
@settings(deadline=None)
def test_l_q_is_a_mixture_of_means_of_the_top_k_with_weights_k_d_k_over_q(case):
    losses, s, q = case
    n = losses.size
    mixture = np.arange(1, n + 1) * -np.diff(gamma_weights(n, s, q), append=0.0) / q
    top_means = [spectral_risk(losses, average_top_k_spectrum(n, k)) for k in range(1, n + 1)]
    assert math.isclose(mixture.sum(), 1.0, rel_tol=1e-13)
    assert math.isclose(mixture @ top_means, ordered_risk(losses, s, q), rel_tol=1e-11, abs_tol=1e-11)


@given(losses_and_choice())
@settings(deadline=None)
def test_sample_weights_and_spectrum_give_the_same_risk(case):
    losses, s, q = case
    by_sample = sample_weights(losses, s, q) @ losses / q
    assert math.isclose(by_sample, ordered_risk(losses, s, q), rel_tol=1e-12, abs_tol=1e-12)


def test_q_equal_to_s_is_the_plain_mean_and_one_of_all_is_the_maximal_loss():
    assert math.isclose(ordered_risk(LOSSES, 3, 3), LOSSES.mean(), rel_tol=1e-15)
    assert ordered_risk(LOSSES, 8, 1) == 5.5
    assert math.isclose(ordered_risk(LOSSES, 8, 3), 9.5 / 3, rel_tol=1e-15)  # average top-k is s = n
    assert ordered_risk(LOSSES, 8, 1, regularizer=0.25) == 5.75


def test_ties_go_to_the_lower_index_and_nan_ranks_first():
    assert_array_equal(sample_weights([1.0, 1.0, 1.0, 1.0], 4, 2), [1, 1, 0, 0])
    assert_array_equal(sample_weights([7.0, math.nan, math.inf, math.nan], 4, 2), [0, 1, 0, 1])


def test_nan_and_infinite_losses_are_never_hidden_and_uncounted_ones_never_felt():
    assert math.isnan(ordered_risk([1.0, math.nan, 2.0], 2, 1))
    assert ordered_risk([1.0, math.inf, 2.0], 2, 1) == math.inf
    assert ordered_risk([1.0, -math.inf, 2.0], 3, 2) == 1.5


def test_lists_and_arrays_of_any_number_type_are_losses():
    for losses in ([1, 2, 3], (1, 2, 3), np.array([1, 2, 3], dtype=np.float32), np.arange(6)[1:4]):
        assert math.isclose(ordered_risk(losses, 2, 1), 8 / 3, rel_tol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
def test_torch_tensors_are_losses_with_or_without_grad(dtype):
    torch = pytest.importorskip("torch")
    losses = torch.tensor([1, 2, 3], dtype=getattr(torch, dtype))
    assert math.isclose(ordered_risk(losses, 2, 1), 8 / 3, rel_tol=1e-15)
    assert_allclose(sample_weights(losses, 2, 1), [0, 1 / 3, 2 / 3], rtol=1e-15)
    if losses.is_floating_point():
        assert math.isclose(ordered_risk(losses.requires_grad_(), 2, 1), 8 / 3, rel_tol=1e-15)


def test_every_spectrum_sums_to_one_and_never_increases():
    n = 50
    for spectrum in (
        ordered_spectrum(n, 10, 3),
        average_spectrum(n),
        average_top_k_spectrum(n, 7),
        cvar_spectrum(n, 0.333),
        cvar_spectrum(n, 0.001),
        maximal_spectrum(n),
    ):
        assert spectrum.shape == (n,)
        assert math.isclose(spectrum.sum(), 1.0, rel_tol=1e-14)
        assert np.all(np.diff(spectrum) <= 0)


def test_the_neighbours_are_corners_of_the_ordered_spectrum():
    assert_allclose(ordered_spectrum(9, 4, 4), average_spectrum(9), rtol=1e-15)
    assert_allclose(ordered_spectrum(9, 9, 1), maximal_spectrum(9), rtol=1e-15)
    assert_allclose(ordered_spectrum(9, 9, 4), average_top_k_spectrum(9, 4), rtol=1e-15)
    assert_allclose(cvar_spectrum(8, 3 / 8), average_top_k_spectrum(8, 3), rtol=1e-15)


@pytest.mark.parametrize(("s", "q"), [(1, 1), (2, 1), (10, 3), (64, 16), (64, 63), (64, 64), (1000, 100)])
def test_finite_n_figures_tend_to_their_limits(s, q):
    n = 100_000
    assert math.isclose(effective_sample_size(n, s, q) / n, effective_sample_size(None, s, q), rel_tol=50 / n)
    for fraction in (0.01, 0.1, 0.255, 1.0):
        finite, limit = share_of_hardest(fraction, n, s, q), share_of_hardest(fraction, None, s, q)
        assert math.isclose(finite, limit, rel_tol=50 / n)


def test_effective_sample_size_counts_equal_weights():
    assert math.isclose(effective_sample_size(50, 7, 7), 50, rel_tol=1e-14)
    assert math.isclose(effective_sample_size(50, 50, 12), 12, rel_tol=1e-14)
    assert effective_sample_size(None, 7, 7) == 1.0


def test_the_hardest_share_counts_the_sample_on_the_border_in_part():
    assert math.isclose(share_of_hardest(0.5, 5, 3, 2), 0.3 + 0.3 + 0.25 / 2, rel_tol=1e-14)
    assert math.isclose(share_of_hardest(1.0, 5, 3, 2), 1.0, rel_tol=1e-14)


@pytest.mark.parametrize(("s", "q"), [(2, 1), (3, 2), (10, 3), (64, 16), (64, 40)])
@pytest.mark.parametrize(("norm", "power"), [("l1", 1), ("l2", 2)])
def test_no_other_cvar_level_is_closer(norm, power, s, q):
    z = (np.arange(20_000) + 0.5) / 20_000
    spectrum = gamma_limit(z, s, q) / q

    def distance(alpha):
        return np.mean(np.abs(spectrum - np.where(z < alpha, 1 / alpha, 0.0)) ** power)

    best = distance(equivalent_cvar_level(s, q, norm=norm))
    assert best <= 1.001 * min(distance(alpha) for alpha in np.linspace(0.02, 1, 197))  # a sum for an integral


def test_the_cvar_level_is_the_median_of_the_mixture():
    assert equivalent_cvar_level(5, 5) == equivalent_cvar_level(5, 5, norm="l1") == 1.0
    assert math.isclose(equivalent_cvar_level(64, 16), stats.beta(17, 48).median(), rel_tol=1e-12)
    assert math.isclose(equivalent_cvar_level(64, 16), (16 + 2 / 3) / (64 + 1 / 3), rel_tol=1e-4)


def test_the_l1_level_may_be_q_over_s_to_the_last_bit():
    assert 0 < equivalent_cvar_level(1000, 100, norm="l1") - 0.1 < 1e-11
    assert equivalent_cvar_level(10_000, 5000, norm="l1") == 0.5


@pytest.mark.parametrize(("s", "q"), [(2, 1), (10, 3), (64, 16)])
def test_l_q_is_cvar_at_a_random_beta_level_for_large_n(s, q):
    levels = stats.beta(q + 1, s - q).ppf((np.arange(2000) + 0.5) / 2000)
    for fraction in (
        0.05,
        0.2,
        0.6,
    ):  # the mixture's share of the hardest, since CVaR gives them min(1, fraction / level)
        mixture = np.mean(np.minimum(1.0, fraction / levels))
        assert math.isclose(mixture, share_of_hardest(fraction, None, s, q), rel_tol=1e-4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: ordered_risk([[1.0]], 1, 1),
            "ordered_risk: losses must be one number per sample, shape (n,); got shape (1, 1).",
        ),
        (
            lambda: ordered_risk(2.5, 1, 1),
            "ordered_risk: losses must be one number per sample, shape (n,); got shape ().",
        ),
        (
            lambda: ordered_risk([], 1, 1),
            "ordered_risk: losses must be one number per sample, shape (n,); got shape (0,).",
        ),
        (
            lambda: sample_weights(["a"], 1, 1),
            "sample_weights: losses must be one number per sample, shape (n,); got a list",
        ),
        (
            lambda: sample_weights([[1], [1, 2]], 1, 1),
            "sample_weights: losses must be one number per sample, shape (n,); got a",
        ),
        (lambda: ordered_risk([1.0], 2, 1), "ordered_risk: s must be an int from 1 to n = 1; got 2. "),
        (lambda: sample_weights([1.0], 1, 2), "sample_weights: q must be an int from 1 to s = 1; got 2. "),
        (
            lambda: spectral_risk([1.0], [0.5, 0.5]),
            "spectral_risk: spectrum must have one weight per loss, shape (1,); got shape",
        ),
        (lambda: ordered_spectrum(3, 4, 1), "ordered_spectrum: s must be an int from 1 to n = 3; got 4. "),
        (lambda: average_spectrum(0), "average_spectrum: n must be an int of at least 1; got 0. "),
        (lambda: maximal_spectrum(0), "maximal_spectrum: n must be an int of at least 1; got 0. "),
        (lambda: average_top_k_spectrum(4, 5), "average_top_k_spectrum: k must be an int from 1 to n = 4; got 5. "),
        (lambda: cvar_spectrum(4, 0.0), "cvar_spectrum: alpha must lie in (0, 1]; got 0.0. "),
        (lambda: cvar_spectrum(4, "half"), "cvar_spectrum: alpha must lie in (0, 1]; got 'half'. "),
        (lambda: effective_sample_size(4, 5, 1), "effective_sample_size: s must be an int from 1 to n = 4; got 5. "),
        (lambda: effective_sample_size(None, 5, 6), "effective_sample_size: q must be an int from 1 to s = 5; got 6. "),
        (lambda: equivalent_cvar_level(5, 6), "equivalent_cvar_level: q must be an int from 1 to s = 5; got 6. "),
        (
            lambda: equivalent_cvar_level(5, 3, norm="l3"),
            "equivalent_cvar_level: norm must be 'l1' or 'l2'; got 'l3'. ",
        ),
        (lambda: share_of_hardest(1.5, 10, 5, 3), "share_of_hardest: fraction must lie in (0, 1]; got 1.5. "),
        (lambda: share_of_hardest(0.5, 4, 5, 3), "share_of_hardest: s must be an int from 1 to n = 4; got 5. "),
    ],
)
def test_a_wrong_argument_gets_one_clear_message(call, text):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(("n", "s", "q"), [(6, 4, 2), (7, 7, 1), (8, 3, 3), (9, 5, 4)])
def test_the_ordered_risk_is_convex_in_the_losses_and_the_weights_are_its_subgradient_ties_included(
    n: int, s: int, q: int
) -> None:
    # L_q is an average of maxima of means, so it is convex; r / q is a subgradient: L_q(v) >= L_q(u) + r(u) (v - u) / q
    rng = np.random.default_rng(n)
    for _ in range(200):
        u = rng.integers(0, 4, n).astype(float)  # few values: ties are the rule
        v = rng.integers(0, 4, n) + rng.normal(size=n)
        slope = sample_weights(u, s, q) / q
        assert ordered_risk(v, s, q) >= ordered_risk(u, s, q) + slope @ (v - u) - 1e-12
        assert ordered_risk((u + v) / 2, s, q) <= (ordered_risk(u, s, q) + ordered_risk(v, s, q)) / 2 + 1e-12
