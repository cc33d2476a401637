"""A random order of n numbers that is computed where it is needed instead of stored.

A Feistel network permutes the numbers of a fixed number of bits, whatever its rounds compute. A number that falls
outside 0 .. n - 1 goes through it again until it falls inside ("cycle walking", Black & Rogaway, 2002). This needs
neither memory nor state: a resumed run only has to know its place in the epoch.
"""

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 8
_LEAST_BITS = 4  # fewer leave too few different orders
_MASK = 2**64 - 1
_STEP, _FIRST, _SECOND = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)  # of SplitMix64 (Steele et al., 2014)


def shuffled(positions: NDArray[np.int64], n: int, key: int) -> NDArray[np.int64]:
    """The numbers that stand at some positions of a random order of 0 .. n - 1; the key says which order.

    >>> sorted(shuffled(np.arange(10), 10, key=3).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    keys = [np.uint64(hashed(key, number)) for number in range(_ROUNDS)]
    bits = max(_LEAST_BITS, (n - 1).bit_length())
    values = _once(positions.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(values >= n)
    while outside.size:
        values[outside] = _once(values[outside], bits, keys)
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _once(values: NDArray[np.uint64], bits: int, keys: list[np.uint64]) -> NDArray[np.uint64]:
    """The values after all rounds: one half of the bits is changed by a hash of the other half, in turn."""
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64((1 << bits // 2) - 1), np.uint64((1 << (bits - bits // 2)) - 1)
    high, low = values >> low_bits, values & low_mask
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        high ^= _mixed(low + first) & high_mask
        low ^= _mixed(high + second) & low_mask
    return (high << low_bits) | low


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's hash of each value; arithmetic is modulo 2^64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return values ^ (values >> np.uint64(31))


def hashed(*numbers: int) -> int:
    """A number below 2^64 made from others: the seed of what they name.

    >>> hashed(0, 1) != hashed(1, 0)
    True
    """
    value = 0
    for number in numbers:
        value = (value + _STEP + number) & _MASK
        value = ((value ^ (value >> 30)) * _FIRST) & _MASK
        value = ((value ^ (value >> 27)) * _SECOND) & _MASK
        value ^= value >> 31
    return value
