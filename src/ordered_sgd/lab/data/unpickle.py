"""A pickle read as plain data: nothing in it is imported, called or built.

A pickle is a program for a small stack machine. This is such a machine with only the instructions that a dictionary of
numbers, strings, lists and arrays of bytes needs. The five names such a pickle may mention stand for themselves, as
strings; what Python's own unpickler would have NumPy build is recorded in a `PickledArray` and turned into an array by
`PickledArray.uint8`, after its shape has been compared with its bytes.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ordered_sgd.lab.data.files import fault, read_plain, reason

_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NDARRAY, _DTYPE, _ENCODE = "numpy ndarray", "numpy dtype", "_codecs encode"
_ALLOWED = (*_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE)
_LONGEST = 200  # bytes of a module's and a function's name


class _Refused(Exception):  # noqa: N818 (never leaves this file)
    """The reason why a pickle is not read."""


class _Name:
    """A name that the pickle wants imported; it is not."""

    def __init__(self, name: str) -> None:
        if name not in _ALLOWED:
            raise _Refused(f"a call for {name[:80].replace(' ', '.')!r}")
        self.name = name


class _PickledDtype:
    """The arguments of a dtype."""

    def __init__(self, code: object) -> None:
        self.code = _text(code)

    def build(self, state: object) -> None:
        """Accept the state of a plain dtype: no fields, no inner shape."""
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("a dtype with fields")


class PickledArray:
    """The state of an array, as the pickle gives it: not checked."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def build(self, state: object) -> None:
        """Record the state, (version, shape, dtype, Fortran order, bytes)."""
        if self.state or not isinstance(state, tuple) or len(state) != 5:
            raise _Refused("an array without its five parts")
        self.state = state

    def uint8(self, path: Path) -> NDArray[np.uint8]:
        """The array, read-only."""
        _, shape, dtype, fortran, data = self.state or (None,) * 5
        if not isinstance(dtype, _PickledDtype) or dtype.code not in ("u1", "|u1"):
            raise fault(path, "hold an array of unsigned bytes", "another dtype")
        if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
            raise fault(path, "hold an array with a shape", "something else")
        if not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise fault(path, f"hold as many bytes as the shape {_short(shape)} needs", "another number")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


def read_pickle(path: Path, limit: int, steps: int) -> dict[str, Any]:
    """The dictionary in a pickle of at most `limit` bytes and `steps` instructions, its keys as str.

    Values are None, bool, int, str, bytes, tuple, list, dict and `PickledArray`; the str of Python 2 is bytes. Memory
    stays within a small multiple of the file: every instruction makes at most one object, and text is encoded at most
    once.
    """
    data = read_plain(path, limit)
    machine = _Machine(len(data))
    try:
        for count, (run, argument) in enumerate(_instructions(data)):
            if count >= steps:
                raise _Refused(f"more than {steps:,} instructions")
            run(machine, argument)
        return machine.result()
    except (_Refused, UnicodeError) as error:
        raise fault(path, "be a pickle of plain data", reason(error)) from error


def _instructions(data: bytes) -> Iterator[tuple["_Run", Any]]:
    """What to do and its argument, instruction by instruction, up to the end."""
    at, code = 0, b""
    while code != b".":
        code = data[at : at + 1]
        if code not in _INSTRUCTIONS:
            raise _Refused(f"the instruction {_name_of(code)}" if code else "no end")
        kind, width, run = _INSTRUCTIONS[code]
        at += 1
        if kind == "names":
            lines = data[at : at + _LONGEST].split(b"\n", 2)
            if len(lines) < 3:
                raise _Refused("a name without an end")
            argument: Any = b" ".join(lines[:2]).decode("ascii")
            at += len(argument) + 1
        else:
            number = int.from_bytes(data[at : at + width], "little", signed=kind == "signed")
            at += width
            size = 0 if kind in ("signed", "number") else number
            if at + size > len(data):
                raise _Refused("an argument that is cut short")
            argument = _argument(kind, number, data[at : at + size])
            at += size
        yield run, argument
    if at != len(data):
        raise _Refused("bytes after its end")


def _argument(kind: str, number: int, piece: bytes) -> int | str | bytes:
    if kind == "text":
        return piece.decode("utf-8", "surrogatepass")
    if kind == "long":
        return int.from_bytes(piece, "little", signed=True)
    return piece if kind == "bytes" else number


def _name_of(code: bytes) -> str:
    import pickletools

    known = {entry.code: entry.name for entry in pickletools.opcodes}
    return known.get(code.decode("latin-1"), code.hex())


