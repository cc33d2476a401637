"""A backward graph as inductor compiled it, run for the whole batch or for some rows of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ordered_sgd.agreement import largest_difference, rounding
from ordered_sgd.errors import first_line
from ordered_sgd.selective.explain import BackwardReport
from ordered_sgd.selective.rows_plan import RowsPlan
from ordered_sgd.selective.split import batch_size, sizes_of

_COMPARED = 8  # numbers of rows for which compiled code is compared with the graph when it is first run for them
_KNOWN = 512  # layouts that are remembered: one for each number of rows and each value of other sizes

Sizes = dict[Any, int]


@dataclass(frozen=True)
class Assumed:
    """What compiled code takes for granted of the batch size.

    Parameters
    ----------
    symbol
        That of the batch size.
    low, high
        Its smallest and its largest value.
    facts
        Conditions on it.
    """

    symbol: sympy.Symbol
    low: Any
    high: Any
    facts: tuple[Any, ...]

    @classmethod
    def of(cls, env: Any, plan: RowsPlan) -> "Assumed | None":
        """All that was learnt of the batch size while the model was traced and its graphs were compiled.

        What the trace learnt counts as well: the compiler simplifies by it and does not say so.
        """
        symbol = plan.symbol
        if symbol is None:
            return None
        facts = [guard.expr for guard in env.guards]
        if symbol in env.replacements:  # it turned out to be a number, or to depend on another size
            facts.append(sympy.Eq(symbol, env.replacements[symbol], evaluate=False))
        spans = env.var_to_range.get(symbol)
        low, high = (spans.lower, spans.upper) if spans is not None else (2, sympy.oo)
        return cls(symbol, low, high, tuple(fact for fact in facts if symbol in fact.free_symbols))

    def violated(self, sizes: Sizes) -> str | None:
        """What does not hold for these sizes, or is not certain; None if all holds."""
        size = sizes[self.symbol]
        if not self.low <= size <= self.high:
            return f"{self.low} <= s <= {self.high}"
        values = {symbol: sympy.Integer(value) for symbol, value in sizes.items()}
        for fact in self.facts:
            if fact.xreplace(values) != True:  # noqa: E712  # sympy's True, and nothing that stays open
                return str(fact.xreplace({self.symbol: sympy.Symbol("s")}))
        return None


class LoweredBackward:
    """A function with the arguments and results of a backward graph.

    Parameters
    ----------
    graph
        Run node by node it is right for any number of rows, and runs wherever compiled code does not.
    code
        The graph compiled, which takes a list that it clears.
    strides
        Of the tensors that the code expects, as expressions; None for other arguments.
    plan
        Where the batch is in them.
    assumed
        What must hold of the number of rows; None if only whole batches are run.
    report
        Told why code was not run.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        code: Callable[[list[Any]], Any],
        strides: Sequence[tuple[Any, ...] | None],
        plan: RowsPlan,
        assumed: Assumed | None,
        report: BackwardReport,
    ) -> None:
        self._graph, self._code, self._strides = graph, code, strides
        self._plan, self._assumed, self._report = plan, assumed, report
        self._layouts: dict[tuple[int, ...], list[Any] | str] = {}
        self._compared: set[int] = set()
        self._broken: str | None = None

    def __call__(self, *arguments: Any) -> Any:
        """The results of the graph."""
        if self._broken is not None:
            return self._by_graph(arguments, self._broken)
        sizes = self._sizes(arguments)
        layout = self._layout(sizes)
        if isinstance(layout, str):
            return self._by_graph(arguments, layout)
        try:
            results = self._code([_laid_out(a, strides) for a, strides in zip(arguments, layout, strict=True)])
        except Exception as error:  # an assertion on strides, say
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._broken = f"its compiled backward failed ({first_line(error)})"
            return self._by_graph(arguments, self._broken)
        rows = sizes[self._assumed.symbol] if self._assumed is not None else 0
        if rows in self._compared or len(self._compared) >= _COMPARED:
            return results
        return self._checked(arguments, results, rows)

    def _checked(self, arguments: Any, results: Any, rows: int) -> Any:
        """The results; those of the graph if they differ."""
        expected = self._graph(*arguments)
        difference = largest_difference(results, expected)
        if difference is not None:  # else not finite: compared next time
            self._compared.add(rows)
            if difference > rounding(self._plan.dtype):
                self._broken = f"its compiled backward gives another gradient (they differ by {difference:.0e})"
                self._report.say_unlowered(self._broken)
                return expected
        return results

    def _by_graph(self, arguments: Any, reason: str) -> Any:
        self._report.say_unlowered(reason)
        return self._graph(*arguments)

    def _sizes(self, arguments: Any) -> Sizes:
        """The values of symbols, that of the batch among them."""
        if self._assumed is None:
            return {}
        return sizes_of(arguments, self._plan) | {self._assumed.symbol: batch_size(arguments, self._plan)}

    def _layout(self, sizes: Sizes) -> list[Any] | str:
        """The strides that the code expects for these sizes, or why it cannot run for them."""
        key = tuple(sizes.values())
        if key not in self._layouts:
            if len(self._layouts) >= _KNOWN:
                self._layouts.clear()
            self._layouts[key] = self._new_layout(sizes)
        return self._layouts[key]

    def _new_layout(self, sizes: Sizes) -> list[Any] | str:
        if self._assumed is not None:
            violated = self._assumed.violated(sizes)
            if violated is not None:
                return f"compiled code takes {violated} for granted, and {sizes[self._assumed.symbol]} rows break that"
        values = {symbol: sympy.Integer(value) for symbol, value in sizes.items()}
        layout = [None if s is None else tuple(one.xreplace(values) for one in s) for s in self._strides]
        known = [strides is None or all(one.is_Integer for one in strides) for strides in layout]
        if self._assumed is not None and not all(known):
            return "the strides that compiled code expects are not known"
        return [
            tuple(map(int, one)) if one is not None and sure else None for one, sure in zip(layout, known, strict=True)
        ]


def _laid_out(argument: Any, strides: tuple[int, ...] | None) -> Any:
    """The argument with these strides, copied only if it has others."""
    if strides is None:
        return argument
    tensor: Tensor = argument
    if all(size < 2 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
