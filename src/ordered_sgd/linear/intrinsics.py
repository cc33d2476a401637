"""Machine instructions, an exponential and compiler options for the kernels.

Needs numba, which comes with the extra `linear`; imported by `kernels` alone.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, event, types
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array

from ordered_sgd import jit

logger = logging.getLogger("ordered_sgd.linear")
# Sums may be reordered, so that they use the vector unit; NaN and infinity keep their meaning.
SUMS = frozenset({"reassoc", "contract", "nsz"})


compiled = functools.partial(jit.compiled, flags=SUMS)
# For loops that jump through memory, where vectors would have to gather single numbers.
scalar = jit.compiled


class _Announcer(event.Listener):
    """Logs once that a kernel is being compiled, including the functions it calls."""

    def __init__(self) -> None:
        self.depth, self.started = 0, 0.0

    def on_start(self, event: Any) -> None:
        self.depth += 1
        if self.depth == 1:
            self.started = time.perf_counter()
            logger.info("compiling the kernels for this kind of data, once: the result is kept on disk")

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            logger.info("compiled in %.1f s", time.perf_counter() - self.started)


@contextmanager
def announced() -> Iterator[None]:
    """A block in which compilation is announced through `logging`."""
    with event.install_listener("numba:compile", _Announcer()):
        yield


def _prefetch(typing_context: Any, array: Any, offset: Any) -> Any:  # pragma: no cover
    """Prefetch the cache line at a byte offset from the start of an array, without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data  # type: ignore[no-untyped-call]
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.gep(builder.bitcast(data, byte), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(call, [address, number(0), number(3), number(1)])  # for reading, to be kept near, data
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


def _float_of_bits(typing_context: Any, bits: Any) -> Any:  # pragma: no cover
    """The float32 that has the bits of an int32."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), codegen


LANES = 8  # numbers per vector below
TILE = 2 * LANES  # features per `add_tile`


class _Vectors:  # pragma: no cover
    """Eight numbers of a contiguous array at once, in the code that an intrinsic builds."""

    def __init__(self, context: Any, builder: Any, number: Any) -> None:
        self.context, self.builder, self.number = context, builder, number
        self.kind = ir.VectorType(number, LANES)

    def pointer(self, array_type: Any, array: Any, index: Any) -> Any:
        """Address of a position in the flattened array."""
        data = make_array(array_type)(self.context, self.builder, array).data  # type: ignore[no-untyped-call]
        return self.builder.gep(data, [index])

    def row_length(self, array_type: Any, array: Any) -> Any:
        """The second number of an array's shape."""
        shape = make_array(array_type)(self.context, self.builder, array).shape  # type: ignore[no-untyped-call]
        return self.builder.extract_value(shape, 1)

    def variable(self) -> Any:
        """A variable of eight zeros."""
        address = cgutils.alloca_once(self.builder, self.kind)  # type: ignore[no-untyped-call]
        self.builder.store(ir.Constant(self.kind, [0.0] * LANES), address)
        return address

    def load(self, address: Any) -> Any:
        """Eight numbers from an address; bytes become floats."""
        item = address.type.pointee
        where = self.builder.bitcast(address, ir.VectorType(item, LANES).as_pointer())
        vector = self.builder.load(where, align=self.context.get_abi_sizeof(item))
        return self.builder.uitofp(vector, self.kind) if isinstance(item, ir.IntType) else vector

    def store(self, vector: Any, address: Any) -> None:
        """Eight numbers to an address."""
        where = self.builder.bitcast(address, self.kind.as_pointer())
        self.builder.store(vector, where, align=self.context.get_abi_sizeof(self.number))

    def spread(self, number: Any) -> Any:
        """One number eight times."""
        place = ir.IntType(32)
        first = self.builder.insert_element(ir.Constant(self.kind, ir.Undefined), number, place(0))
        return self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(place, LANES), [0] * LANES))

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """The sum total + a * b, rounded once where the machine can."""
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=("contract",)), flags=("contract",))


