import math
import warnings
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ordered_sgd import ordered_mean, select_top_q
from ordered_sgd.errors import ArgumentError
from ordered_sgd.selection import _top_rows_numpy, _top_rows_torch, random_rows, select_rows

# Few distinct values, so that ties are the rule; NaN and infinities among them.
loss_lists = st.lists(
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan]), min_size=1, max_size=70
)


def by_definition(losses: list[float], q: int) -> list[int]:
    """Sort by (NaN first, larger first, lower index first), keep q, ascending."""

    def key(i: int) -> tuple[bool, float, int]:
        nan = math.isnan(losses[i])
        return (not nan, 0.0 if nan else -losses[i], i)

    return sorted(sorted(range(len(losses)), key=key)[:q])


@given(loss_lists, st.integers(1, 80))
def test_the_selection_is_the_definition_with_ties_nan_and_inf(losses: list[float], q: int) -> None:
    expected = by_definition(losses, q)
    assert select_top_q(torch.tensor(losses), q).tolist() == expected
    assert _top_rows_torch(torch.tensor(losses), q).tolist() == expected


@pytest.mark.parametrize("s", [511, 512, 3000])
@pytest.mark.parametrize("values", ["distinct", "ties", "equal", "nan"])
def test_partition_sort_and_torch_agree_on_both_sides_of_the_threshold(s: int, values: str) -> None:
    rng = np.random.default_rng(s)
    losses = {
        "distinct": rng.standard_normal(s),
        "ties": rng.integers(0, 3, s).astype(float),
        "equal": np.ones(s),
        "nan": np.where(rng.random(s) < 0.5, np.nan, rng.integers(0, 3, s)),
    }[values]
    for q in (1, 2, s // 16, s // 2, s - 1):
        expected = _top_rows_torch(torch.from_numpy(losses), q).numpy()
        np.testing.assert_array_equal(_top_rows_numpy(losses, q), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_dtype_gives_the_same_rows(dtype: torch.dtype) -> None:
    losses = torch.tensor([0.25, 3.0, 1.0, 3.0, 0.5], dtype=dtype)
    rows = select_top_q(losses, 2)
    assert rows.tolist() == [1, 3]
    assert rows.dtype == torch.int64


def test_topk_of_torch_does_not_keep_our_tie_rule_and_ours_does() -> None:
    assert select_top_q(torch.ones(8), 3).tolist() == [0, 1, 2]


def test_q_larger_than_the_batch_keeps_all_of_it() -> None:
    assert select_top_q(torch.tensor([1.0, 2.0]), 64).tolist() == [0, 1]


@given(loss_lists, st.integers(1, 20), st.randoms())
def test_the_kept_losses_do_not_depend_on_the_order_of_the_batch(losses: list[float], q: int, random: Random) -> None:
    order = torch.tensor(random.sample(range(len(losses)), len(losses)))
    tensor = torch.tensor(losses)
    kept = tensor[select_top_q(tensor, q)].sort().values
    shuffled = tensor[order]
    torch.testing.assert_close(shuffled[select_top_q(shuffled, q)].sort().values, kept, equal_nan=True)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=50), st.integers(1, 50))
def test_the_ordered_mean_falls_with_q_and_is_never_below_the_mean(losses: list[float], q: int) -> None:
    tensor = torch.tensor(losses, dtype=torch.float64)
    assert ordered_mean(tensor, q) >= ordered_mean(tensor, q + 1) - 1e-9
    assert ordered_mean(tensor, q) >= tensor.mean() - 1e-9


@given(st.lists(st.floats(0, 100, width=32), min_size=1, max_size=50), st.integers(1, 50))
def test_the_ordered_mean_scales_and_shifts_with_the_losses(losses: list[float], q: int) -> None:
    tensor = torch.tensor(losses, dtype=torch.float64)
    torch.testing.assert_close(ordered_mean(2 * tensor + 3, q), 2 * ordered_mean(tensor, q) + 3)


