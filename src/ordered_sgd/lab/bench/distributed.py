"""What it costs to keep the q largest of all ranks, measured on this machine and computed for more ranks than it has.

Three steps of the same model under DistributedDataParallel are measured in turn, in processes that talk over gloo:
plain SGD, ordered SGD that keeps the q largest of each rank by itself, and ordered SGD that keeps the q largest of all.
The last adds one message to every rank, and choosing among the losses of all. Both parts are measured alone as well:
the message between two ranks, short and long, which gives its latency and its seconds per byte; choosing for as many
ranks as one likes, since it takes no other rank.
"""

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ordered_sgd.lab.bench.gloo import on_ranks
from ordered_sgd.lab.bench.opponents import sgd_step
from ordered_sgd.lab.bench.timing import Timing, interleave, threads_of_torch
from ordered_sgd.lab.bench.workloads import WORKLOADS
from ordered_sgd.ranks import HEAD, gather, unpack
from ordered_sgd.rules import resolve_q
from ordered_sgd.selection import top_rows
from ordered_sgd.step import OrderedStep

PLAIN, LOCAL, GLOBAL = "plain", "local", "global"
FLOAT = 4  # bytes
_LONG = 2**16  # numbers in the longer of the two messages
_SHORTEST = 0.1  # seconds of one measurement: shorter steps are repeated within it


@dataclass(frozen=True)
class RankRow:
    """One kind of step on so many ranks.

    Parameters
    ----------
    model, ranks, s, q
        What was measured: s samples on each rank, of which q are kept over all ranks.
    row
        ``plain``, ``local`` (q / ranks kept on each rank, by itself) or ``global``.
    seconds, low, high
        Of one step on rank 0: median and quartiles.
    over_plain, over_local
        What it takes beyond them, in seconds: differences of medians.
    rounds
        Measurements of which it is the median.
    """

    model: str
    ranks: int
    s: int
    q: int
    row: str
    seconds: float
    low: float
    high: float
    over_plain: float
    over_local: float
    rounds: int


@dataclass(frozen=True)
class Constants:
    """What a message costs between two ranks: seconds for the shortest, and more for each byte."""

    latency: float
    seconds_per_byte: float


@dataclass(frozen=True)
class Prediction:
    """What keeping the q largest of all costs a step on so many ranks, computed.

    Parameters
    ----------
    model, ranks, s
        Of which step: s samples on each rank.
    bytes_received
        By each rank, in each step.
    choosing
        Seconds for taking the messages apart and choosing among all losses, measured.
    doubling, ring
        Seconds of the message, with as many latencies as the logarithm of the ranks (what a tree or recursive doubling
        takes), or with one for every other rank (a ring).
    share_doubling, share_ring
        The message and choosing, over a plain step of one rank.
    """

    model: str
    ranks: int
    s: int
    bytes_received: int
    choosing: float
    doubling: float
    ring: float
    share_doubling: float
    share_ring: float


def measure_ranks(model: str, ranks: int, *, s: int = 64, q: float = 0.25, rounds: int = 11) -> list[RankRow]:
    """The three steps of a workload on so many processes of this machine, one thread each."""
    kept = resolve_q(q, s * ranks, "osgd bench")
    seconds = on_ranks(ranks, f"distributed.time_steps({model!r}, s={s}, q={kept}, rounds={rounds})")
    found = {name: Timing(**timing) for name, timing in seconds.items()}
    return [
        RankRow(
            model=model,
            ranks=ranks,
            s=s,
            q=s * ranks if name == PLAIN else kept,
            row=name,
            seconds=timing.median,
            low=timing.low,
            high=timing.high,
            over_plain=timing.median - found[PLAIN].median,
            over_local=timing.median - found[LOCAL].median,
            rounds=rounds,
        )
        for name, timing in found.items()
    ]


def measure_message(*, s: int = 64, rounds: int = 11) -> Constants:
    """Latency and seconds per byte between two processes of this machine, over gloo."""
    found = on_ranks(2, f"distributed.time_messages(s={s}, rounds={rounds})")
    return constants({int(size): timing["median"] for size, timing in found.items()})


