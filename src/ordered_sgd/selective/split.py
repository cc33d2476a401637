"""A backward graph that runs for the rows of the batch that have a gradient, and for no others.

Which rows those are is read off the gradients that come in: a row whose incoming gradient is exactly zero contributes
exactly zero. So the loss, the trainer and the step need not say what they kept.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ordered_sgd.errors import ArgumentError, first_line, message
from ordered_sgd.selection import select_rows
from ordered_sgd.selective.explain import BackwardFailedError, BackwardReport
from ordered_sgd.selective.places import BatchDim
from ordered_sgd.selective.rows_plan import RowsPlan

_LOOK_FIRST = 64  # elements of a row: nearly always enough to see that it has a gradient

# what operators raise on shapes, dtypes or positions that they do not take
FAILURES = (RuntimeError, LookupError, TypeError, ValueError)

Check = Callable[["SplitBackward", Any, Tensor], str | None]


class SplitBackward:
    """A backward graph with its plan; called with its arguments, it returns the gradients as the whole graph does.

    Parameters
    ----------
    graph, plan
        The backward graph of AOTAutograd, and where the batch is in its arguments and results.
    report
        Told what ran.
    check
        Compares the gradient of some rows with that of the whole graph, before the first step that skips rows and every
        `verify_every` times after it (0: never again); returns why they differ, or None.
    lowered
        What runs in place of the graph, except in comparisons; None: the graph, node by node.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        plan: RowsPlan,
        report: BackwardReport,
        check: Check,
        verify_every: int = 0,
        lowered: Callable[..., Any] | None = None,
    ) -> None:
        self.graph, self.plan, self.report = graph, plan, report
        self._check, self._verify_every, self._lowered = check, verify_every, lowered
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        """The results of the whole graph, computed for the rows that have a gradient."""
        if any(arguments[i].requires_grad for i in self.plan.tangents):
            remedy = "Call restore_backward(model) to take second derivatives."
            rule = "be False for a backward that skips samples"
            raise ArgumentError(message("selective_backward", "create_graph", rule, True, remedy))
        plan, reason = self.plan, self.plan.reason
        if reason is not None:
            self.report.whole(reason)
            return self._whole(arguments)
        s = self.batch_size(arguments)
        rows = rows_with_gradient(arguments, plan, s)
        if rows is None or rows.shape[0] == s:
            self.report.whole("an output without the batch dimension has a gradient" if rows is None else None, s)
            return self._whole(arguments)
        if rows.shape[0] == 0:  # as on a rank that keeps none: a row, whose gradient is zero
            rows = torch.zeros(1, dtype=torch.int64, device=rows.device)
        if self._calls == 0 or (self._verify_every and self._calls % self._verify_every == 0):
            plan.reason = self._check(self, arguments, rows)
        self._calls += 1
        if plan.reason is None:
            try:
                results = self.of_rows(arguments, rows, self._lowered)
            except FAILURES as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                plan.reason = f"the backward cannot run on some rows ({first_line(error)})"
            else:
                self.report.some(rows.shape[0], s)
                return results
        self.report.whole(plan.reason)
        return self._whole(arguments)

    def _whole(self, arguments: Any) -> Any:
        """The results of the whole graph; if it fails, the model is plain from its next call on."""
        try:
            return (self._lowered or self.graph)(*arguments)
        except FAILURES as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.report.plain = f"its compiled backward failed ({first_line(error)})"
            raise BackwardFailedError(
                f"{self.report.name}: the compiled backward failed ({first_line(error)}). The model runs as without it "
                "from its next call on; restore_backward(model) does so at once."
            ) from error

    def batch_size(self, arguments: Any) -> int:
        """Samples in the batch, as the arguments have it."""
        return batch_size(arguments, self.plan)

    def of_rows(self, arguments: Any, rows: Tensor, run: Callable[..., Any] | None = None) -> list[Any]:
        """The results of the graph with the given rows alone; those that carry the batch have zeros elsewhere.

        `run` is called in place of the graph, as to look inside.
        """
        plan, s = self.plan, self.batch_size(arguments)
        q, values = rows.shape[0], sizes_of(arguments, plan)
        if q == 1:  # graphs are specialised for sizes of at least 2: the row twice, the second with zero gradient
            rows = rows.expand(2)
        gathered: list[Any] = []
        for i, (argument, how) in enumerate(zip(arguments, plan.arguments, strict=True)):
            if how is None:
                gathered.append(argument)
            elif how == "positions":
                gathered.append(torch.arange(rows.shape[0], dtype=argument.dtype, device=argument.device))
            elif isinstance(how, str):
                gathered.append(argument // s * rows.shape[0])
            elif plan.same_as[i] < i:
                gathered.append(gathered[plan.same_as[i]])
            else:
                part = gather(argument, how, rows, s, values)
                if q == 1 and i in plan.tangents:
                    part = _only_first(part, how, values)
                gathered.append(part)
        results = (run or self.graph)(*gathered)
        return [
            scatter(result, how, rows[:q], s, values) if how is not None and result is not None else result
            for result, how in zip(results, plan.results, strict=True)
        ]


def rows_with_gradient(arguments: Any, plan: RowsPlan, s: int) -> Tensor | None:
    """Rows of the batch whose incoming gradient is not zero, ascending; None if one that has no rows is not zero."""
    values, found = sizes_of(arguments, plan), None
    for i in plan.tangents:
        place, tangent = plan.arguments[i], arguments[i]
        if i in plan.aside:
            continue
        if not isinstance(place, BatchDim):
            if bool((tangent != 0).any()):
                return None
            continue
        a, b = factors(place, values)
        split = tangent if a == b == 1 else tangent.unflatten(place.dim, (a, s, b))
        hit = _not_zero(split.movedim(place.dim + (a != 1 or b != 1), 0))
        found = hit if found is None else found | hit
    assert found is not None  # a plan has a batch
    return found.nonzero().squeeze(1)


def _not_zero(rows: Tensor) -> Tensor:
    """Which rows, along dimension 0, hold something else than zeros. NaN is something else."""
    if rows.dim() == 1:
        return rows != 0
    flat = rows.flatten(1)
    if flat.shape[1] <= 4 * _LOOK_FIRST or not flat.is_cpu:
        return (flat != 0).any(1)
    found = (flat[:, :_LOOK_FIRST] != 0).any(1)  # what is kept is seen at once: only the others are read whole
    others = (~found).nonzero().squeeze(1)
    found[others] = (flat.index_select(0, others) != 0).any(1)
    return found


def gather(tensor: Tensor, place: BatchDim, rows: Tensor, s: int, values: dict[Any, int]) -> Tensor:
    """The given rows of a tensor, in the memory layout that it has."""
    repeated = [d for d, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[d] > 1 and d != place.dim]
    if repeated:  # as a key shared by several heads: kernels may refuse the strides of a copy
        once = tensor[tuple(slice(1) if d in repeated else slice(None) for d in range(tensor.dim()))]
        part = gather(once, place, rows, s, values)
        return part.expand([tensor.shape[d] if d in repeated else size for d, size in enumerate(part.shape)])
    a, b = factors(place, values)
    if a == b == 1:
        if not place.read:
            return tensor.narrow(place.dim, 0, rows.shape[0])
        return select_rows(tensor, place.dim, rows)
    split = tensor.unflatten(place.dim, (a, s, b))
    return select_rows(split, place.dim + 1, rows).flatten(place.dim, place.dim + 2)


def scatter(part: Tensor, place: BatchDim, rows: Tensor, s: int, values: dict[Any, int]) -> Tensor:
    """The gradient of the whole batch: that of the rows, and zero elsewhere."""
    a, b = factors(place, values)
    split = part.unflatten(place.dim, (a, -1, b)).narrow(place.dim + 1, 0, rows.shape[0])
    shape = list(split.shape)
    shape[place.dim + 1] = s
    whole = part.new_zeros(shape)
    return whole.index_copy_(place.dim + 1, rows, split).flatten(place.dim, place.dim + 2)


def _only_first(part: Tensor, place: BatchDim, values: dict[Any, int]) -> Tensor:
    a, b = factors(place, values)
    part = part.unflatten(place.dim, (a, 2, b)).clone()
    part.select(place.dim + 1, 1).zero_()
    return part.flatten(place.dim, place.dim + 2)


def batch_size(arguments: Any, plan: RowsPlan) -> int:
    """Samples in the batch, as the arguments of a backward graph have it."""
    argument, dim, factor = plan.batch
    size: int = arguments[argument].shape[dim]
    return size // _number(factor, sizes_of(arguments, plan))


def sizes_of(arguments: Any, plan: RowsPlan) -> dict[Any, int]:
    """The values of the symbols other than the batch."""
    return {
        symbol: int(arguments[i] if dim is None else arguments[i].shape[dim])
        for symbol, (i, dim) in plan.symbols.items()
    }


def factors(place: BatchDim, values: dict[Any, int]) -> tuple[int, int]:
    """What stands before and after the batch in its dimension, as numbers."""
    return _number(place.a, values), _number(place.b, values)


def _number(factor: Any, values: dict[Any, int]) -> int:
    return factor if isinstance(factor, int) else int(factor.subs(values))
