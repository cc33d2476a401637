"""The order in which samples are drawn, from a NumPy generator; nothing here needs torch."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message


def epoch_batches(n: int, s: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Indices of one epoch's mini-batches: a shuffle of all n samples cut into pieces of s, the last one smaller.

    Examples
    --------
    >>> [len(batch) for batch in epoch_batches(10, 4, np.random.default_rng(0))]
    [4, 4, 2]
    """
    _check(n, s, "epoch_batches")
    order = rng.permutation(n)
    return (order[start : start + s] for start in range(0, n, s))


def algorithm_batches(n: int, s: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Endless mini-batches as Algorithm 1, line 3 draws them: s of n at random without replacement, anew each time.

    Examples
    --------
    >>> next(algorithm_batches(3, 3, np.random.default_rng(0))).shape
    (3,)
    """
    _check(n, s, "algorithm_batches")

    def draw() -> Iterator[NDArray[np.int64]]:
        while True:
            yield rng.choice(n, size=s, replace=False)

    return draw()


def _check(n: int, s: int, where: str) -> None:
    if not 1 <= s <= n:
        remedy = "Use a batch size of at most the number of samples."
        raise ArgumentError(message(where, "s", f"be between 1 and n = {n}", s, remedy))
