"""What the page may ask for: names from a list, numbers within bounds, points in the picture; all else is refused."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ordered_sgd.errors import ArgumentError, check_choice, message

WHERE = "osgd playground"
OWN = "own"  # the problem that is drawn by hand
SQUARE = 2.0  # an empty picture shows [-SQUARE, SQUARE] twice

# Name -> what the page calls it.
PROBLEMS = {
    "figure1a": "Figure 1 (a): two blobs, a dozen points between",
    "figure1b": "Figure 1 (b): a blob and four lone points",
    "figure1c": "Figure 1 (c, d): rings, the inner two rare",
    OWN: "Points of your own",
}
MODELS = {
    "figure1a": "linear",
    "figure1d": "network of 3 × 10 units",
    "figure1c": "network of 3 × 20 units",
}
OPTIMIZERS = {"sgd": "plain", "momentum": "momentum 0.9", "adam": "Adam"}
CHOICES: dict[str, dict[str, str]] = {"problem": PROBLEMS, "model": MODELS, "optimizer": OPTIMIZERS}

# Name -> smallest and largest value; s is then cut to the points there are, and q to s.
WHOLE = {"s": (1, 200), "q": (1, 200), "seed": (0, 9999)}
LR = (1e-4, 10.0)
MOST_POINTS = 400  # drawn by hand
FURTHEST = 10.0  # coordinate of a point
MOST_STEPS = 50  # in one request: others wait meanwhile

Point = tuple[float, float, int]  # x, y, class


@dataclass(frozen=True)
class Settings:
    """A problem, what is trained on it, and how; `points` are those drawn by hand, after the problem's own."""

    problem: str = "figure1a"
    model: str = "figure1a"
    optimizer: str = "sgd"
    s: int = 64
    q: int = 8
    lr: float = 0.1
    seed: int = 0
    points: tuple[Point, ...] = ()


# What the page proposes with a problem: rings need a network, and with a q below s/4 one starts slowly.
PROPOSED = {
    "figure1a": Settings("figure1a"),
    "figure1b": Settings("figure1b"),
    "figure1c": Settings("figure1c", "figure1c", "adam", s=100, q=25, lr=0.01),
    OWN: Settings(OWN, s=20, q=5),
}


def describe() -> dict[str, Any]:
    """What the page builds its controls from: the choices, the bounds, and settings to begin with for each problem."""
    bounds = {**WHOLE, "lr": LR, "points": (0, MOST_POINTS), "steps": (0, MOST_STEPS)}
    proposed = {name: asdict(settings) for name, settings in PROPOSED.items()}
    return {"choices": CHOICES, "bounds": bounds, "proposed": proposed}


def read_settings(given: object) -> Settings:
    """The settings that a page sent, or an error that names the first wrong one; what is left out is as at first.

    >>> read_settings({"s": 32, "lr": 1}).lr
    1.0
    >>> read_settings({"s": "many"})
    Traceback (most recent call last):
    ordered_sgd.errors.ArgumentError: osgd playground: s must be an int from 1 to 200; got 'many'. ...
    """
    values = read_object("settings", given, tuple(asdict(Settings())))
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name in CHOICES:
            checked[name] = _read_choice(name, value)
        elif name in WHOLE:
            checked[name] = read_whole(name, value, WHOLE[name])
        elif name == "lr":
            checked[name] = _read_number(name, value, LR)
        else:
            checked[name] = _read_points(value)
    return Settings(**checked)


def read_object(name: str, given: object, known: tuple[str, ...]) -> Mapping[str, object]:
    """A JSON object that has no names but the known ones."""
    if not isinstance(given, dict):
        raise _refused(name, f"be an object with some of {', '.join(known)}", given)
    for key in given:
        check_choice(WHERE, f"a name in {name}", _short(key), known, "Reload the page.")
    return given


def read_whole(name: str, value: object, bounds: tuple[int, int]) -> int:
    """An int within bounds; neither a float nor a truth value."""
    if type(value) is not int or not bounds[0] <= value <= bounds[1]:
        raise _refused(name, f"be an int from {bounds[0]} to {bounds[1]}", value)
    return value


def _read_number(name: str, value: object, bounds: tuple[float, float]) -> float:
    # compared before it is converted: an int of many digits has no float, and NaN is within no bounds
    if type(value) not in (int, float) or not bounds[0] <= value <= bounds[1]:  # type: ignore[operator]
        raise _refused(name, f"be a number from {bounds[0]:g} to {bounds[1]:g}", value)
    return float(value)  # type: ignore[arg-type]


def _read_choice(name: str, value: object) -> str:
    check_choice(WHERE, name, _short(value), tuple(CHOICES[name]))
    return str(value)


def _read_points(given: object) -> tuple[Point, ...]:
    if not isinstance(given, list) or len(given) > MOST_POINTS:
        got = f"{len(given)} points" if isinstance(given, list) else _short(given)
        raise _refused("points", f"be a list of at most {MOST_POINTS}", got)
    return tuple(_read_point(i, point) for i, point in enumerate(given))


def _read_point(i: int, given: object) -> Point:
    if not isinstance(given, list) or len(given) != 3:
        raise _refused(f"point {i}", "be [x, y, class]", given)
    x, y = (_read_number(f"{axis} of point {i}", given[j], (-FURTHEST, FURTHEST)) for j, axis in enumerate("xy"))
    return x, y, read_whole(f"class of point {i}", given[2], (0, 1))


def _refused(name: str, rule: str, got: object) -> ArgumentError:
    return ArgumentError(message(WHERE, name, rule, repr(_short(got)), "Reload the page."))


def _short(value: object) -> object:
    """The value as it may stand in a message: what came over the wire can be long."""
    if type(value) is int and abs(value) > 10**12:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 40):
        return value
    return f"{value[:40]}..." if isinstance(value, str) else type(value).__name__
