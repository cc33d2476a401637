"""Runs over processes of this machine, each with the threads of its spec; they end with their parent."""

import multiprocessing.util
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from ordered_sgd.errors import RecordError, message
from ordered_sgd.lab.experiments.backends.backend import LOOK, Backend, workers_for
from ordered_sgd.lab.experiments.run import run
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.store import Records

_LEAVING = 10.0  # seconds that a worker has to end


class Processes(Backend):
    """Carries out runs in processes of this machine; with one worker in this one. See `Backend`."""

    _pool: ProcessPoolExecutor | None = None
    _news: Any = None

    def close(self) -> None:
        """End the workers, whatever they do."""
        if self._pool is None:
            return
        processes = dict(self._pool._processes or {})
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join(_LEAVING)
            process.kill()  # which does nothing to one that has ended
            process.join()
        self._listen()

    def carry_out(self, specs: Sequence[ExperimentSpec]) -> None:
        """Run and record all of these, each once; return when they are over."""
        count = workers_for(specs) if self.workers is None else self.workers
        if count > 1 and (len(specs) > 1 or self._pool is not None):
            self._side_by_side(specs, count)
            return
        for spec in specs:
            run(spec, self.records, again=self.again, on_row=partial(self.report, spec))

    def _side_by_side(self, specs: Sequence[ExperimentSpec], count: int) -> None:
        with _without_ctrl_c():  # the first of these starts the workers
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._news = context.Queue()
                self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_start, initargs=(self._news,))
            waiting = {self._pool.submit(_work, spec, self.records.folder, self.again) for spec in specs}
        while waiting:
            done, waiting = wait(waiting, timeout=LOOK, return_when=FIRST_COMPLETED)
            self._listen()
            for one in done:
                try:
                    one.result()
                except BrokenProcessPool as error:
                    remedy = "Run the command again: it goes on. If memory was short, with fewer --workers."
                    got = "one that was killed"
                    raise RecordError(message("Processes", "workers", "run to their end", got, remedy)) from error

    def _listen(self) -> None:
        """Pass on what workers have reported."""
        while not self._news.empty():
            news = self._news.get()
            if isinstance(news, str):
                self.warn(news)
            else:
                self.progress(*news)


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A block in which processes are started that Ctrl-C does not reach from their first moment: the parent ends them.

    They inherit that the signal is blocked. In the parent, where another thread may still receive it, it waits until
    the block ends: a worker is not left half started, and no Ctrl-C is lost.
    """
    in_main = threading.current_thread() is threading.main_thread()  # which alone may set a handler
    if not (in_main and hasattr(signal, "pthread_sigmask")):  # Windows has none
        yield
        return
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    resource_tracker.ensure_running()  # unblocks the signal once its own process is started, so it goes first
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


_news: Any = None  # in a worker: where it reports to


def _start(news: Any) -> None:
    """Prepare a worker: it reports epochs and warnings, leaves Ctrl-C to its parent, and ends with it."""
    global _news
    _news = news
    warnings.showwarning = lambda message, *about, **more: news.put(str(message))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        _leave()


def _leave(*signal: Any) -> None:
    """End at once, but without semaphores left: tqdm, which torch's compiler uses, makes one."""
    multiprocessing.util._run_finalizers(0)  # type: ignore[attr-defined]
    os._exit(1)


def _work(spec: ExperimentSpec, folder: Path, again: bool) -> None:
    run(spec, Records(folder), again=again, on_row=lambda row: _news.put((spec, row.epoch)))
