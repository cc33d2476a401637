"""Measurements that several processes of this machine make together, over gloo and its loopback."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ordered_sgd.errors import OrderedSGDError, message
from ordered_sgd.lab.bench.timing import Timing

_PATIENCE = timedelta(minutes=10)  # after which a silent rank is given up
_LATE = 5.0  # seconds that the others have to end when one has failed


def on_ranks(ranks: int, call: str) -> Any:
    """What rank 0 finds when all ranks, each in a process of its own, make a call such as ``module.function(s=64)``.

    The module is one of `ordered_sgd.lab.bench`, and the function gives a name to each `Timing`.
    """
    module = call.partition(".")[0]
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        try:
            for rank in range(ranks):
                script = f"from ordered_sgd.lab.bench import {module}, gloo\n"
                script += f"gloo.run({rank}, {ranks}, {folder!r}, lambda: {call})"
                with open(_words(folder, rank), "w") as words:
                    jobs.append(subprocess.Popen([sys.executable, "-c", script], stderr=words))
            _wait(jobs, folder)
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        return json.loads(Path(folder, "found.json").read_text())


def run(rank: int, ranks: int, folder: str, call: Callable[[], dict[str, Timing]]) -> None:
    """Be a rank: join the others, call, and leave what rank 0 found in the folder."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine need not know its own name to be measured
    store = Path(folder, "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=_PATIENCE)
    try:
        found = {name: asdict(timing) for name, timing in call().items()}
        if rank == 0:
            Path(folder, "found.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def _wait(jobs: Sequence["subprocess.Popen[bytes]"], folder: str) -> None:
    """Until all have ended; raise if one fails, with what each of them said.

    One that fails may be late to end: it leaves the group first, of which the others die.
    """
    last = math.inf
    while any(job.poll() is None for job in jobs) and time.monotonic() < last:
        time.sleep(0.05)
        if any(job.poll() for job in jobs):
            last = min(last, time.monotonic() + _LATE)
    failed = [_words(folder, rank).read_text().strip().split("\n")[-1] for rank, job in enumerate(jobs) if job.poll()]
    if failed:
        got, remedy = "; ".join(failed).rstrip("."), "Run: osgd bench distributed -h"
        raise OrderedSGDError(message("osgd bench", "every rank", "finish", got, remedy))


def _words(folder: str, rank: int) -> Path:
    """What a rank writes to standard error."""
    return Path(folder, f"{rank}.txt")
