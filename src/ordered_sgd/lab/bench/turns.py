"""Trainings that take turns: a trainer owns its loop, so each runs in a thread and waits there for its turn."""

import copy
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from ordered_sgd.errors import OrderedSGDError


class _Closed(BaseException):
    """Ends a training from within; a trainer that catches every Exception lets this one through."""


class Turns:
    """The batches of a training that runs in a thread of its own, one update per turn.

    It is the ``collate_fn`` of the trainer's loader. A turn begins when the first batch of an update is handed out, and
    ends when the trainer asks for the first batch of the next update. What lies between is one whole update with all
    that the trainer does around it, also where a loader fetches batches ahead. Only the thread whose turn it is runs,
    so the processor time of the process is that of the turn.

    Every turn starts from a seed of its own: trainings that draw the same random numbers draw the same values.

    Parameters
    ----------
    batches : sequence
        Handed out one after the other, without end. Each is copied, because trainers take parts out of a dict.
    parts : int, default=1
        Batches of an update.

    Examples
    --------
    >>> seen = []
    >>> with Turns("ab").start(lambda turns: [seen.append(turns()) for _ in range(9)]) as turns:
    ...     print(seen)
    ...     turns.next()
    ...     turns.next()
    ...     print(seen)
    []
    ['a', 'b']
    """

    def __init__(self, batches: Sequence[Any], parts: int = 1) -> None:
        self._batches, self._parts = itertools.cycle(batches), parts
        self._asked = self._begun = 0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._closing, self._ended = False, False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, train: Callable[["Turns"], object]) -> Self:
        """Run ``train(self)`` up to its first batch."""

        def run() -> None:
            try:
                train(self)
            except _Closed:
                pass
            except BaseException as error:
                self._failure = error
            self._ended = True
            self._stopped.release()

        self._thread = threading.Thread(target=run, name="osgd bench trainers", daemon=True)
        self._thread.start()
        self._wait()
        return self

    def __call__(self, samples: object = None) -> Any:
        """The next batch, whatever the samples; called by the loader."""
        if self._asked % self._parts == 0:
            self._stopped.release()
            self._go.acquire()
            if self._closing:
                raise _Closed
        self._asked += 1
        return copy.copy(next(self._batches))

    def next(self) -> None:
        """Let the training go on for one turn."""
        torch.manual_seed(self._begun)
        self._begun += 1
        self._go.release()
        self._wait()

    def close(self) -> None:
        """End the training where it waits."""
        if self._thread is not None:
            self._closing = True
            self._go.release()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self) -> None:
        self._stopped.acquire()
        if self._failure is not None:
            raise self._failure
        if self._ended:
            raise OrderedSGDError("osgd bench trainers: a training ended before its last turn.")
