"""Whether the gradient of some rows is the one of the whole graph, and if not, where they part."""

from typing import Any, cast

import torch
from torch import Tensor, fx

from ordered_sgd.agreement import largest_difference, rounding
from ordered_sgd.errors import first_line
from ordered_sgd.selective.rows_plan import BatchDim
from ordered_sgd.selective.split import SplitBackward, gather, scatter, sizes_of


def check_rows(backward: SplitBackward, arguments: Any, rows: Tensor) -> str | None:
    """Why the gradient of some rows is not that of the whole graph on the same saved tensors; None if it is."""
    if backward.plan.lenient:
        return _check_order(backward, arguments, rows)
    compared = False
    for change in (_disturbed, _masked):  # both: noise hides a wrong mask of zeros, and zeros hide a coupling
        tried = change(backward, arguments, rows)
        try:
            found = backward.of_rows(tried, rows)
        except (RuntimeError, IndexError) as error:
            return f"the backward cannot run on some rows ({first_line(error)})"
        difference = largest_difference(found, backward.graph(*tried))
        if difference is not None and difference > rounding(backward.plan.dtype):
            culprit = first_difference(backward, tried, rows)
            reason = f"samples influence each other in {culprit} (gradients differ by {difference:.0e})"
            backward.report.warn_of(reason)
            return reason
        compared = compared or difference is not None
    return None if compared else "the gradient could not be compared: it is not finite"


def _check_order(backward: SplitBackward, arguments: Any, rows: Tensor) -> str | None:
    """Why the rows cannot be run, or not in another order; None if they can: BatchNorm does not care for it."""
    tried = _masked(backward, arguments, rows)
    try:
        difference = largest_difference(backward.of_rows(tried, rows.flip(0)), backward.of_rows(tried, rows))
    except (RuntimeError, IndexError) as error:
        return f"the backward cannot run on some rows ({first_line(error)})"
    if difference is None or difference <= rounding(backward.plan.dtype):
        return None
    reason = f"samples influence each other, not by BatchNorm alone (gradients differ by {difference:.0e})"
    backward.report.warn_of(reason)
    return reason


def _masked(backward: SplitBackward, arguments: Any, rows: Tensor) -> list[Any]:
    """The arguments with random gradients coming in for the rows and none for the others."""
    plan, s = backward.plan, backward.batch_size(arguments)
    generator = torch.Generator().manual_seed(0)
    changed, values = list(arguments), sizes_of(arguments, plan)
    for i in plan.tangents:
        place = plan.arguments[i]
        if isinstance(place, BatchDim):
            noise = torch.randn(arguments[i].shape, generator=generator).to(arguments[i])
            part = gather(noise, place, rows, s, values)
            changed[i] = scatter(part, place, rows, s, values)
        else:
            changed[i] = torch.zeros_like(arguments[i])
    return changed


def _disturbed(backward: SplitBackward, arguments: Any, rows: Tensor) -> list[Any]:
    """The same with zeros in the saved tensors replaced by noise.

    What is compared must agree for any values, and a scale that is still zero would hide a coupling.
    """
    plan, generator = backward.plan, torch.Generator().manual_seed(1)
    changed = _masked(backward, arguments, rows)
    for i, argument in enumerate(changed):
        if plan.same_as[i] < i:  # saved twice: still the same numbers
            changed[i] = changed[plan.same_as[i]]
        elif i not in plan.tangents and isinstance(argument, Tensor) and argument.is_floating_point():
            noise = torch.rand(argument.shape, generator=generator).to(argument) + 0.5
            changed[i] = torch.where(argument == 0, noise, argument)
    return changed


def first_difference(backward: SplitBackward, arguments: Any, rows: Tensor) -> str:
    """The first operator of the backward graph whose gradient differs for the rows, or reaches other samples."""
    graph, s = cast(fx.GraphModule, backward.graph), backward.batch_size(arguments)
    dense = _values(graph, arguments)
    part: dict[fx.Node, Any] = {}
    backward.graph = lambda *gathered: part.update(_values(graph, gathered)) or graph(*gathered)
    try:
        backward.of_rows(arguments, rows)
    finally:
        backward.graph = graph
    others = torch.ones(s, dtype=torch.bool, device=rows.device).index_fill_(0, rows, False).nonzero().squeeze(1)
    gradients = {node for node in graph.graph.nodes if node.op == "placeholder" and node.name.startswith("tangents")}
    for node in graph.graph.nodes:
        if node.op != "call_function" or gradients.isdisjoint(node.all_input_nodes):
            continue
        gradients.add(node)
        whole, taken = dense[node], part.get(node)
        if not isinstance(whole, Tensor) or not isinstance(taken, Tensor) or not whole.is_floating_point():
            continue
        dims = [d for d, size in enumerate(whole.shape) if size == s and taken.shape[d] == max(2, rows.shape[0])]
        if not dims:
            continue
        expected, found = whole.index_select(dims[0], rows), taken.narrow(dims[0], 0, rows.shape[0])
        leaked = bool(whole.index_select(dims[0], others).abs().max() > 1e-3 * whole.abs().max())
        if leaked or not torch.allclose(found, expected, rtol=1e-2, atol=1e-3, equal_nan=True):
            return str(node.target).removesuffix(".default")
    return "an operator that could not be named"


def _values(graph: fx.GraphModule, arguments: Any) -> dict[fx.Node, Any]:
    """What every node of a graph computes."""
    values: dict[fx.Node, Any] = {}

    class _Keep(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            values[n] = super().run_node(n)
            return values[n]

    _Keep(graph).run(*arguments)
    return values
