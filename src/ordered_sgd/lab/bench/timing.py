"""Interleaved timing: ratios that hold on a noisy machine."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: median, and the quartiles around it."""

    median: float
    low: float
    high: float


def interleave(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    inner: int = 1,
    warmup: int = 2,
    settle: int = 0,
    finish: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """Seconds per call of every entry, measured in turn so that drift of the machine hits all alike.

    Parameters
    ----------
    calls
        Name to function without arguments.
    rounds
        How often the whole list is gone through; the median is over rounds.
    inner
        Calls per measurement, for calls shorter than the clock can resolve.
    warmup
        Rounds before the first one that counts.
    settle
        Calls before each measurement that are not timed: caches and the allocator's free memory are then what the call
        itself leaves behind, as in a loop of its own, and not what the one before it in the list did.
    finish
        Called before the clock is read: waits for the work that calls have queued on an accelerator.

    Examples
    --------
    >>> sorted(interleave({"a": list, "b": dict}, rounds=3))
    ['a', 'b']
    """
    seconds = measurements(calls, rounds=rounds, inner=inner, warmup=warmup, settle=settle, finish=finish)
    return {name: summary(values) for name, values in seconds.items()}


def measurements(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    inner: int = 1,
    warmup: int = 1,
    settle: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    finish: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """As `interleave`, every round's seconds, by any clock."""
    finish = finish or (lambda: None)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        for round_ in range(warmup + rounds):
            for name, call in calls.items():
                for _ in range(settle):
                    call()
                finish()
                start = clock()
                for _ in range(inner):
                    call()
                finish()
                if round_ >= warmup:
                    seconds[name].append((clock() - start) / inner)
    finally:
        if gc_was_on:
            gc.enable()
    return seconds


def finisher(device: str) -> Callable[[], object]:
    """Waits until a device has done its work; nothing for the CPU.

    >>> finisher("cpu")()
    """
    where = torch.device(device)
    if where.type == "cpu":
        return lambda: None
    arguments = () if where.index is None else (where,)  # MPS has one device, and takes none
    return partial(torch.get_device_module(where).synchronize, *arguments)


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """A block in which torch computes with so many threads; then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def every(n: int, call: Callable[[], object]) -> Callable[[], None]:
    """A function that passes on every n-th call."""
    calls = 0

    def counted() -> None:
        nonlocal calls
        calls += 1
        if calls % n == 0:
            call()

    return counted


def summary(values: Sequence[float]) -> Timing:
    """The median and quartiles of at least two numbers."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median=median, low=low, high=high)