class _Machine:
    """A stack, the stacks below each open mark, and the memo."""

    def __init__(self, encodable: int) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.encodable = encodable  # bytes that may still be made from text: a memo could repeat a long one for ever

    def result(self) -> dict[str, Any]:
        """What is left on the stack: one dictionary."""
        if self.below or len(self.stack) != 1 or not isinstance(self.stack[0], dict):
            raise _Refused("something else than one dictionary")
        return {_text(key): value for key, value in self.stack[0].items()}

    def pop(self) -> Any:
        """The top of the stack."""
        if not self.stack:
            raise _Refused("an instruction without its operand")
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        """Everything above the last mark."""
        if not self.below:
            raise _Refused("an instruction without its mark")
        items, self.stack = self.stack, self.below.pop()
        return items

    def top(self, kind: type) -> Any:
        """The top of the stack, which stays there, of the given type."""
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise _Refused(f"no {kind.__name__} where one is filled")
        return self.stack[-1]

    def mark(self) -> None:
        """Open a mark."""
        self.below.append(self.stack)
        self.stack = []

    def tuple_of(self, count: int) -> None:
        """The last `count` objects as a tuple."""
        items = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def marked_tuple(self) -> None:
        """Everything above the last mark as a tuple."""
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def put(self, index: int) -> None:
        """Remember the top of the stack."""
        self.memo[index] = self.top(object)

    def get(self, index: int) -> None:
        """Push something remembered."""
        if index not in self.memo:
            raise _Refused("a reference to nothing")
        self.stack.append(self.memo[index])

    def append(self, items: list[Any]) -> None:
        """Add to the list on top."""
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Add keys and values to the dictionary on top; nested keys would take exponential time to hash."""
        if len(items) % 2 or not all(isinstance(key, str | bytes) for key in items[::2]):
            raise _Refused("a dictionary with other keys than str and bytes")
        self.top(dict).update(zip(items[::2], items[1::2], strict=True))

    def name_on_stack(self) -> None:
        """Replace module and name by the two together."""
        name, module = self.pop(), self.pop()
        self.stack.append(_Name(f"{_text(module)} {_text(name)}"))

    def call(self) -> None:
        """Record what a call of one of the allowed names would have made."""
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple) or not 2 <= len(arguments) <= 3:
            raise _Refused("a call of something that is no function")
        if function.name in _RECONSTRUCT:
            self.stack.append(PickledArray())
        elif function.name == _DTYPE:
            self.stack.append(_PickledDtype(arguments[0]))
        elif function.name == _ENCODE:
            self.stack.append(self.encode(*arguments[:2]))
        else:
            raise _Refused("a call of numpy.ndarray")

    def encode(self, text: object, encoding: object) -> bytes:
        """The bytes that Python 3 wrote as text for Python 2."""
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise _Refused("text that is not encoded as Latin-1")
        self.encodable -= len(text)
        if self.encodable < 0:
            raise _Refused("more encoded text than the file holds")
        return text.encode("latin-1")

    def build(self) -> None:
        """Give an array or a dtype its state."""
        state, target = self.pop(), self.top(object)
        if not isinstance(target, PickledArray | _PickledDtype):
            raise _Refused("a state for something that has none")
        target.build(state)


_Run = Callable[[_Machine, Any], object]
_push: _Run = lambda machine, argument: machine.stack.append(argument)  # noqa: E731

# Code -> kind of argument, bytes of its number or of its length, what to do.
_INSTRUCTIONS: dict[bytes, tuple[str, int, _Run]] = {
    b"\x80": ("number", 1, lambda machine, _: None),  # the protocol
    b"\x95": ("number", 8, lambda machine, _: None),  # length of a frame
    b".": ("number", 0, lambda machine, _: None),
    b"(": ("number", 0, lambda machine, _: machine.mark()),
    b"N": ("number", 0, lambda machine, _: machine.stack.append(None)),
    b"\x88": ("number", 0, lambda machine, _: machine.stack.append(True)),
    b"\x89": ("number", 0, lambda machine, _: machine.stack.append(False)),
    b"K": ("number", 1, _push),
    b"M": ("number", 2, _push),
    b"J": ("signed", 4, _push),
    b"\x8a": ("long", 1, _push),
    b"U": ("bytes", 1, _push),
    b"T": ("bytes", 4, _push),
    b"C": ("bytes", 1, _push),
    b"B": ("bytes", 4, _push),
    b"\x8e": ("bytes", 8, _push),
    b"X": ("text", 4, _push),
    b"\x8c": ("text", 1, _push),
    b"}": ("number", 0, lambda machine, _: machine.stack.append({})),
    b"]": ("number", 0, lambda machine, _: machine.stack.append([])),
    b")": ("number", 0, lambda machine, _: machine.stack.append(())),
    b"\x85": ("number", 0, lambda machine, _: machine.tuple_of(1)),
    b"\x86": ("number", 0, lambda machine, _: machine.tuple_of(2)),
    b"\x87": ("number", 0, lambda machine, _: machine.tuple_of(3)),
    b"t": ("number", 0, lambda machine, _: machine.marked_tuple()),
    b"a": ("number", 0, lambda machine, _: machine.append([machine.pop()])),
    b"e": ("number", 0, lambda machine, _: machine.append(machine.pop_mark())),
    b"s": ("number", 0, lambda machine, _: machine.set_items([machine.pop(), machine.pop()][::-1])),
    b"u": ("number", 0, lambda machine, _: machine.set_items(machine.pop_mark())),
    b"q": ("number", 1, lambda machine, index: machine.put(index)),
    b"r": ("number", 4, lambda machine, index: machine.put(index)),
    b"\x94": ("number", 0, lambda machine, _: machine.put(len(machine.memo))),
    b"h": ("number", 1, lambda machine, index: machine.get(index)),
    b"j": ("number", 4, lambda machine, index: machine.get(index)),
    b"c": ("names", 0, lambda machine, name: machine.stack.append(_Name(name))),
    b"\x93": ("number", 0, lambda machine, _: machine.name_on_stack()),
    b"R": ("number", 0, lambda machine, _: machine.call()),
    b"b": ("number", 0, lambda machine, _: machine.build()),
}


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if not isinstance(value, str):
        raise _Refused("something else where a name is due")
    return value


def _short(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 4 and all(side < 1 << 32 for side in shape) else "in its header"
