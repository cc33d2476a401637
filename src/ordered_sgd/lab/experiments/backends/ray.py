"""Runs as tasks of Ray, on this machine or on a cluster; the process that asks for them alone writes the records."""

import contextlib
import os
import socket
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ordered_sgd.errors import ArgumentError, RecordError, first_line, message, require
from ordered_sgd.lab.experiments.backends.backend import LOOK, Backend, most_threads, usable_cores
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.run import EVERY, Began, Event, events, keep, recorded_epochs
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records

KILLS = 3  # of the workers of one run in a row, without a new epoch between them, before it is given up
_STORE = 100 * 2**20  # bytes of shared memory for a Ray of our own: rows and artifacts are small
_ANSWER = 5.0  # seconds for the head of a cluster to answer
_WHERE = "RayTasks"
# Ray reads these when it is imported. It tells of killed workers on standard output, which may be JSON: not here.
_QUIET = {"RAY_DEDUP_LOGS_SKIP_REGEX": ".", "RAY_USAGE_STATS_ENABLED": "0"}
_LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # a Ray of our own listens on this machine alone


@dataclass
class _Task:
    """A run under way."""

    spec: ExperimentSpec
    again: bool  # what an earlier one recorded is still to be forgotten
    recorded: int = 0
    kills: int = 0


class RayTasks(Backend):
    """Carries out every run as a task of Ray, each with the threads of its spec as its CPUs. See `Backend`.

    Workers send what is to be recorded to this process. One that is killed is replaced: its run goes on from its
    checkpoint where workers see the folder of records, and starts again where they do not.

    Parameters
    ----------
    address
        Of a cluster that this machine belongs to: ``"auto"``, ``"host:6379"``. By default a Ray of our own is started
        on this machine and ended afterwards; one that this process runs already is used, and left running.
    every
        Seconds between two checkpoints.
    """

    def __init__(self, records: Records, *, address: str | None = None, every: float = EVERY, **options: Any) -> None:
        super().__init__(records, **options)
        if address is not None:
            _check_head(address)
        for name, value in (_QUIET | (_LOCAL if address is None else {})).items():
            os.environ.setdefault(name, value)
        self.ray: Any = require("ray", extra="ray", where=_WHERE)
        self.address, self.every = address, every
        self._folder = records.folder.absolute()
        self._token = self._folder / f"shared-{uuid.uuid4().hex}"  # who sees this file sees the same folder
        self._ours = False
        self._running: dict[Any, _Task] = {}  # by the stream of its events

    def close(self) -> None:
        """End the workers, whatever they do."""
        for stream in self._running:
            self.ray.cancel(stream, force=True)
        self._running.clear()
        self._token.unlink(missing_ok=True)
        if self._ours:
            self.ray.shutdown()

    def carry_out(self, specs: Sequence[ExperimentSpec]) -> None:
        """Run and record all of these, each once; return when they are over."""
        self._start(specs)
        waiting = deque(_Task(spec, self.again) for spec in specs)
        # Twice the CPUs: the next run is at hand when one ends, and a cluster that can grow sees that it should.
        most = self.workers or max(1, 2 * int(self.ray.cluster_resources().get("CPU", 1)))
        while waiting or self._running:
            while waiting and len(self._running) < most:
                task = waiting.popleft()
                task.recorded = recorded_epochs(task.spec, self.records, again=self.again)
                self._submit(task)
            ready, _ = self.ray.wait(list(self._running), timeout=LOOK)
            for stream in ready:
                self._take(stream)

    def _start(self, specs: Sequence[ExperimentSpec]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._token.touch()
        if self.ray.is_initialized():
            return
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        self._ours = True
        if self.address is None:
            cpus = (self.workers or usable_cores()) * most_threads(specs)
            options = {"include_dashboard": False, "object_store_memory": _STORE}
            same = {"worker_niceness": 0}  # as urgent as this process, as with processes
            try:
                self.ray.init(address="local", num_cpus=cpus, _system_config=same, **options, **quiet)
            except Exception as error:  # of many kinds, when a part of it does not answer in time
                remedy = "Run it again when the machine is less busy, or with --backend processes."
                reason = first_line(error)
                raise RecordError(message(_WHERE, "a Ray of our own", "start", reason, remedy)) from error
            return
        try:
            self.ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _no_cluster(self.address, first_line(error)) from error

    def _submit(self, task: _Task) -> None:
        # Ray's own retries would take a run that resumes for one that starts again: it tells events by their number.
        options = {"num_cpus": task.spec.threads, "num_returns": "streaming", "max_retries": 0}
        work = self.ray.remote(_work).options(**options)
        self._running[work.remote(task.spec, self._token, task.recorded, self.every)] = task

    def _take(self, stream: Any) -> None:
        """Record the next event of a run."""
        task, errors = self._running[stream], self.ray.exceptions
        try:
            event: Event = self.ray.get(next(stream))
        except StopIteration:
            del self._running[stream]
            return
        except errors.RayTaskError as error:
            raise error.cause from error
        except errors.RayError as error:
            del self._running[stream]
            self._replace(task, error)
            return
        self._running[stream] = self._running.pop(stream)  # now the last to be looked at: none is left waiting
        keep(event, task.spec, self.records, again=task.again)
        task.again = task.again and not isinstance(event, Began)
        if isinstance(event, EpochRow):
            if event.epoch > task.recorded:
                task.recorded, task.kills = event.epoch, 0
            self.report(task.spec, event)

    def _replace(self, task: _Task, error: Exception) -> None:
        task.kills += 1
        if task.kills == KILLS:
            remedy = "Run the command again: it goes on. If memory was short, with fewer --workers."
            got = f"one run whose workers were killed {KILLS} times in a row"
            raise RecordError(message(_WHERE, "workers", "run to their end", got, remedy)) from error
        self._submit(task)


def _work(spec: ExperimentSpec, token: Path, recorded: int, every: float) -> Iterator[Event]:
    """In a worker: what is to be recorded of a run, with checkpoints where the folder of records is the same."""
    shared = token.exists() and os.access(token.parent, os.W_OK)
    checkpoint = Records(token.parent).checkpoint(spec) if shared else None
    yield from events(spec, checkpoint, recorded=recorded, every=every)


def _check_head(address: str) -> None:
    """Refuse an address where nothing answers: Ray itself tries for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdigit():
        remedy = "Start the command on a machine of the cluster."
        raise ArgumentError(message(_WHERE, "--address", "be auto or host:port", repr(address), remedy))
    try:
        with contextlib.closing(socket.create_connection((host, int(port)), timeout=_ANSWER)):
            return
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or error) from error


def _no_cluster(address: str, reason: object) -> RecordError:
    remedy = "Start one with: ray start --head; or leave --address out."
    return RecordError(message(_WHERE, "--address", "be that of a running Ray", f"{address} ({reason})", remedy))
