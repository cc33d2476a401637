"""The compiled loops behind `kernels.train_epoch`.

Dense rows are read once, two at a time against five columns of scores, while later rows are prefetched from memory;
the update reads only the kept rows again, five columns of sixteen features at a time.

Sparse rows only touch the weights of their own columns. For a weight without a gradient, momentum and L2 apply the same
linear map in every step: ``(w, v) <- A (w, v)``. Along A's eigenvectors this map is two factors common to all weights.
The loop therefore stores the coordinates along the eigenvectors without these factors, and only a gradient changes
them. With an L1 penalty, or if L2 is so strong that A has no two real eigenvalues, every step visits all weights.

Scores are stored by column, shape (K, s), and replaced in place by slopes, the derivatives of the losses.

The file is long because numba's cache on disk notices a change in the file of the function called from Python, but not
in the files of the functions that it calls. Coverage cannot see into compiled code.
"""

import math
from typing import Any

import numpy as np

from ordered_sgd.linear.intrinsics import (
    LANES,
    TILE,
    add_scaled,
    add_tile_of_five,
    add_tile_of_one,
    compiled,
    exp,
    prefetch,
    scalar,
)
from ordered_sgd.linear.objective import LOSSES, Array

LINE = 64  # bytes in a cache line
AHEAD, FAR = 8, 4096  # rows, and minimum bytes, between the row scored and the row prefetched
SMALLEST = 1e-20  # factor below which it is multiplied into its coordinate
LOG_LOSS, HINGE, SQUARED_ERROR, HUBER, ABSOLUTE_ERROR = range(len(LOSSES))

# Epochs return the number of correct answers or, if a loss is not finite, minus the number of losses computed.
# `samples`, `intercept`, `report`, `numbers` and `modes` are the named tuples of `kernels`.


@compiled
def dense_epoch(
    X: Array, samples: Any, memory: Array, intercept: Any, report: Any, numbers: Any, loss: int
) -> int:  # pragma: no cover
    """An epoch on dense rows."""
    W, V = memory[0], memory[1]
    n, s = samples.order.size, samples.s
    S, totals, chosen = np.empty((W.shape[0], s), W.dtype), np.empty(s, W.dtype), np.empty(s, np.int64)
    starts, G = np.empty(s, np.int64), np.empty((s, W.shape[0]), W.dtype)
    correct = 0
    for start in range(0, n, s):
        batch = samples.order[start : start + s]
        losses = report.losses[start : start + s]
        _score_dense(X, samples.order, start, batch.size, W, intercept.b, numbers.scale, S)
        y, weight = samples.y[start : start + s], samples.weight[start : start + s]
        correct += _losses(loss, S, y, weight, numbers.epsilon, losses, totals)
        if not _all_finite(losses):
            return -start - int(batch.size)
        q = samples.q if batch.size == s else samples.q_last
        largest(report.ranks[start : start + s], q, chosen, report.kept[start : start + s])
        _decay(W, V, numbers.momentum, numbers.l2)
        _add_dense(X, batch, chosen, q, S, numbers.scale / W.dtype.type(q), starts, G, V)
        _move(W, V, numbers.lr, numbers.l1)
        _move_intercept(intercept, S, chosen, q, numbers)
    return correct


