"""Whether the gradient of some rows is the one of the whole graph, and if not, where they part."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ordered_sgd.agreement import differences, largest_difference, rounding
from ordered_sgd.errors import first_line
from ordered_sgd.generic_position import KEPT, ROUNDINGS, TOLERANCE
from ordered_sgd.selective.generic import DRAWS, Draw, Replayed, one_rounding_off
from ordered_sgd.selective.places import BatchDim
from ordered_sgd.selective.split import FAILURES, SplitBackward, gather, scatter, sizes_of

Run = Callable[..., Any]


def check_rows(backward: SplitBackward, arguments: Any, rows: Tensor) -> str | None:
    """Why the gradient of some rows is not that of the whole graph; None if it is."""
    try:
        return _check_generic(backward, arguments) or _check_saved(backward, arguments, rows)
    except FAILURES as error:
        return f"the backward cannot run on some rows ({first_line(error)})"


def _check_generic(backward: SplitBackward, arguments: Any) -> str | None:
    """Why the two gradients differ, or cannot be compared, in generic position; None if they agree."""
    try:
        return _compare_draws(backward, arguments, wide=True)
    except FAILURES:  # an operator without float64, such as flash attention on a GPU
        return _compare_draws(backward, arguments, wide=False)


def _compare_draws(backward: SplitBackward, arguments: Any, *, wide: bool) -> str | None:
    (output,) = (node for node in backward.graph.graph.nodes if node.op == "output")
    results = {i for i, node in enumerate(output.args[0]) if isinstance(node, fx.Node)}
    compared: set[int] = set()
    for kind in DRAWS:
        if kind == "parameters" and compared == results:  # its saved numbers serve where noise is not finite
            break
        found = _compare_draw(backward, arguments, Draw(kind, wide=wide))
        if isinstance(found, str):
            return found
        compared |= found
    return None if compared else "the gradient could not be compared: it is not finite"


def _compare_draw(backward: SplitBackward, arguments: Any, draw: Draw) -> str | set[int]:
    """Why the two gradients differ, or which results agree; those that cannot be compared are left out."""
    tried = draw.arguments(backward, arguments)
    parameters = tuple(i for i, place in enumerate(backward.plan.results) if place is None)
    run = Replayed(backward.graph, wide=draw.wide, sketched=parameters).run
    rows = torch.tensor(KEPT, device=arguments[backward.plan.batch[0]].device)
    expected = run(*tried)
    errors = differences(backward.of_rows(tried, rows, run), expected)
    tolerance, roundings = (TOLERANCE, ROUNDINGS) if draw.wide else (rounding(backward.plan.dtype) / 50, 10)
    beyond = {i: error for i, error in errors.items() if error > tolerance}
    if beyond:
        # A gradient that is zero but for rounding differs by its own size, and so it does after a rounding error.
        moved = differences(run(*one_rounding_off(tried, backward)), expected)
        clear = [error for i, error in beyond.items() if error > roundings * moved.get(i, 0.0)]
        if clear:
            return _coupling(backward, tried, rows, max(clear), wide=draw.wide)
    return errors.keys() - beyond.keys()


def _check_saved(backward: SplitBackward, arguments: Any, rows: Tensor) -> str | None:
    """Why the two gradients differ on the saved tensors as they are; None if they agree: noise hides a wrong mask."""
    run: Run = Replayed(backward.graph).run if backward.plan.lenient else backward.graph
    tried = _masked(backward, arguments, rows)
    difference = largest_difference(backward.of_rows(tried, rows, run), run(*tried))
    if difference is None or difference <= rounding(backward.plan.dtype):
        return None
    return _coupling(backward, tried, rows, difference, wide=False)


def _coupling(backward: SplitBackward, arguments: Any, rows: Tensor, difference: float, *, wide: bool) -> str:
    """The reason to run the whole graph, which is also warned of."""
    culprit = first_difference(backward, arguments, rows, wide=wide)
    reason = f"samples influence each other in {culprit} (gradients differ by {difference:.0e})"
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


def first_difference(backward: SplitBackward, arguments: Any, rows: Tensor, *, wide: bool) -> str:
    """The first operator of the backward graph whose gradient differs for the rows, or reaches other samples."""
    graph, s = backward.graph, backward.batch_size(arguments)
    dense, part = _Values(graph, wide=wide), _Values(graph, wide=wide)
    dense.run(*arguments)
    backward.of_rows(arguments, rows, part.run)
    others = torch.ones(s, dtype=torch.bool, device=rows.device).index_fill_(0, rows, False).nonzero().squeeze(1)
    tolerance = 1e-9 if wide else 1e-3
    gradients = {node for node in graph.graph.nodes if node.op == "placeholder" and node.name.startswith("tangents")}
    for node in graph.graph.nodes:
        if node.op != "call_function" or gradients.isdisjoint(node.all_input_nodes):
            continue
        gradients.add(node)
        whole, taken = dense.values[node], part.values.get(node)
        if not isinstance(whole, Tensor) or not isinstance(taken, Tensor) or not whole.is_floating_point():
            continue
        dims = [d for d, size in enumerate(whole.shape) if size == s and taken.shape[d] == max(2, rows.shape[0])]
        if not dims:
            continue
        expected, found = whole.index_select(dims[0], rows), taken.narrow(dims[0], 0, rows.shape[0])
        bound = tolerance * float(whole.abs().max())
        leaked = bool((whole.index_select(dims[0], others).abs() > bound).any())
        if leaked or not torch.allclose(found, expected, rtol=10 * tolerance, atol=bound, equal_nan=True):
            named = node.args[0] if node.target is operator.getitem else node
            return str(named.target).removesuffix(".default")
    return "an operator that could not be named"


class _Values(Replayed):
    """A run of a graph that keeps what every node computes."""

    def __init__(self, graph: fx.GraphModule, *, wide: bool) -> None:
        super().__init__(graph, wide=wide)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """What a node computes."""
        self.values[n] = super().run_node(n)
        return self.values[n]
