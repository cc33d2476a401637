"""Runs over processes of this machine, each with the threads of its spec; they end with their parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.experiments.records import Records, Run
from ordered_sgd.experiments.row import EpochRow
from ordered_sgd.experiments.run import run
from ordered_sgd.experiments.spec import ExperimentSpec

Progress = Callable[[ExperimentSpec, int], object]  # a run, and the epochs of it that are over
_LOOK = 0.2  # seconds between two looks at what the workers report


class Processes:
    """Carries out runs side by side: ``with Processes(records) as run_all: runs = run_all(specs)``.

    What is recorded already is not run twice. An error or Ctrl-C ends the workers; what they recorded stays, and their
    runs resume from their checkpoints the next time.

    Parameters
    ----------
    records
        Where runs are looked up and recorded.
    workers
        Processes; one means this one. By default as many as the threads of the specs leave room for.
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
        self._pool: ProcessPoolExecutor | None = None
        self._news: Any = None
        self._ran: set[ExperimentSpec] = set()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        processes = dict(self._pool._processes or {})
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()

    def __call__(self, specs: Iterable[ExperimentSpec]) -> list[Run]:
        """The records of all specs, in their order."""
        wanted = list(specs)
        left = [spec for spec in dict.fromkeys(wanted) if not self._known(spec)]
        count = workers_for(left) if self.workers is None else self.workers
        if count > 1 and (len(left) > 1 or self._pool is not None):
            self._side_by_side(left, count)
        else:
            for spec in left:
                run(spec, self.records, again=self.again, on_row=partial(self._report, spec))
        self._ran.update(left)
        return [found for spec in wanted if (found := self.records.get(spec)) is not None]

    def _report(self, spec: ExperimentSpec, row: EpochRow) -> None:
        self.progress(spec, row.epoch)

    def _known(self, spec: ExperimentSpec) -> bool:
        found = self.records.get(spec)
        if found is None or not found.finished or (self.again and spec not in self._ran):
            return False
        self.progress(spec, len(found.rows))
        return True

    def _side_by_side(self, specs: Sequence[ExperimentSpec], count: int) -> None:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._news = context.Queue()
            self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(self._news,))
        waiting = {self._pool.submit(_work, spec, self.records.folder, self.again) for spec in specs}
        while waiting:
            done, waiting = wait(waiting, timeout=_LOOK, return_when=FIRST_COMPLETED)
            while not self._news.empty():
                self.progress(*self._news.get())
            for one in done:
                try:
                    one.result()
                except BrokenProcessPool as error:
                    remedy = "Run the command again: it goes on. If memory was short, with fewer --workers."
                    got = "one that was killed"
                    raise RecordError(message("Processes", "workers", "run to their end", got, remedy)) from error


def workers_for(specs: Sequence[ExperimentSpec], cores: int | None = None) -> int:
    """How many runs fit side by side without taking each other's cores.

    >>> workers_for([ExperimentSpec(threads=1)] * 5, cores=2), workers_for([ExperimentSpec(threads=2)] * 5, cores=2)
    (2, 1)
    """
    if cores is None:  # those that this process may use, where the system tells
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = max((spec.threads for spec in specs), default=1)
    return max(1, min(len(specs), cores // threads))


_news: Any = None  # in a worker: where it reports to


def _start(news: Any) -> None:
    """Prepare a worker: it reports epochs, leaves Ctrl-C to its parent, and ends with it."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(spec: ExperimentSpec, folder: Path, again: bool) -> None:
    run(spec, Records(folder), again=again, on_row=lambda row: _news.put((spec, row.epoch)))
