"""The trainings of the open pages: each its own, the idle ones dropped, never more than a few."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.playground.frame import frame
from ordered_sgd.lab.playground.settings import MOST_STEPS, WHERE, Settings, read_object, read_settings, read_whole
from ordered_sgd.lab.playground.side_by_side import SideBySide

MOST = 16  # pages at once; one more drops the page that was idle longest
IDLE = 1800.0  # seconds after which a page counts as closed


class Sessions:
    """Trainings by name; a page whose training was dropped is given a new one with the settings that it sends."""

    def __init__(self, most: int = MOST, idle: float = IDLE, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._idle, self._clock = most, idle, clock
        self._held: OrderedDict[str, tuple[float, SideBySide]] = OrderedDict()  # last used last

    def __len__(self) -> int:
        return len(self._held)

    def take(self, name: str | None, settings: Settings) -> tuple[str, SideBySide]:
        """The training of that name with these settings, or a new one under a new name."""
        now = self._clock()
        for old in [old for old, (used, _) in self._held.items() if now - used > self._idle]:
            del self._held[old]
        if name is not None and name in self._held:
            training = self._held.pop(name)[1]
            training.change(settings)
        else:
            name, training = secrets.token_hex(8), SideBySide(settings)
        while len(self._held) >= self._most:
            self._held.popitem(last=False)
        self._held[name] = (now, training)
        return name, training


def respond(sessions: Sessions, request: object) -> dict[str, Any]:
    """The answer to a page: its settings taken up, so many steps made, and what is to be drawn.

    Parameters
    ----------
    sessions
        The trainings there are.
    request
        From the page: `session`, its name or None; `settings`; `steps` to make; `reset`, to begin anew.
    """
    given = read_object("request", request, ("session", "settings", "steps", "reset"))
    name, reset = given.get("session"), given.get("reset", False)
    if not isinstance(name, str | None):
        rule = "be a name or null"
        raise ArgumentError(message(WHERE, "session", rule, type(name).__name__, "Reload the page."))
    if not isinstance(reset, bool):
        rule = "be true or false"
        raise ArgumentError(message(WHERE, "reset", rule, type(reset).__name__, "Reload the page."))
    steps = read_whole("steps", given.get("steps", 0), (0, MOST_STEPS))
    settings = read_settings(given.get("settings", {}))
    name, training = sessions.take(name, settings)
    if reset:
        training.reset()
    training.advance(steps)
    return {"session": name, **frame(training)}
