"""What a page may ask for; all else is refused with a line that says what is wrong."""

import json
from typing import Any

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.models import MODELS as NETWORKS
from ordered_sgd.lab.playground.settings import (
    CHOICES,
    MOST_POINTS,
    PROBLEMS,
    PROPOSED,
    Settings,
    describe,
    read_settings,
)
from ordered_sgd.lab.playground.side_by_side import SideBySide

NAN, INFINITE, HUGE = float("nan"), float("inf"), 10**400

WRONG: list[tuple[Any, str]] = [
    (None, "settings must be an object with some of problem, model"),
    ([1], "settings must be an object"),
    ({"path": "/etc/passwd"}, "a name in settings must be one of problem,"),
    ({"x" * 999: 1}, "a name in settings must be one of problem,"),
    ({"problem": "mnist"}, "problem must be one of figure1a, figure1b, figure1c, own; got 'mnist'."),
    ({"problem": ["figure1a"]}, "problem must be one of"),
    ({"problem": None}, "problem must be one of"),
    ({"model": "lenet"}, "model must be one of"),
    ({"model": "__import__('os')"}, "model must be one of"),
    ({"optimizer": "adm"}, "optimizer must be one of sgd, momentum, adam; got 'adm'. Did you mean 'adam'?"),
    ({"s": 0}, "s must be an int from 1 to 200; got 0."),
    ({"s": 201}, "s must be an int from 1 to 200; got 201."),
    ({"s": HUGE}, "s must be an int from 1 to 200; got 'an int of 1329 bits'."),
    ({"s": True}, "s must be an int from 1 to 200; got True."),
    ({"s": 2.5}, "s must be an int from 1 to 200; got 2.5."),
    ({"s": NAN}, "s must be an int from 1 to 200; got nan."),
    ({"q": "8"}, "q must be an int from 1 to 200; got '8'."),
    ({"q": -1}, "q must be an int from 1 to 200; got -1."),
    ({"seed": -1}, "seed must be an int from 0 to 9999; got -1."),
    ({"lr": NAN}, "lr must be a number from 0.0001 to 10; got nan."),
    ({"lr": INFINITE}, "lr must be a number from 0.0001 to 10; got inf."),
    ({"lr": HUGE}, "lr must be a number from 0.0001 to 10; got 'an int of 1329 bits'."),
    ({"lr": 0}, "lr must be a number from 0.0001 to 10; got 0."),
    ({"lr": "0.1"}, "lr must be a number"),
    ({"lr": True}, "lr must be a number"),
    ({"lr": {}}, "lr must be a number from 0.0001 to 10; got 'dict'."),
    ({"points": "many"}, "points must be a list of at most 400; got 'many'."),
    ({"points": {}}, "points must be a list of at most 400"),
    ({"points": [[0, 0, 0]] * (MOST_POINTS + 1)}, "points must be a list of at most 400; got '401 points'."),
    ({"points": [[0, 0]]}, "point 0 must be [x, y, class]; got 'list'."),
    ({"points": [[0, 0, 0], 7]}, "point 1 must be [x, y, class]; got 7."),
    ({"points": [[NAN, 0, 0]]}, "x of point 0 must be a number from -10 to 10; got nan."),
    ({"points": [[0, 11, 0]]}, "y of point 0 must be a number from -10 to 10; got 11."),
    ({"points": [[0, 0, 2]]}, "class of point 0 must be an int from 0 to 1; got 2."),
    ({"points": [[0, 0, 0.0]]}, "class of point 0 must be an int from 0 to 1"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_refused_in_one_short_line(given: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_settings(given)
    line = str(caught.value)
    assert line.startswith(f"osgd playground: {text}")
    assert len(line) < 250


def test_what_is_left_out_is_as_at_first_and_the_rest_is_taken() -> None:
    assert read_settings({}) == Settings()
    given = {"problem": "own", "model": "figure1d", "optimizer": "adam", "s": 5, "q": 2, "lr": 1, "seed": 3}
    read = read_settings({**given, "points": [[0.5, -1, 1]]})
    assert read == Settings("own", "figure1d", "adam", 5, 2, 1.0, 3, ((0.5, -1.0, 1),))
    assert isinstance(read.lr, float)


def test_what_the_page_is_told_is_allowed() -> None:
    told = json.loads(json.dumps(describe(), allow_nan=False))
    assert list(told["proposed"]) == list(PROBLEMS)
    for problem, settings in told["proposed"].items():
        assert read_settings(settings) == PROPOSED[problem]
        assert settings["problem"] == problem
    for name in ("s", "q", "seed", "lr"):
        for bound in told["bounds"][name]:
            read_settings({name: bound})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in CHOICES.items() for value in values])
def test_every_choice_can_be_trained(name: str, value: str) -> None:
    training = SideBySide(read_settings({name: value, "points": [[0, 0, 0], [1, 1, 1]]}))
    training.advance(1)
    assert training.steps == 1
    assert set(CHOICES["model"]) <= set(NETWORKS)
