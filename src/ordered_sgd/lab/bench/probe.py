"""What a step costs besides its seconds, in a process of its own: saved bytes, peak memory, compile seconds."""

import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ordered_sgd.errors import OrderedSGDError, message
from ordered_sgd.lab.bench.opponents import first_rows, sgd_step
from ordered_sgd.lab.bench.subjects import Subjects
from ordered_sgd.lab.bench.timing import finisher
from ordered_sgd.lab.bench.workloads import WORKLOADS

_FIRST, _STEADY = 3, 3  # steps in which an engine may still compile, and steps that are looked at
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Probe:
    """What one step of a model costs besides its seconds.

    Parameters
    ----------
    saved_bytes
        What autograd keeps for backward: unique storages that are neither parameters nor buffers.
    peak_bytes
        Highest resident memory during steady steps above what is resident between them: activations and workspaces,
        without the model, its gradients, the momentum and the libraries; on an accelerator the memory of torch's
        allocator there. None where the system does not tell (Linux and CUDA do). What a compiler needs in the first
        steps is not in it.
    compile_seconds
        What the first three steps took beyond three steady ones, in a fresh process whose libraries are warm: tracing,
        compiling and checking.
    """

    saved_bytes: int
    peak_bytes: int | None
    compile_seconds: float


def probe_apart(model: str, row: str, *, s: int, q: int, threads: int, device: str = "cpu") -> Probe:
    """The cost of a step, found in a new process: memory that others have left behind does not count."""
    call = f"probe.probe({model!r}, {row!r}, s={s}, q={q}, threads={threads}, device={device!r})"
    return Probe(**apart(call, f"{model}, {row}, q = {q}", "osgd bench step --no-probe"))


def apart(call: str, what: str, without: str) -> Any:
    """What a call such as ``module.function(s=64)`` returns in a new process, as JSON has it.

    The module is one of `ordered_sgd.lab.bench`. An error says that the probe of `what` failed, and names the command
    that measures without it.
    """
    lines = ["import json, sys", f"from ordered_sgd.lab.bench import {call.partition('.')[0]}"]
    script = "\n".join([*lines, f"sys.stdout.write('\\n' + json.dumps({call}, default=vars))"])
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        got = (run.stderr.strip().split("\n") or [""])[-1]
        remedy = f"Measure without it: {without}"
        raise OrderedSGDError(message("osgd bench", f"the probe of {what}", "finish", got, remedy))
    return json.loads(run.stdout.strip().split("\n")[-1])


def probe(model: str, row: str, *, s: int, q: int, threads: int, device: str = "cpu") -> Probe:
    """The cost of a step, found in this process; see `probe_apart`.

    >>> costs = probe("logistic", "sgd", s=8, q=8, threads=1)
    >>> costs.saved_bytes >= 8 * 784 * 4  # the input
    True
    """
    torch.set_num_threads(threads)
    workload, finish = WORKLOADS[model], finisher(device)
    subjects = Subjects(workload, s=s, names=(row,), device=device)
    subjects.set_q(q)
    call = subjects.calls[row]
    _warm_libraries(subjects)
    first = [_seconds(call, finish) for _ in range(_FIRST)]
    subjects.warm()
    steady: list[float] = []
    measure = peak_bytes if torch.device(device).type == "cpu" else partial(peak_bytes_of_device, device)
    peak = measure(lambda: steady.extend(_seconds(call, finish) for _ in range(_STEADY)))
    extra = sum(first) - _FIRST * statistics.median(steady)
    return Probe(saved_bytes(call, subjects.models[row]), peak, max(0.0, extra))


def saved_bytes(call: Callable[[], object], model: nn.Module) -> int:
    """Bytes that autograd saves for backward during a call, without the model's own tensors.

    >>> x, layer = torch.ones(4, 8), nn.Linear(8, 2)
    >>> saved_bytes(lambda: layer(x).sum().backward(), layer)  # x
    128
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}  # holding them keeps an address from being given out twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor.detach()  # an output that saves itself would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(storage.nbytes() for storage in kept.values())


def peak_bytes(call: Callable[[], object]) -> int | None:
    """Highest resident memory during a call above that before it, or None where the system does not tell.

    `ru_maxrss` will not do: a process inherits the peak of the one that started it, and it cannot be reset.

    >>> peak = peak_bytes(lambda: torch.ones(2**24).sum())  # 64 MiB
    >>> peak is None or peak > 60 * 2**20
    True
    """
    gc.collect()
    _return_free_memory()
    try:
        before = _resident("VmRSS")
        _CLEAR.write_text("5")  # the peak starts again from here
    except OSError:
        return None
    call()
    return max(0, _resident("VmHWM") - before)


def peak_bytes_of_device(device: str, call: Callable[[], object]) -> int | None:
    """Highest memory that torch's allocator gave out on a device during a call above that before it, if it counts."""
    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated"):
        return None
    before: int = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    call()
    highest: int = module.max_memory_allocated(device)
    return max(0, highest - before)


def _resident(field: str) -> int:
    """A field of the process' status, in bytes."""
    line = next(line for line in _STATUS.read_text().split("\n") if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def _return_free_memory() -> None:
    """Give back what the allocator has kept of freed tensors, where it can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _warm_libraries(subjects: Subjects) -> None:
    """Plain steps with s and q samples: what torch prepares for any training is not the engine's cost."""
    workload = subjects.workload
    model = workload.build().to(subjects.device)
    optimizer = workload.optimizer(model)
    x, y = subjects.batches[0]
    for size in (subjects.s, subjects.q):
        part = first_rows(x, size), y[:size]
        sgd_step(model, workload.mean_loss, optimizer, *part, max_grad_norm=workload.max_grad_norm)


def _seconds(call: Callable[[], object], finish: Callable[[], object]) -> float:
    finish()
    start = time.perf_counter()
    call()
    finish()
    return time.perf_counter() - start
