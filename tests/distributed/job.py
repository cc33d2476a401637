"""Run by torchrun on every rank: many cases in one process group, and what came out as JSON from rank 0.

Each rank takes its part of a joined batch; the reference is one process on the whole of it, by autograd alone.
"""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Generator, Tensor, nn
from torch.distributed.fsdp import fully_shard

from ordered_sgd import OrderedLoss, OrderedStep, ordered_mean
from ordered_sgd.errors import TrapWarning
from tests.distributed import runs
from tests.distributed.cases import CASES, RUNS, Case
from tests.distributed.parts import CE, ddp, gradient_of, network, part, relative_error
from tests.distributed.twin import rows_of_rank


def joined_batch(case: Case, number: int, s: int) -> tuple[Tensor, Tensor]:
    """The batch of all ranks: random, with all samples alike, or with the large losses in the last third."""
    g = Generator().manual_seed(number)
    x, y = torch.randn(s, 6, generator=g), torch.randint(0, 4, (s,), generator=g)
    if case.data == "tied":
        return torch.ones(s, 6), torch.zeros(s).long()
    if case.data == "one rank":
        x[: 2 * s // 3] *= 1e-3
        x[2 * s // 3 :] *= 30
    return x, y


def wrapped(case: Case, model: nn.Module) -> nn.Module:
    if case.wrapper == "ddp":
        return ddp(model, **dict(case.options))
    for module in model:
        if isinstance(module, nn.Linear):
            fully_shard(module)
    return fully_shard(model)


def updates(case: Case, model: nn.Module) -> Callable[[Tensor, Tensor], Any]:
    """One backward of the case's kind on this rank's part."""
    frozen = torch.optim.SGD(model.parameters(), lr=0.0)
    if case.engine in ("ordered_mean", "OrderedLoss"):
        loss_fn = OrderedLoss(CE, q=case.q, group=dist.group.WORLD)

        def backward(x: Tensor, y: Tensor) -> Any:
            frozen.zero_grad()
            if case.engine == "OrderedLoss":
                loss = loss_fn(model(x), y)
            else:
                loss = ordered_mean(CE(model(x), y), case.q, group=dist.group.WORLD)
            loss.backward()
            return loss.detach()

        return backward
    step = OrderedStep(model, CE, frozen, q=case.q, engine=case.engine, group=dist.group.WORLD)

    def update(x: Tensor, y: Tensor) -> Any:
        batch = (x, y)
        if case.parts:
            cut = [x.shape[0] * i // case.parts for i in range(case.parts + 1)]
            batch = ([(x[a:b], y[a:b]) for a, b in pairwise(cut)],)
        record = step(*batch)
        return record, step.why

    return update


def gradients(case: Case) -> dict[str, Any]:
    """Three batches of the case: the largest error of the gradient and of the mean, and what the records say."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sizes = case.sizes[:ranks]
    alone = network()
    update = updates(case, wrapped(case, model := network()))
    found: dict[str, Any] = {"error": 0.0, "mean error": 0.0, "rows": True, "engines": [], "why": None, "whole": True}
    for number in range(3):
        x, y = joined_batch(case, number, sum(sizes))
        alone.zero_grad()
        losses = CE(alone(x), y)
        expected = ordered_mean(losses, case.q)
        expected.backward()
        result = update(*part(sizes, rank, x, y))
        value = result
        if isinstance(result, tuple):
            record, found["why"] = result
            value = record.ordered_loss
            # all ranks chose with the numbers that were sent: the twin gathers this rank's own
            wanted = rows_of_rank(record.losses, case.q, dist.group.WORLD)
            found["rows"] &= record.rows.tolist() == wanted.tolist() and record.count == sum(sizes)
            found["engines"].append(record.engine)
            found["whole"] &= record.rows.shape == record.losses.shape  # every sample here: nothing to skip
        found["mean error"] = max(found["mean error"], abs(float(value - expected.detach())) / float(expected.detach()))
        found["error"] = max(found["error"], relative_error(gradient_of(model), gradient_of(alone)))
    return found


@dataclass
class Everywhere:
    """Results of all ranks, gathered by rank 0."""

    results: dict[str, Any]

    def add(self, name: str, found: Any) -> None:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, found)
        self.results[name] = gathered


def main(kind: str, out: Path) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".*torch.jit.*", DeprecationWarning)
    warnings.filterwarnings("ignore", category=TrapWarning)  # small q on purpose
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    everywhere = Everywhere({})
    for case in CASES:
        if case.kind == kind:
            everywhere.add(str(case), gradients(case))
    for run in RUNS:
        if run.kind == kind:
            everywhere.add(str(run), getattr(runs, run.name)(*run.arguments))
    if dist.get_rank() == 0:
        out.write_text(json.dumps(everywhere.results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
