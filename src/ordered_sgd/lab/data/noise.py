"""Wrong labels, put in on purpose."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.data.dataset import Dataset


def flip_labels(data: Dataset, share: float, rng: np.random.Generator) -> tuple[Dataset, NDArray[np.int64]]:
    """The data set with a share of its labels changed to another class, each as likely, and which samples they are.

    Parameters
    ----------
    data
        A set of at least two classes; it is not changed.
    share
        In [0, 1], of the samples, rounded.
    rng
        Draws the samples and their new classes.

    Examples
    --------
    >>> from ordered_sgd.lab.data import load
    >>> digits = load("digits")
    >>> noisy, wrong = flip_labels(digits, 0.1, np.random.default_rng(0))
    >>> len(wrong) == round(0.1 * len(digits)), bool((noisy.y[wrong] != digits.y[wrong]).all())
    (True, True)
    """
    if not 0 <= share <= 1:
        raise ArgumentError(message("flip_labels", "share", "lie in [0, 1]", share, "Use 0.1 for a tenth of them."))
    if len(data.classes) < 2:
        got = f"{len(data.classes)} classes"
        raise ArgumentError(message("flip_labels", "data", "have at least two classes", got, "Pass a classification."))
    wrong = np.sort(rng.permutation(len(data))[: round(share * len(data))])
    y = np.array(data.y)
    y[wrong] = (y[wrong] + rng.integers(1, len(data.classes), len(wrong))) % len(data.classes)
    return replace(data, y=y), wrong
