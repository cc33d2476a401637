"""Whether the gradient of some rows is the dense one, and if not, where they part."""

from typing import Any

import torch
from torch import Tensor, fx


def largest_difference(found: Any, expected: Any) -> float | None:
    """The largest error of the results relative to their size; None when they are not finite."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if isinstance(b, Tensor) and b.is_floating_point()]
    # None: not used at all, as a branch that none of the samples takes
    pairs = [(torch.zeros_like(b) if a is None else a, b) for a, b in pairs]
    if not pairs:
        return 0.0
    scale = max((float(b.abs().max()) for _, b in pairs if b.numel()), default=0.0)  # a rank may hold none of them
    worst = 0.0
    for a, b in pairs:
        if not bool(a.isfinite().all() & b.isfinite().all()):
            return None
        if b.numel():
            worst = max(worst, float((a - b).abs().max()) / (float(b.abs().max()) + 1e-3 * scale + 1e-30))
    return worst


def first_difference(backward: Any, arguments: Any, rows: Tensor) -> str:
    """The first operator of the backward graph whose gradient differs for the rows, or reaches other samples."""
    graph, plan = backward.graph, backward.plan
    s = arguments[plan.batch[0]].shape[plan.batch[1]]
    dense, part = _values(graph, arguments), {}
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
