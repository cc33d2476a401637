"""The harness of `osgd bench accumulation` at a tiny size: what it reports is right, whatever the speed."""

import pytest
import torch

from ordered_sgd.lab.bench.accumulation import (
    REGROUPED,
    WHOLE,
    Accumulation,
    AccumulationRow,
    accumulation_ways,
    measure_accumulation,
)
from ordered_sgd.selection import select_top_q

QS = (0.5, 0.25)


@pytest.fixture(scope="module")
def rows() -> list[AccumulationRow]:
    return measure_accumulation("mlp", QS, parts=3, s=4, rounds=2)


def test_every_way_has_a_row_and_ratios_are_of_the_same_run(rows: list[AccumulationRow]) -> None:
    assert [(row.way, row.q) for row in rows] == accumulation_ways(QS)
    assert {(row.model, row.parts, row.s, row.rounds) for row in rows} == {("mlp", 3, 4, 2)}
    for row in rows:
        assert row.low <= row.seconds <= row.high
        assert row.ratio == pytest.approx(row.seconds / rows[0].seconds)
        assert row.ratio_low <= row.ratio <= row.ratio_high


def test_each_way_runs_what_it_is_named_after(rows: list[AccumulationRow]) -> None:
    names = {"plain": "plain", WHOLE: "micro-batches", REGROUPED: "micro-batches, regrouped"}
    assert [row.ran for row in rows] == [names[row.way] for row in rows]
    assert {row.why for row in rows} == {None}


def test_gradients_are_compared_with_those_of_whole_micro_batches(rows: list[AccumulationRow]) -> None:
    assert all(row.error is None for row in rows if row.way != REGROUPED)
    assert all(row.error is not None and row.error < 1e-5 for row in rows if row.way == REGROUPED)


def test_both_ways_have_the_gradient_of_one_joined_batch() -> None:
    subject = Accumulation("logistic", parts=3, s=4)
    x, y = (torch.cat(column) for column in zip(*subject.batches, strict=True))
    losses = subject.workload.criterion(subject.model(x), y)
    loss = losses[select_top_q(losses, 0.25)].mean()
    expected = torch.autograd.grad(loss, list(subject.model.parameters()))
    step = subject.ordered(0.25)
    for way in (subject.whole(0.25), lambda: step(subject.batches).engine):
        for found, wanted in zip(subject.gradient(way), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_plain_accumulation_has_the_gradient_of_the_mean() -> None:
    subject = Accumulation("logistic", parts=3, s=4)
    x, y = (torch.cat(column) for column in zip(*subject.batches, strict=True))
    expected = torch.autograd.grad(subject.workload.mean_loss(subject.model(x), y), list(subject.model.parameters()))
    for found, wanted in zip(subject.gradient(subject.plain), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_model_that_is_not_regrouped_says_why() -> None:
    rows = measure_accumulation("preact-resnet18-bn", (0.5,), parts=2, s=2, rounds=2)
    assert rows[-1].ran == "micro-batches"
    assert rows[-1].why == "BatchNorm2d in training couples the samples of a micro-batch"
