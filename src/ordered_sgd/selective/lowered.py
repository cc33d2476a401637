"""A backward graph as inductor compiled it, run for the whole batch or for some rows of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ordered_sgd.agreement import largest_difference, rounding
from ordered_sgd.errors import first_line
from ordered_sgd.selective.explain import BackwardReport
from ordered_sgd.selective.rows_plan import RowsPlan
from ordered_sgd.selective.split import FAILURES, batch_size, sizes_of

_COMPARED = 8  # numbers of rows for which compiled code is compared with the graph when it is first run for them
_KNOWN = 512  # layouts that are remembered: one for each number of rows and each value of other sizes

_MOST = 3  # times that a backward is compiled again, for numbers of rows that the code so far does not suit

Sizes = dict[Any, int]


@dataclass(frozen=True)
class Assumed:
    """What compiled code assumes about sizes.

    Parameters
    ----------
    batch
        The symbol of the batch size.
    ranges
        The smallest and the largest value of a symbol.
    facts
        Conditions on the symbols.
    """

    batch: sympy.Symbol
    ranges: Mapping[Any, tuple[Any, Any]]
    facts: tuple[Any, ...]

    @classmethod
    def of(cls, env: Any, batch: sympy.Symbol, names: Mapping[Any, Any]) -> "Assumed":
        """All that was learnt about sizes while a model was traced and its graphs were compiled.

        What the trace learnt counts as well: the compiler simplifies by it and does not say so. `names` maps symbols to
        what they are called in the shape environment.
        """
        back = {there: here for here, there in names.items() if there.is_Symbol}
        facts = [guard.expr for guard in env.guards]
        # a size may turn out to be a number, or to depend on another one
        facts += [
            sympy.Eq(there, env.replacements[there], evaluate=False) for there in back if there in env.replacements
        ]
        facts = [fact.xreplace(back) for fact in facts if not fact.free_symbols.isdisjoint(back)]
        facts += [sympy.Eq(here, there, evaluate=False) for here, there in names.items() if there.is_Integer]
        spans = {here: env.var_to_range[there] for here, there in names.items() if there in env.var_to_range}
        return cls(batch, {here: (span.lower, span.upper) for here, span in spans.items()}, tuple(facts))

    def violated(self, sizes: Sizes) -> str | None:
        """What does not hold for these sizes, or is not certain; None if all holds."""
        for symbol, (low, high) in self.ranges.items():
            if not low <= sizes[symbol] <= high:
                return f"{low} <= {'s' if symbol == self.batch else symbol} <= {high}"
        values = {symbol: sympy.Integer(value) for symbol, value in sizes.items()}
        for fact in self.facts:
            if fact.xreplace(values) != True:  # noqa: E712  # sympy's True, and nothing that stays open
                return str(fact.xreplace({self.batch: sympy.Symbol("s")}))
        return None


@dataclass(frozen=True)
class Code:
    """A backward graph compiled.

    Parameters
    ----------
    run
        Takes a list of arguments, and clears it.
    assumed
        What must hold of sizes; None if only whole batches are run.
    """

    run: Callable[[list[Any]], Any]
    assumed: Assumed | None


class LoweredBackward:
    """A function with the arguments and results of a backward graph.

    Parameters
    ----------
    graph
        Run node by node it is right for any number of rows, and runs wherever compiled code does not.
    code
        The graph as it was compiled for whole batches.
    strides
        Of the tensors that the code expects, as expressions; None for other arguments.
    plan
        Where the batch is in them.
    report
        Told why code was not run.
    lower
        Compiles the graph for other sizes; returns None where that fails.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        code: Code,
        strides: Sequence[tuple[Any, ...] | None],
        plan: RowsPlan,
        report: BackwardReport,
        lower: Callable[[Sizes], Code | None],
    ) -> None:
        self._graph, self._codes, self._strides = graph, [code], strides
        self._plan, self._report, self._lower = plan, report, lower
        self._chosen: dict[tuple[int, ...], tuple[Code, list[Any]] | str] = {}
        self._compared: set[int] = set()
        self._broken: str | None = None
        self._tried = 0  # how often it was to be compiled again

    def __call__(self, *arguments: Any) -> Any:
        """The results of the graph."""
        if self._broken is not None:
            return self._by_graph(arguments, self._broken)
        sizes = self._sizes(arguments)
        key = tuple(sizes.values())
        if key not in self._chosen:
            if len(self._chosen) >= _KNOWN:
                self._chosen.clear()
            self._chosen[key] = self._choose(sizes)
        chosen = self._chosen[key]
        if isinstance(chosen, str):
            return self._by_graph(arguments, chosen)
        code, layout = chosen
        try:
            results = code.run([_laid_out(a, strides) for a, strides in zip(arguments, layout, strict=True)])
        except Exception as error:  # an assertion on strides, say
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self._broken = f"its compiled backward failed ({first_line(error)})"
            return self._by_graph(arguments, self._broken)
        rows = sizes.get(self._plan.symbol, 0)
        if rows in self._compared or len(self._compared) >= _COMPARED:
            return results
        return self._checked(arguments, results, rows)

    def _checked(self, arguments: Any, results: Any, rows: int) -> Any:
        """The results; those of the graph if they differ."""
        expected = self._graph(*arguments)
        try:
            difference = largest_difference(results, expected)
        except FAILURES as error:  # sparse gradients, say
            self._broken = f"its compiled backward cannot be compared ({first_line(error)})"
        else:
            if difference is None:  # not finite: compared next time
                return results
            self._compared.add(rows)
            if difference <= rounding(self._plan.dtype):
                return results
            self._broken = f"its compiled backward gives another gradient (they differ by {difference:.0e})"
        self._report.say_unlowered(self._broken)
        return expected

    def _by_graph(self, arguments: Any, reason: str) -> Any:
        self._report.say_unlowered(reason)
        return self._graph(*arguments)

    def _sizes(self, arguments: Any) -> Sizes:
        """The values of symbols, that of the batch among them."""
        if self._plan.symbol is None:
            return {}
        return sizes_of(arguments, self._plan) | {self._plan.symbol: batch_size(arguments, self._plan)}

    def _choose(self, sizes: Sizes) -> tuple[Code, list[Any]] | str:
        """Code that suits these sizes, with the strides that it expects, or why there is none."""
        values = {symbol: sympy.Integer(value) for symbol, value in sizes.items()}
        layout = [None if s is None else tuple(one.xreplace(values) for one in s) for s in self._strides]
        known = [one is not None and all(stride.is_Integer for stride in one) for one in layout]
        numbers = [
            tuple(map(int, one)) if sure and one is not None else None for one, sure in zip(layout, known, strict=True)
        ]
        if self._plan.symbol is None:
            return self._codes[0], numbers
        if [one is None for one in numbers] != [one is None for one in layout]:
            return "the strides that compiled code expects are not known"
        violated = None
        for code in self._codes:
            violated = code.assumed.violated(sizes) if code.assumed is not None else None
            if violated is None:
                return code, numbers
        self._tried += 1
        another = self._lower(sizes) if self._tried <= _MOST else None
        if another is not None and another.assumed is not None and another.assumed.violated(sizes) is None:
            self._codes.append(another)
            return another, numbers
        return f"compiled code assumes {violated}, which does not hold for {sizes[self._plan.symbol]} rows"


def _laid_out(argument: Any, strides: tuple[int, ...] | None) -> Any:
    """The argument with these strides, copied only if it has others."""
    if strides is None:
        return argument
    tensor: Tensor = argument
    if all(size < 2 or a == b for size, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