def _add_scaled(typing_context: Any, into: Any, i: Any, factor: Any, source: Any, j: Any) -> Any:  # pragma: no cover
    """Eight numbers at once: into[i:i+8] += factor * source[j:j+8], both contiguous and flattened.

    The compiler would not vectorize a loop over eight, because the two arrays might overlap.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        factor = arguments[2]
        vectors = _Vectors(context, builder, factor.type)
        target, origin = (vectors.pointer(signature.args[n], arguments[n], arguments[n + 1]) for n in (0, 3))
        vectors.store(vectors.add_product(vectors.load(target), vectors.spread(factor), vectors.load(origin)), target)
        return context.get_dummy_value()

    return types.void(into, types.intp, into.dtype, source, types.intp), codegen


def _add_tile(columns: int) -> Callable[..., Any]:
    """The builder of `add_tile` for a number of columns: their sums over the rows stay in the machine's registers."""

    def add_tile(
        typing_context: Any, V: Any, X: Any, starts: Any, q: Any, j: Any, G: Any, c: Any
    ) -> Any:  # pragma: no cover
        """V[c + k, j:j+16] += sum over i < q of G[i, c + k] * (16 of X.flat from starts[i] + j), for k < columns."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            V_type, X_type, starts_type, _, _, G_type, _ = signature.args
            V, X, starts, q, j, G, c = arguments
            vectors = _Vectors(context, builder, context.get_data_type(V_type.dtype))
            halves, place = range(0, TILE, LANES), ir.IntType(64)
            sums = [[vectors.variable() for _ in halves] for _ in range(columns)]
            width = vectors.row_length(G_type, G)
            with cgutils.for_range(builder, q) as loop:
                start = builder.add(builder.load(vectors.pointer(starts_type, starts, loop.index)), j)
                row = vectors.pointer(X_type, X, start)
                x = [vectors.load(builder.gep(row, [place(half)])) for half in halves]
                slopes = vectors.pointer(G_type, G, builder.add(builder.mul(loop.index, width), c))
                for k, column in enumerate(sums):
                    slope = vectors.spread(builder.load(builder.gep(slopes, [place(k)])))
                    for total, part in zip(column, x, strict=True):
                        builder.store(vectors.add_product(builder.load(total), slope, part), total)
            d = vectors.row_length(V_type, V)
            for k, column in enumerate(sums):
                at = builder.add(builder.mul(builder.add(c, place(k)), d), j)
                into = vectors.pointer(V_type, V, at)
                for half, total in zip(halves, column, strict=True):
                    target = builder.gep(into, [place(half)])
                    vectors.store(builder.fadd(vectors.load(target), builder.load(total)), target)
            return context.get_dummy_value()

        return types.void(V, X, starts, types.intp, types.intp, G, types.intp), codegen

    return add_tile


prefetch: Any = intrinsic(_prefetch)
add_scaled: Any = intrinsic(_add_scaled)
add_tile_of_five: Any = intrinsic(_add_tile(5))
add_tile_of_one: Any = intrinsic(_add_tile(1))
float_of_bits: Any = intrinsic(_float_of_bits)

LOG2_E = np.float32(1 / math.log(2))
LN2_HIGH = np.float32(0.693359375)  # ln 2 in ten bits: a multiple of it by a small integer is exact
LN2_LOW = np.float32(math.log(2) - 0.693359375)
HALF, ONE, LOWEST = np.float32(0.5), np.float32(1), np.float32(-87)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / math.factorial(k)) for k in range(2, 8))


@scalar  # reordering would undo the two-part ln 2
def _exp32(x: Any) -> Any:  # pragma: no cover
    """The exponential of x <= 0 in float32, to 1e-7: 2^k times the series of the rest, which the vector unit can do."""
    x = LOWEST if x < LOWEST else x  # NaN stays
    k = np.int32(x * LOG2_E - HALF)  # towards zero: the nearest integer, for x is not positive
    r = x - np.float32(k) * LN2_HIGH - np.float32(k) * LN2_LOW
    series = ONE + r * (ONE + r * (C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * C7))))))
    return series * float_of_bits(np.int32((k + np.int32(127)) << np.int32(23)))


def exp(x: float) -> float:
    """The exponential of x <= 0, inside kernels: fast for float32, the C library's for float64."""
    return math.exp(x)


@overload(exp, strict=False)
def _exp(x: Any) -> Any:  # pragma: no cover
    if x == types.float32:
        return lambda x: _exp32(x)
    return lambda x: math.exp(x)