def test_q_equal_to_the_batch_size_is_the_plain_mean_bit_for_bit() -> None:
    losses = torch.rand(64)
    assert torch.equal(ordered_mean(losses, 64), losses.mean())
    assert torch.equal(ordered_mean(losses, 1.0), losses.mean())


def test_the_gradient_is_one_over_q_on_the_kept_losses_and_zero_elsewhere() -> None:
    losses = torch.rand(32, requires_grad=True)
    ordered_mean(losses, 0.25).backward()
    expected = torch.zeros(32)
    expected[select_top_q(losses, 8)] = 1 / 8
    assert torch.equal(losses.grad, expected)


def test_a_nan_loss_makes_the_ordered_mean_nan() -> None:
    assert ordered_mean(torch.tensor([1.0, math.nan, 3.0]), 1).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_losses_are_averaged_in_float32(dtype: torch.dtype) -> None:
    losses = torch.rand(1000).to(dtype).requires_grad_()
    mean = ordered_mean(losses, 900)
    expected = losses.detach().float().topk(900).values.mean()
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.detach(), expected)
    mean.backward()
    assert losses.grad is not None
    assert losses.grad.dtype == dtype


def test_a_trailing_dimension_of_one_is_squeezed() -> None:
    losses = torch.rand(16, 1)
    assert torch.equal(ordered_mean(losses, 4), ordered_mean(losses.squeeze(1), 4))
    assert torch.equal(select_top_q(losses, 4), select_top_q(losses.squeeze(1), 4))


