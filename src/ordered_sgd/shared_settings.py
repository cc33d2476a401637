"""Settings that must be the same on every rank: compared by one number, and named where they differ."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from ordered_sgd.errors import ArgumentError, message

Settings = Mapping[str, object]
ABOUT = "the message"  # the setting that says what is exchanged


def shown_setting(value: object) -> str:
    """A setting as text that is the same on every rank.

    An object of another package is shown by its class, because its repr may hold an address or what a rank has seen.

    >>> shown_setting(0.25), shown_setting("top"), shown_setting(hashlib.sha256())
    ('0.25', 'top', 'HASH')
    """
    kind = type(value)
    ours = kind.__module__ == "builtins" or kind.__module__.startswith("ordered_sgd.")
    if isinstance(value, str):
        return value
    return repr(value) if ours else kind.__qualname__


def mark_of(shown: Mapping[str, str]) -> int:
    """A number of 48 bits by which ranks see whether their settings are the same."""
    text = "\n".join(f"{name}={value}" for name, value in shown.items())
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def different_settings(shown: Mapping[str, str], group: "dist.ProcessGroup", where: str) -> ArgumentError:
    """The error that names what differs; all ranks call this together, because all see that something does."""
    everywhere: list[Any] = [None] * group.size()
    dist.all_gather_object(everywhere, dict(shown), group=group)
    names = dict.fromkeys(name for rank in everywhere for name in rank)
    values = {name: [rank.get(name, "nothing") for rank in everywhere] for name in names}
    different = {name: found for name, found in values.items() if len({*found}) > 1}
    if ABOUT in different:  # then the other settings are not all there
        different = {ABOUT: different[ABOUT]}
    got = [by_rank(found) if len(different) == 1 else f"{name} {by_rank(found)}" for name, found in different.items()]
    *others, last = different
    name = f"{', '.join(others)} and {last}" if others else last
    remedy = "Give every rank the same arguments and the same checkpoint, and call it equally often on each."
    return ArgumentError(message(where, name, "be the same on all ranks of the group", "; ".join(got), remedy))


def by_rank(values: Sequence[str | None]) -> str:
    """Which ranks have which value; None is left out.

    >>> by_rank(["5", "8", None, "5"])
    '5 on rank 0 and 1 more, 8 on rank 1'
    """
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        if value is not None:
            ranks.setdefault(value, []).append(rank)
    parts = [
        f"{value} on rank {own[0]}{f' and {len(own) - 1} more' if len(own) > 1 else ''}" for value, own in ranks.items()
    ]
    return ", ".join([*parts[:3], *(["..."] if len(parts) > 3 else [])])