def constants(seconds: dict[int, float]) -> Constants:
    """The straight line through the seconds of a short and a long message, given by their bytes.

    >>> constants({2: 4.0, 10: 6.0})
    Constants(latency=3.5, seconds_per_byte=0.25)
    """
    (short, quick), (long, slow) = sorted(seconds.items())
    each = max(0.0, (slow - quick) / (long - short))
    return Constants(quick - each * short, each)


def predict(model: str, ranks: int, *, s: int, step: float, choosing: float, network: Constants) -> Prediction:
    """What the selection over ranks costs a step that takes `step` seconds without it.

    Examples
    --------
    >>> found = predict("mlp", 8, s=60, step=0.01, choosing=1e-4, network=Constants(1e-4, 1e-9))
    >>> found.bytes_received, round(found.doubling, 7), round(found.ring, 7), round(found.share_doubling, 3)
    (1876, 0.0003019, 0.0007019, 0.04)
    """
    received = FLOAT * (s + HEAD) * (ranks - 1)
    carried = network.seconds_per_byte * received
    doubling = math.ceil(math.log2(ranks)) * network.latency + carried
    ring = (ranks - 1) * network.latency + carried
    shares = ((choosing + doubling) / step, (choosing + ring) / step)
    return Prediction(model, ranks, s, received, choosing, doubling, ring, *shares)


def choosing_seconds(ranks: int, *, s: int = 64, q: float = 0.25, rounds: int = 11) -> float:
    """Seconds that a rank needs to take the messages of so many ranks apart and to choose, in this process.

    >>> 0 < choosing_seconds(2, s=4, rounds=2) < 1
    True
    """
    received = torch.rand(ranks, HEAD + s, generator=torch.Generator().manual_seed(0))
    received[:, :HEAD] = torch.tensor([0.0, s, -1.0, 0.0, 0.0, 0.0, 0.0])
    kept = resolve_q(q, ranks * s, "osgd bench")

    def choose() -> Any:
        received.unbind(0)  # as the message needs them
        joined = unpack(received, 0)
        joined.losses.sum().item()  # whether they are finite
        return joined.mine(top_rows(joined.losses, kept))

    with threads_of_torch(1):
        return interleave({"choose": choose}, rounds=rounds, inner=10)["choose"].median


def time_steps(model: str, *, s: int, q: int, rounds: int) -> dict[str, Timing]:
    """The three steps in turn, inside a rank; q counts over all ranks."""
    workload = WORKLOADS[model]
    torch.manual_seed(0)
    built = workload.build()
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [workload.make_batch(s, generator) for _ in range(4)]

    def wrapped() -> tuple[nn.Module, Any, Iterator[Any]]:
        inner = nn.parallel.DistributedDataParallel(copy.deepcopy(built))
        return inner, workload.optimizer(inner), itertools.cycle(batches)

    def ordered(q: int, group: Any) -> Callable[[], object]:
        inner, optimizer, own = wrapped()
        norm = workload.max_grad_norm
        step = OrderedStep(inner, workload.criterion, optimizer, q=q, engine="dense", group=group, max_grad_norm=norm)
        return lambda: step(*next(own))

    inner, optimizer, own = wrapped()
    calls: dict[str, Callable[[], object]] = {
        PLAIN: lambda: sgd_step(inner, workload.mean_loss, optimizer, *next(own), max_grad_norm=workload.max_grad_norm),
        LOCAL: ordered(max(1, q // dist.get_world_size()), None),
        GLOBAL: ordered(q, dist.group.WORLD),
    }
    return interleave(calls, rounds=rounds, inner=_repeats(calls[PLAIN]), settle=1)


def time_messages(*, s: int, rounds: int) -> dict[str, Timing]:
    """A message of s losses and a long one, inside a rank; by their bytes."""
    world: Any = dist.group.WORLD
    calls = {
        str(FLOAT * numbers): lambda numbers=numbers: gather(torch.zeros(numbers), world)
        for numbers in (HEAD + s, _LONG)
    }
    return interleave(calls, rounds=rounds, inner=20, settle=1)


def _repeats(call: Callable[[], object]) -> int:
    """Calls per measurement: as many on every rank as rank 0 thinks right."""
    call()
    start = time.perf_counter()
    call()
    found = [max(1, min(500, round(_SHORTEST / (time.perf_counter() - start))))]
    dist.broadcast_object_list(found)
    return found[0]
