"""Parts of a report made one by one, so that one that fails does not take the others with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ordered_sgd.errors import MissingExtraError, first_line

T = TypeVar("T")
U = TypeVar("U")


def could_not(what: str, error: Exception) -> str:
    """The sentence for what could not be made.

    >>> could_not("the table", KeyError("test_error"))
    "Could not make the table: KeyError: 'test_error'."
    """
    return f"Could not make {what}: {type(error).__name__}: {first_line(error)}."


@dataclass
class Attempts:
    """Calls what makes a part; `missing` has a sentence for each part that could not be made.

    Errors that are no fault of the part itself are raised: by default those of a package that is not installed.

    >>> attempts = Attempts()
    >>> attempts("the sum", lambda: 1 + 1, 0), attempts("the share", lambda: 1 // 0, 0)
    (2, 0)
    >>> attempts.missing
    ['Could not make the share: ZeroDivisionError: integer division or modulo by zero.']
    """

    missing: list[str] = field(default_factory=list)
    raised: tuple[type[Exception], ...] = (MissingExtraError,)

    def __call__(self, what: str, make: Callable[[], T], otherwise: U) -> T | U:
        """The part, or the value that stands for it."""
        try:
            return make()
        except self.raised:
            raise
        except Exception as error:  # whatever it is: the rest of the page is worth more
            self.missing.append(could_not(what, error))
            return otherwise

    def pictures(self, makers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """The pictures by title; without those that fail, and those that there is nothing for."""
        made = {title: self(f"the picture “{title}”", make, None) for title, make in makers.items()}
        return {title: picture for title, picture in made.items() if picture is not None}
