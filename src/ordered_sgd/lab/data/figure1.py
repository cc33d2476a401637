"""The four 2-D problems of the paper's Figure 1, read from the published picture.

The paper states the sizes (n = 200 and n = 1000; two outer rings of 960 points, two inner ones of 40) and shows the
rest: places, spreads and radii here are what the picture shows, not the authors' numbers, which were not published.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.errors import check_choice
from ordered_sgd.lab.data.dataset import Dataset

Panel = Literal["a", "b", "c", "d"]
_SPREAD = 0.27  # standard deviation of a blob
_LONE = ((0.0, 0.35), (0.4, 0.25), (0.45, 0.75), (0.7, 0.5))  # class 1 of problem (b)
_RINGS = ((1.0, 480), (0.7, 480), (0.5, 20), (0.35, 20))  # radius and points, classes in turn


def figure1(problem: Panel, seed: int = 0) -> Dataset:
    """Points (n, 2) float32 of two classes: problem (a), (b), (c) or (d) of Figure 1.

    Parameters
    ----------
    problem
        ``"a"``: two blobs of 100 and 88 points, and a dozen points of the second class spread between them. ``"b"``: a
        blob of 196 points and, beside it, four of the other class, which are the same for every seed. ``"c"`` and
        ``"d"``: rings of radius 1, 0.7, 0.5 and 0.35 with 480, 480, 20 and 20 points, classes in turn; the two
        differ in the network that the paper trains, not in the points.
    seed
        Of the generator that draws the points.

    Examples
    --------
    >>> [len(figure1(problem)) for problem in "abcd"]
    [200, 200, 1000, 1000]
    """
    check_choice("figure1", "problem", problem, ("a", "b", "c", "d"))
    rng = np.random.default_rng(seed)
    if problem == "a":
        between = rng.uniform((-0.4, -0.2), (0.6, 0.7), (12, 2))
        clouds = [(_blob(rng, (-0.75, 1.3), 100), 0), (_blob(rng, (1.3, -0.8), 88), 1), (between, 1)]
    elif problem == "b":
        clouds = [(_blob(rng, (1.3, -0.7), 196), 0), (np.array(_LONE), 1)]
    else:
        clouds = [(_ring(rng, radius, n), turn % 2) for turn, (radius, n) in enumerate(_RINGS)]
    x = np.concatenate([points for points, _ in clouds]).astype(np.float32)
    y = np.concatenate([np.full(len(points), label, np.int64) for points, label in clouds])
    return Dataset(x, y, ("0", "1"), f"figure1{problem}")


def _blob(rng: np.random.Generator, centre: tuple[float, float], n: int) -> NDArray[np.float64]:
    return rng.normal(centre, _SPREAD, (n, 2))


def _ring(rng: np.random.Generator, radius: float, n: int) -> NDArray[np.float64]:
    angle = 2 * np.pi * (np.arange(n) / n + rng.random())  # evenly spaced, turned at random
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