@compiled
def sparse_epoch(
    rows: Any, samples: Any, memory: Array, intercept: Any, report: Any, numbers: Any, loss: int, modes: Any
) -> int:  # pragma: no cover
    """An epoch on sparse rows: data, indices and the ends of the rows."""
    W, V = memory[:, 0], memory[:, 1]
    n, s, columns = samples.order.size, samples.s, intercept.b.size
    S, totals, chosen = np.empty((columns, s), memory.dtype), np.empty(s, memory.dtype), np.empty(s, np.int64)
    sums = np.zeros(memory.shape[2], memory.dtype)
    lazy = modes.first > 0
    factor_1, factor_2 = 1.0, 1.0  # of the two coordinates of each weight, which are w and v unless lazy
    if lazy:
        det = 1 - modes.v_of_w * modes.w_of_v
        _transform(memory, 1 / det, -modes.w_of_v / det, -modes.v_of_w / det, 1 / det)
    correct = 0
    for start in range(0, n, s):
        batch = samples.order[start : start + s]
        losses = report.losses[start : start + s]
        of_1, of_2 = numbers.scale * factor_1, numbers.scale * factor_2 * modes.w_of_v
        _score_sparse(rows, samples.order, start, batch.size, memory, of_1, of_2, intercept.b, S, sums)
        y, weight = samples.y[start : start + s], samples.weight[start : start + s]
        correct += _losses(loss, S, y, weight, numbers.epsilon, losses, totals)
        if not _all_finite(losses):
            correct = -start - batch.size
            break
        q = samples.q if batch.size == s else samples.q_last
        largest(report.ranks[start : start + s], q, chosen, report.kept[start : start + s])
        share = numbers.scale / q
        if lazy:
            factor_1, factor_2 = factor_1 * modes.first, factor_2 * modes.second
            to_1, to_2 = share * modes.step_first / factor_1, share * modes.step_second / factor_2
            _add_sparse(rows, batch, chosen, q, S, to_1, to_2, memory, sums)
            if factor_2 < SMALLEST:
                _transform(memory, factor_1, 0.0, 0.0, factor_2)
                factor_1, factor_2 = 1.0, 1.0
        else:
            _decay(W, V, numbers.momentum, numbers.l2)
            _add_sparse(rows, batch, chosen, q, S, 0.0, share, memory, sums)
            _move(W, V, numbers.lr, numbers.l1)
        _move_intercept(intercept, S, chosen, q, numbers)
    if lazy:
        _transform(memory, factor_1, modes.w_of_v * factor_2, modes.v_of_w * factor_1, factor_2)
    return correct


# Scores.


