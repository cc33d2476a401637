"""What every backend does alike: nothing is run twice, and records come back in the order they were asked for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from ordered_sgd.errors import RecordError, message, warn
from ordered_sgd.lab.experiments.epoch import EpochRow
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records, Run

Progress = Callable[[ExperimentSpec, int], object]  # a run, and the epochs of it that are over
LOOK = 0.2  # seconds between two looks at what the workers report


class Backend(ABC):
    """Carries out runs: ``with Processes(records) as run_all: runs = run_all(specs)``.

    What is recorded already is not run twice. An error or Ctrl-C ends the workers; what they recorded stays, and their
    runs resume from their checkpoints the next time.

    Parameters
    ----------
    records
        Where runs are looked up and recorded.
    workers
        Runs side by side. By default as many as the threads of the specs leave room for.
    again
        Run every spec again, once.
    progress
        Called with a spec and the number of its epochs that are over.
    """

    def __init__(
        self,
        records: Records,
        *,
        workers: int | None = None,
        again: bool = False,
        progress: Progress = lambda spec, epochs: None,
    ) -> None:
        self.records, self.workers, self.again, self.progress = records, workers, again, progress
        self._ran: set[ExperimentSpec] = set()
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, specs: Iterable[ExperimentSpec]) -> list[Run]:
        """The records of all specs, in their order."""
        wanted = list(specs)
        left = [spec for spec in dict.fromkeys(wanted) if not self._known(spec)]
        if left:
            self.carry_out(left)
        self._ran.update(left)
        found = [run for spec in wanted if (run := self.records.get(spec)) is not None]
        if len(found) < len(wanted):
            rule, got = "keep a run until it is over", f"{len(wanted) - len(found)} that were removed meanwhile"
            raise RecordError(message("records", str(self.records.path), rule, got, "Run the command again."))
        return found

    @abstractmethod
    def carry_out(self, specs: Sequence[ExperimentSpec]) -> None:
        """Run and record all of these, each once; return when they are over."""

    @abstractmethod
    def close(self) -> None:
        """End the workers, whatever they do."""

    def report(self, spec: ExperimentSpec, row: EpochRow) -> None:
        """Tell that an epoch is recorded."""
        self.progress(spec, row.epoch)

    def warn(self, text: str) -> None:
        """Warn of what a worker was warned of, once."""
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    def _known(self, spec: ExperimentSpec) -> bool:
        found = self.records.get(spec)
        if found is None or not found.finished or (self.again and spec not in self._ran):
            return False
        self.progress(spec, len(found.rows))
        return True


def workers_for(specs: Sequence[ExperimentSpec], cores: int | None = None) -> int:
    """How many runs fit side by side without taking each other's cores.

    >>> workers_for([ExperimentSpec(threads=1)] * 5, cores=2), workers_for([ExperimentSpec(threads=2)] * 5, cores=2)
    (2, 1)
    """
    cores = usable_cores() if cores is None else cores
    return max(1, min(len(specs), cores // most_threads(specs)))


def usable_cores() -> int:
    """Cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_threads(specs: Sequence[ExperimentSpec]) -> int:
    """Threads of the spec that has most."""
    return max((spec.threads for spec in specs), default=1)
