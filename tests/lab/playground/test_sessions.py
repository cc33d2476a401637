"""Pages beside each other: each its own training, never more than a few, the idle ones dropped."""

import json
from typing import Any

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.playground.sessions import Sessions, respond


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_page_has_a_training_of_its_own() -> None:
    sessions = Sessions()
    one, two = (respond(sessions, {"session": None})["session"] for _ in range(2))
    assert one != two
    assert respond(sessions, {"session": one, "steps": 3})["step"] == 3
    assert respond(sessions, {"session": two, "steps": 1, "settings": {"problem": "figure1b"}})["step"] == 1
    assert respond(sessions, {"session": one, "steps": 1})["step"] == 4
    assert len(sessions) == 2


def test_reset_begins_anew_before_the_steps_are_made() -> None:
    sessions = Sessions()
    first = respond(sessions, {"steps": 2})
    again = respond(sessions, {"session": first["session"], "steps": 2, "reset": True})
    assert again == first


def test_of_too_many_pages_the_one_idle_longest_is_dropped_and_goes_on_with_a_new_one() -> None:
    sessions = Sessions(most=2)
    one, two = (respond(sessions, {"steps": 1})["session"] for _ in range(2))
    respond(sessions, {"session": one, "steps": 1})
    respond(sessions, {})
    assert len(sessions) == 2
    assert respond(sessions, {"session": one})["step"] == 2
    revived = respond(sessions, {"session": two})
    assert revived["session"] not in (one, two)
    assert revived["step"] == 0


def test_idle_pages_are_dropped() -> None:
    clock = Clock()
    sessions = Sessions(idle=10, clock=clock)
    one = respond(sessions, {"steps": 1})["session"]
    clock.now = 9
    assert respond(sessions, {"session": one})["step"] == 1
    clock.now = 20
    respond(sessions, {})
    assert len(sessions) == 1


def test_a_name_that_a_page_made_up_is_not_taken() -> None:
    assert respond(Sessions(), {"session": "../../mine"})["session"] != "../../mine"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (None, "request must be an object with some of session,"),
        ({"code": "1 + 1"}, "a name in request must be one of session,"),
        ({"session": 7}, "session must be a name or null; got int."),
        ({"reset": 1}, "reset must be true or false; got int."),
        ({"steps": 51}, "steps must be an int from 0 to 50; got 51."),
        ({"steps": -1}, "steps must be an int from 0 to 50; got -1."),
        ({"steps": 1.5}, "steps must be an int from 0 to 50; got 1.5."),
        ({"settings": []}, "settings must be an object"),
        ({"settings": {"lr": float("nan")}}, "lr must be a number"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_request_is_refused_and_makes_no_training(request_: Any, text: str) -> None:
    sessions = Sessions()
    with pytest.raises(ArgumentError, match=r"^osgd playground: ") as caught:
        respond(sessions, request_)
    assert text in str(caught.value)
    assert len(sessions) == 0


def test_a_wrong_request_leaves_the_training_as_it_was() -> None:
    sessions = Sessions()
    first = respond(sessions, {"steps": 2})
    with pytest.raises(ArgumentError):
        respond(sessions, {"session": first["session"], "steps": 1, "settings": {"s": -3}})
    assert json.dumps(respond(sessions, {"session": first["session"]})) == json.dumps(first)
