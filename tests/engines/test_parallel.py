from typing import Any

import pytest
import torch
from torch import nn

from ordered_sgd.engines import Rows, Strategy, TwoPass
from ordered_sgd.engines.accumulate import MicroBatches, samples_in_all
from ordered_sgd.engines.parallel import OneProcess
from ordered_sgd.engines.phases import Ahead, Kept, Losses, Parts
from ordered_sgd.errors import ArgumentError
from ordered_sgd.rewind import Buffers
from tests.contracts.engine_checks import quiet
from tests.step_parts import CE, batch


class Ranks(OneProcess):
    """Two ranks of which the other one says nothing."""

    over_ranks = True


class Complaining(Ranks):
    """The other rank has found a coupling."""

    def any(self, *flags: bool) -> list[bool]:
        return [True, False]


def run(engine: Strategy, parallel: type[OneProcess], norm: nn.Module) -> tuple[str, str | None]:
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.Linear(8, 4))
    built = engine.build(Parts(model, lambda b: Losses(CE(model(b[0]), b[1]), None), parallel(model), Buffers(model)))
    with quiet():
        computed = built.forward((*batch(), None), Ahead(keeps_all=False)).backward(Kept(torch.arange(3), 3.0))
    return computed.engine, built.why


@pytest.mark.parametrize(
    "engine", [Rows(), Rows(batchnorm="full-batch"), TwoPass(), TwoPass(batchnorm="subset")], ids=str
)
def test_statistics_that_ranks_share_run_dense_on_all_of_them(engine: Strategy) -> None:
    ran, why = run(engine, Ranks, nn.SyncBatchNorm(8))
    assert ran == "dense"
    assert why is not None
    assert "SyncBatchNorm in training" in why


def test_sync_batchnorm_in_one_process_is_batchnorm() -> None:
    assert run(TwoPass(batchnorm="subset"), OneProcess, nn.SyncBatchNorm(8)) == ("twopass", None)


def test_a_coupling_on_another_rank_runs_dense_here_too() -> None:
    assert run(TwoPass(), Complaining, nn.Tanh()) == ("dense", "samples influence each other on another rank")


class Unequal(Ranks):
    """The other rank has one micro-batch."""

    def numbers(self, *numbers: float) -> list[tuple[float, ...]]:
        return [numbers, (7.0, 1.0)]


def test_micro_batches_are_as_many_on_every_rank_where_statistics_are_shared() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8))
    assert samples_in_all(5, 1, Unequal(model)) == 12
    with pytest.raises(ArgumentError, match=r"micro-batches must be as many on every rank for .*; got 2, 1"):
        samples_in_all(5, 2, Unequal(model))
    assert samples_in_all(5, 2, Unequal(model.eval())) == 12


def test_micro_batches_without_a_kept_sample_run_again_where_statistics_are_shared() -> None:
    model, sizes = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.0)), []

    def score(part: Any) -> Losses:
        sizes.append(len(part[0]))
        return Losses(CE(model(part[0]), part[1]), None)

    for sharing, again in ((False, [5]), (True, [3, 5])):
        parallel = Ranks(model)
        parallel.shares_statistics = lambda sharing=sharing: sharing  # type: ignore[method-assign]
        sizes.clear()
        scored = MicroBatches(score, parallel, Buffers(model)).forward([batch(3), batch(5)], 8, lambda total: None)
        scored.backward(Kept(torch.arange(3, 8), 5.0))
        assert sizes == [3, 5, *again]
