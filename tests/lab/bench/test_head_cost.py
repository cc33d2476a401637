"""The harness of `osgd bench head` at a tiny size: what it reports is right, whatever the speed."""

import pytest
import torch

from ordered_sgd.errors import OrderedSGDError
from ordered_sgd.lab.bench import head_cost
from ordered_sgd.lab.bench.gpt_cost import Gpt, GptRow, GptShape, measure_gpt
from ordered_sgd.lab.bench.head_cost import (
    Head,
    HeadRow,
    HeadShape,
    default_shapes,
    head_peak_apart,
    head_ways,
    measure_head,
)

SMALL = HeadShape(tokens=16, width=8, words=40)
GPT = GptShape(layers=1, width=8, heads=2, words=50, s=2, length=6)
QS = (1.0, 0.25)


@pytest.fixture(scope="module")
def heads() -> list[HeadRow]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_cost, "head_peak_apart", lambda shape, way, q, threads: 2**20)
        return measure_head(SMALL, QS, rounds=2)


@pytest.fixture(scope="module")
def steps() -> list[GptRow]:
    return measure_gpt(QS, shape=GPT, rounds=2)


def test_every_way_has_a_row_and_ratios_are_of_the_same_run(heads: list[HeadRow]) -> None:
    assert [(row.way, row.q) for row in heads] == head_ways(QS)
    assert {(row.tokens, row.width, row.words, row.rounds, row.peak_bytes) for row in heads} == {(16, 8, 40, 2, 2**20)}
    for row in heads:
        assert row.low <= row.seconds <= row.high
        assert row.ratio == pytest.approx(row.seconds / heads[0].seconds)
        assert row.ratio_low <= row.ratio <= row.ratio_high


def test_the_gradients_of_ordered_are_compared_with_the_one_liners(heads: list[HeadRow]) -> None:
    assert all(row.error is None for row in heads if row.way != "ordered")
    assert all(row.error is not None and row.error < 1e-5 for row in heads if row.way == "ordered")


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = head_cost.ordered_linear_cross_entropy
    monkeypatch.setattr(head_cost, "ordered_linear_cross_entropy", lambda *given: 1.01 * right(*given))
    error = Head(SMALL).error(0.25)
    assert error is not None
    assert 5e-3 < error < 2e-2


def test_the_four_ways_have_the_same_loss_where_every_token_is_kept() -> None:
    head, gpt = Head(SMALL), Gpt(GPT)
    plain = head.loss("plain", None)
    for way, q in (("torch", None), ("one-liner", 1.0), ("ordered", 1.0)):
        torch.testing.assert_close(head.loss(way, q), plain)
    for way in ("one-liner", "ordered"):
        torch.testing.assert_close(gpt.loss(way, 1.0), gpt.loss("plain", None))


def test_a_step_of_the_gpt_has_the_same_gradients_by_the_one_liner() -> None:
    one, other = Gpt(GPT), Gpt(GPT)
    one.step("one-liner", 0.25)
    other.step("ordered", 0.25)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-6, rtol=1e-4)  # sums in another order


def test_a_step_is_compared_with_plain(steps: list[GptRow]) -> None:
    assert [(row.way, row.q) for row in steps] == [way for way in head_ways(QS) if way[0] != "torch"]
    for row in steps:
        assert row.low <= row.seconds <= row.high
        assert row.speedup == pytest.approx(steps[0].seconds / row.seconds)
        assert row.speedup_low <= row.speedup <= row.speedup_high


def test_the_default_shapes_hold_both_bars() -> None:
    shapes = default_shapes(512)
    assert len(shapes) == 7
    assert {HeadShape(512, 256, 32_768), HeadShape(512, 512, 50_304)} <= set(shapes)


def test_a_process_of_its_own_finds_the_peak_and_an_error_says_how_to_do_without() -> None:
    shape = HeadShape(tokens=64, width=8, words=50_000)
    logits = 4 * shape.tokens * shape.words
    peak = head_peak_apart(shape, "plain", None, threads=1)
    assert peak is None or logits < peak < 10 * logits
    with pytest.raises(OrderedSGDError, match=r"the probe of ordered 2.5, .* must finish; .*bench head --no-probe"):
        head_peak_apart(shape, "ordered", 2.5, threads=1)