# The work per row takes a few nanoseconds and is written out, because a call or a slice would count references.
# Positions are unsigned, which rules out counting from the end.
@compiled
def _score_dense(
    X: Array, order: Array, start: int, size: int, W: Array, b: Array, scale: float, S: Array
) -> None:  # pragma: no cover
    number, columns, d, stride = W.dtype.type, W.shape[0], np.uint64(X.shape[1]), X.strides[0]
    ahead = max(AHEAD, FAR // stride)
    for i in range(0, size, 2):
        k = min(i + 1, size - 1)  # an odd last row counts twice: one loop for all rows gives equal rows equal losses
        for at in range(start + i + ahead, min(start + i + ahead + 2, order.size)):
            for offset in range(order[at] * stride, (order[at] + 1) * stride, LINE):
                prefetch(X, offset)
        row, next_row = np.uint64(order[start + i]), np.uint64(order[start + k])
        fives = columns // 5 * 5
        for c in range(0, fives, 5):
            c0, c1, c2, c3, c4 = np.uint64(c), np.uint64(c + 1), np.uint64(c + 2), np.uint64(c + 3), np.uint64(c + 4)
            x0 = x1 = x2 = x3 = x4 = z0 = z1 = z2 = z3 = z4 = number(0)
            for j in range(d):
                x, z = number(X[row, j]), number(X[next_row, j])
                x0 += x * W[c0, j]
                x1 += x * W[c1, j]
                x2 += x * W[c2, j]
                x3 += x * W[c3, j]
                x4 += x * W[c4, j]
                z0 += z * W[c0, j]
                z1 += z * W[c1, j]
                z2 += z * W[c2, j]
                z3 += z * W[c3, j]
                z4 += z * W[c4, j]
            S[c, i], S[c + 1, i], S[c + 2, i], S[c + 3, i], S[c + 4, i] = x0, x1, x2, x3, x4
            S[c, k], S[c + 1, k], S[c + 2, k], S[c + 3, k], S[c + 4, k] = z0, z1, z2, z3, z4
        for c in range(fives, columns):
            c0, x0, z0 = np.uint64(c), number(0), number(0)
            for j in range(d):
                x0 += number(X[row, j]) * W[c0, j]
                z0 += number(X[next_row, j]) * W[c0, j]
            S[c, i], S[c, k] = x0, z0
    for c in range(columns):
        for i in range(size):
            S[c, i] = S[c, i] * scale + b[c]


@scalar
def _score_sparse(
    rows: Any,
    order: Array,
    start: int,
    size: int,
    memory: Array,
    of_1: float,
    of_2: float,
    b: Array,
    S: Array,
    sums: Array,
) -> None:  # pragma: no cover
    data, indices, ends = rows
    number, wide, last = memory.dtype.type, memory.shape[2], indices.size - 1
    for i in range(size):
        if start + i + AHEAD < order.size:  # written out: a call would count references, a third of a row's cost
            later = order[start + i + AHEAD]
            for p in range(ends[later], ends[later + 1], LINE // indices.itemsize):
                prefetch(data, p * data.itemsize)
                prefetch(indices, p * indices.itemsize)
        row = order[start + i]
        if wide == 1:
            first, second = number(0), number(0)
            for p in range(np.uint64(ends[row]), np.uint64(ends[row + 1])):
                j, x = np.uint64(indices[p]), number(data[p])
                first += x * memory[j, 0, 0]
                second += x * memory[j, 1, 0]
            sums[0] = number(of_1) * first + number(of_2) * second
        else:
            sums[:] = 0
            for p in range(ends[row], ends[row + 1]):
                soon = indices[min(p + 2 * AHEAD, last)] * memory.strides[0]
                for offset in range(0, memory.strides[0], LINE):
                    prefetch(memory, soon + offset)
                at, x = indices[p] * 2 * wide, number(data[p])
                for c in range(0, wide, LANES):
                    add_scaled(sums, c, x * number(of_1), memory, at + c)
                    add_scaled(sums, c, x * number(of_2), memory, at + wide + c)
        for c in range(b.size):
            S[c, i] = sums[c] + b[c]


# Losses.


@compiled
def _losses(
    loss: int, S: Array, y: Array, weight: Array, epsilon: float, losses: Array, totals: Array
) -> int:  # pragma: no cover
    """How many answers are right; takes the losses, weighted, and turns the scores into slopes, weighted too."""
    if loss == LOG_LOSS:
        correct = _two_logs(S, y, losses, totals) if S.shape[0] == 1 else _softmax(S, y, losses, totals)
    elif loss == HINGE:
        correct = _two_hinges(S, y, losses) if S.shape[0] == 1 else _hinges(S, y, losses)
    else:
        correct = 0
        for i in range(y.size):
            r = S[0, i] - y[i]
            if loss == SQUARED_ERROR:
                losses[i], S[0, i] = r * r * S.dtype.type(0.5), r
            elif loss == HUBER:
                inner = min(max(r, -epsilon), epsilon)
                losses[i], S[0, i] = inner * (r - inner * S.dtype.type(0.5)), inner
            else:
                losses[i], S[0, i] = abs(r), np.sign(r)
    for i in range(y.size):
        losses[i] *= weight[i]
    for c in range(S.shape[0]):
        for i in range(y.size):
            S[c, i] *= weight[i]
    return correct


# The class of a sample, 0 or 1, is a sign here and not a branch, which the processor could only guess.


@compiled
def _two_logs(S: Array, y: Array, losses: Array, totals: Array) -> int:  # pragma: no cover
    correct, zero, one = 0, S.dtype.type(0), S.dtype.type(1)
    for i in range(y.size):
        correct += (S[0, i] > 0) == (y[i] > 0)
        sign = y[i] + y[i] - one
        a = sign * S[0, i]
        small = exp(-abs(a))
        losses[i], totals[i] = small, -a if a < 0 else zero
        S[0, i] = -sign * (small if a > 0 else one) / (one + small)
    for i in range(y.size):
        losses[i] = totals[i] + math.log1p(losses[i])
    return correct


@compiled
def _softmax(S: Array, y: Array, losses: Array, totals: Array) -> int:  # pragma: no cover
    columns, size, correct = S.shape[0], y.size, 0
    for i in range(size):
        best = 0
        for c in range(1, columns):
            if S[c, i] > S[best, i]:
                best = c
        right = int(y[i])
        correct += best == right
        totals[i] = S[best, i]  # the largest score, taken off before the exponential
        losses[i] = S[best, i] - S[right, i]
    for c in range(columns):
        for i in range(size):
            S[c, i] = exp(S[c, i] - totals[i])
    totals[:size] = 0
    for c in range(columns):
        for i in range(size):
            totals[i] += S[c, i]
    for i in range(size):
        losses[i] += math.log(totals[i])
        totals[i] = S.dtype.type(1) / totals[i]
    for c in range(columns):
        for i in range(size):
            S[c, i] *= totals[i]
    for i in range(size):
        S[int(y[i]), i] -= S.dtype.type(1)
    return correct


@compiled
def _two_hinges(S: Array, y: Array, losses: Array) -> int:  # pragma: no cover
    correct, zero, one = 0, S.dtype.type(0), S.dtype.type(1)
    for i in range(y.size):
        correct += (S[0, i] > 0) == (y[i] > 0)
        sign = y[i] + y[i] - one
        short = one - sign * S[0, i]
        losses[i] = zero if short < 0 else short  # NaN stays
        S[0, i] = zero if short < 0 else -sign
    return correct


@compiled
def _hinges(S: Array, y: Array, losses: Array) -> int:  # pragma: no cover
    correct, zero, one = 0, S.dtype.type(0), S.dtype.type(1)
    for i in range(y.size):
        right, best = int(y[i]), 0
        score, total, active = S[right, i], zero, zero
        top = S[0, i]
        for c in range(S.shape[0]):
            if S[c, i] > top:
                best, top = c, S[c, i]
            short = one + S[c, i] - score
            if c != right and not short < 0:  # NaN stays
                total += short
                active += one
                S[c, i] = one
            else:
                S[c, i] = zero
        correct += best == right
        losses[i], S[right, i] = total, -active
    return correct


@compiled
def _all_finite(losses: Array) -> bool:  # pragma: no cover
    finite = True
    for i in range(losses.size):
        finite &= np.isfinite(losses[i])
    return finite


@compiled
def largest(ranks: Array, q: int, chosen: Array, kept: Array) -> None:  # pragma: no cover
    """Positions of the q largest, ascending, a tie to the lower; bit by bit, the largest bound that q of them reach."""
    bound, reached = ranks.dtype.type(0), ranks.size
    for bit in range(8 * ranks.itemsize - 2, -1, -1):
        if reached == q:
            break
        higher = ranks.dtype.type(bound | (1 << bit))
        count = 0
        for i in range(ranks.size):
            count += ranks[i] >= higher
        if count >= q:
            bound, reached = higher, count
    above = 0
    for i in range(ranks.size):
        above += ranks[i] > bound
    ties = q - above  # samples kept at the bound
    at = 0
    for i in range(ranks.size):
        if ranks[i] > bound or (ranks[i] == bound and ties > 0):
            ties -= ranks[i] == bound
            chosen[at] = i
            kept[i] = True
            at += 1


# Updates.


@compiled
def _decay(W: Array, V: Array, momentum: float, l2: float) -> None:  # pragma: no cover
    for c in range(W.shape[0]):
        w, v = W[c], V[c]
        for j in range(w.size):
            v[j] = momentum * v[j] + l2 * w[j]


@compiled
def _move(W: Array, V: Array, lr: float, l1: float) -> None:  # pragma: no cover
    for c in range(W.shape[0]):
        w, v = W[c], V[c]
        if l1 == 0:
            for j in range(w.size):
                w[j] -= lr * v[j]
        else:
            bound = lr * l1
            for j in range(w.size):
                moved = w[j] - lr * v[j]
                inner = min(max(moved, -bound), bound)
                w[j] = moved - inner
                v[j] += inner / lr  # momentum of the step actually taken, as in ProximalSGD


@compiled
def _move_intercept(intercept: Any, S: Array, chosen: Array, q: int, numbers: Any) -> None:  # pragma: no cover
    if intercept.moves:
        for c in range(S.shape[0]):
            slope = S.dtype.type(0)
            for i in range(q):
                slope += S[c, chosen[i]]
            slope = slope / S.dtype.type(q) + numbers.l2_intercept * intercept.b[c]
            intercept.velocity[c] = numbers.momentum * intercept.velocity[c] + slope
            intercept.b[c] -= numbers.lr * intercept.velocity[c]


@compiled
def _add_dense(
    X: Array, batch: Array, chosen: Array, q: int, S: Array, factor: float, starts: Array, G: Array, V: Array
) -> None:  # pragma: no cover
    (columns, d), rows = V.shape, 0
    for i in range(q):
        some = False
        for c in range(columns):
            G[rows, c] = S[c, chosen[i]] * factor
            some = some or G[rows, c] != 0
        starts[rows] = batch[chosen[i]] * d
        rows += some  # a row without slopes, beyond its margin, is overwritten by the next
    fives, tiles = columns // 5 * 5, d // TILE * TILE
    for j in range(0, tiles, TILE):
        for c in range(0, fives, 5):
            add_tile_of_five(V, X, starts, rows, j, G, c)
        for c in range(fives, columns):
            add_tile_of_one(V, X, starts, rows, j, G, c)
    for i in range(rows):
        row = starts[i] // d
        for c in range(columns):
            slope = G[i, c]
            for j in range(tiles, d):
                V[c, j] += slope * V.dtype.type(X[row, j])


@scalar
def _add_sparse(
    rows: Any, batch: Array, chosen: Array, q: int, S: Array, to_1: float, to_2: float, memory: Array, slopes: Array
) -> None:  # pragma: no cover
    data, indices, ends = rows
    number, wide = memory.dtype.type, memory.shape[2]
    for i in range(q):
        row, some = batch[chosen[i]], False
        for c in range(S.shape[0]):
            slopes[c] = S[c, chosen[i]]
            some = some or slopes[c] != 0
        if not some:
            continue
        if wide == 1:
            first, second = number(to_1) * slopes[0], number(to_2) * slopes[0]
            for p in range(np.uint64(ends[row]), np.uint64(ends[row + 1])):
                j, x = np.uint64(indices[p]), number(data[p])
                memory[j, 0, 0] += first * x
                memory[j, 1, 0] += second * x
        else:
            for p in range(ends[row], ends[row + 1]):
                at, x = indices[p] * 2 * wide, number(data[p])
                for c in range(0, wide, LANES):
                    add_scaled(memory, at + c, x * number(to_1), slopes, c)
                    add_scaled(memory, at + wide + c, x * number(to_2), slopes, c)


@compiled
def _transform(memory: Array, ww: float, wv: float, vw: float, vv: float) -> None:  # pragma: no cover
    """(w, v) <- (ww w + wv v, vw w + vv v), for all weights."""
    number = memory.dtype.type
    for j in range(memory.shape[0]):
        for c in range(memory.shape[2]):
            w, v = memory[j, 0, c], memory[j, 1, c]
            memory[j, 0, c] = number(ww) * w + number(wv) * v
            memory[j, 1, c] = number(vw) * w + number(vv) * v
