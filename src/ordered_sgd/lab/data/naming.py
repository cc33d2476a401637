"""Names out of files, in messages: short, on one line, and never all of a wide table."""

import difflib
from collections.abc import Sequence
from pathlib import Path

_LONGEST = 40  # characters of a name
_SOME = 8


def shortened(name: str, longest: int = _LONGEST) -> str:
    """A name on one line and cut short; what cannot be printed is written as in Python.

    >>> shortened("a\\nb"), shortened("x" * 50, longest=5), shortened("café 🐈")
    ('a\\\\nb', 'xxxx…', 'café 🐈')
    """
    kept = name[: longest + 1]
    shown = "".join(c if c.isprintable() or c == "\u200d" else c.encode("unicode_escape").decode() for c in kept)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def listed(names: Sequence[str], most: int = _SOME) -> str:
    """The first names, and how many more there are.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], most=2)
    ('a, b, c', 'a, b and 1 more')
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def nearest(name: str, names: Sequence[str]) -> str:
    """A name that this one may be a slip of, or nothing."""
    lower = {known.lower(): known for known in reversed(names[:10_000])}
    near = difflib.get_close_matches(name.lower()[:200], [known[:200] for known in lower], n=1, cutoff=0.7)
    return lower.get(near[0], "") if near else ""


def beside(path: Path, suffixes: Sequence[str] = ()) -> tuple[str, str]:
    """Files in the folder of a path that is not there, in words, and what to do: the nearest name."""
    folder = path.parent
    try:
        there = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError:
        return f"no folder {shortened(str(folder), 80)}", "Check the path."
    tables = [name for name in there if not suffixes or Path(name).suffix.lower() in suffixes] or there
    near = nearest(path.name, tables)
    remedy = f"Did you mean {shortened(near)!r}?" if near else "Check the path."
    around = f"; beside it: {listed([shortened(name) for name in tables])}" if tables else "; its folder has no files"
    return f"no such file{around}", remedy