@pytest.mark.parametrize("q", [4, 0.25])
def test_compiling_with_fullgraph_gives_the_same_value_and_gradient_without_a_recompile(q: float) -> None:
    compiled = torch.compile(ordered_mean, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            losses = torch.randint(0, 9, (64,)).float().requires_grad_()
            twin = losses.detach().clone().requires_grad_()
            compiled(losses, q).backward()
            ordered_mean(twin, q).backward()
            assert torch.equal(losses.grad, twin.grad)


def test_a_smaller_last_batch_compiles_too() -> None:
    compiled = torch.compile(ordered_mean, fullgraph=True, backend="aot_eager")
    for s in (64, 40, 41, 3):
        losses = torch.rand(s)
        torch.testing.assert_close(compiled(losses, 0.25), ordered_mean(losses, 0.25))


def test_it_works_under_autocast() -> None:
    model = torch.nn.Linear(8, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = torch.nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.zeros(16).long(), reduction="none")
        loss = ordered_mean(losses, 4)
    loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.isfinite().all()


def test_float8_losses_are_ordered_too() -> None:
    losses = torch.tensor([0.5, 2.0, 1.0]).to(torch.float8_e4m3fn)
    assert select_top_q(losses, 2).tolist() == [1, 2]
    assert ordered_mean(losses, 2) == 1.5


def test_tensors_without_memory_of_their_own_take_the_torch_path() -> None:
    losses = torch.rand(16)
    gradient = torch.func.grad(lambda v: ordered_mean(v, 4))(losses)
    assert gradient.nonzero().squeeze(1).tolist() == select_top_q(losses, 4).tolist()
    batched = torch.func.vmap(lambda v: ordered_mean(v, 4))(losses.view(2, 8))
    torch.testing.assert_close(batched, torch.stack([ordered_mean(part, 4) for part in losses.view(2, 8)]))
    negated = torch.complex(losses, losses).conj().imag  # a view that is negated when it is read
    assert torch.equal(select_top_q(negated, 4), select_top_q(-losses, 4))


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_an_accelerator_selects_the_rows_of_the_cpu_on_the_device() -> None:
    losses = torch.randint(0, 5, (1000,)).float()
    rows = select_top_q(losses.to(torch.accelerator.current_accelerator()), 100)
    assert rows.device.type != "cpu"
    assert torch.equal(rows.cpu(), select_top_q(losses, 100))


def test_the_random_control_keeps_q_distinct_rows_and_repeats_with_its_seed() -> None:
    rows = random_rows(64, 16, torch.Generator().manual_seed(3))
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert len(rows) == 16
    assert torch.equal(rows, random_rows(64, 16, torch.Generator().manual_seed(3)))


@pytest.mark.parametrize(
    ("losses", "q", "rule", "value", "remedy"),
    [
        (torch.ones(4), 0, "an int of at least 1 or a fraction in (0, 1]", "got 0.", "Use q=1"),
        (torch.ones(4), -3, "an int of at least 1", "got -3.", "Use q=1"),
        (torch.ones(4), 1.5, "a fraction in (0, 1]", "got 1.5.", "Use q=0.015 for 1.5 percent of the batch, q=2"),
        (torch.ones(4), math.nan, "a fraction in (0, 1]", "got nan.", "Pass a count"),
        (torch.ones(4), True, "an int of at least 1", "got True.", "Pass a count"),
        (torch.ones(4), "half", "an int of at least 1", "got 'half'.", "Pass a count"),
        (torch.ones(4), None, "an int of at least 1", "got None.", "Pass a count"),
        (torch.tensor(1.0), 1, "be one loss per sample, shape (s,)", "got a scalar.", 'reduction="none"'),
        (torch.ones(4, 3), 1, "be one loss per sample", "got shape (4, 3).", "Reduce the other dimensions"),
        (torch.ones(0), 1, "hold at least one sample", "got none.", "Skip empty batches."),
        (torch.ones(4).long(), 1, "be floating-point", "got torch.int64.", "losses.float()"),
        ([1.0, 2.0], 1, "be one loss per sample", "got list.", "Pass a torch tensor."),
    ],
)
@pytest.mark.parametrize("function", [select_top_q, ordered_mean])
def test_bad_input_gets_rule_value_and_remedy(
    function: object, losses: object, q: object, rule: str, value: str, remedy: str
) -> None:
    with pytest.raises(ArgumentError) as error:
        function(losses, q)  # type: ignore[operator]
    text = str(error.value)
    assert text.startswith(f"{function.__name__}: ")  # type: ignore[attr-defined]
    assert rule in text
    assert value in text
    assert remedy in text


def test_numpy_numbers_are_good_values_of_q() -> None:
    losses = torch.rand(8)
    assert select_top_q(losses, np.int64(3)).tolist() == select_top_q(losses, 3).tolist()
    assert select_top_q(losses, np.float32(0.5)).tolist() == select_top_q(losses, 4).tolist()


def test_selecting_warns_of_nothing_and_leaves_the_losses_alone() -> None:
    losses = torch.rand(600, requires_grad=True)
    before = losses.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        select_top_q(losses, 5)
    assert torch.equal(losses.detach(), before)


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.randn(6, 3, 4, 5),
        lambda: torch.randn(6, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        lambda: torch.randn(6, 1, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(6, 1, 4, 5).as_strided((6, 1, 4, 5), (20, 1, 5, 1)),
        lambda: torch.randn(5, 6, 4).transpose(0, 1),
        lambda: torch.randn(12, 4)[::2],
        lambda: torch.randn(6, 8)[:, :4],
        lambda: torch.randn(6, 1).expand(6, 4),
        lambda: torch.randn(6),
        lambda: torch.randn(6, 0, 2),
    ],
)
def test_rows_are_taken_with_their_values_and_the_layout_of_a_block(build: object) -> None:
    tensor, rows = build(), torch.tensor([5, 0, 0, 2])  # type: ignore[operator]
    taken = select_rows(tensor, 0, rows)
    assert torch.equal(taken, tensor.index_select(0, rows))
    if tensor.stride(0) == tensor.numel() // 6 and tensor.numel():
        assert taken.stride() == tensor.stride()
    middle = torch.randn(3, 6, 2)
    assert torch.equal(select_rows(middle, 1, rows), middle.index_select(1, rows))
