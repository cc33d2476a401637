"""A backward graph in generic position: on a few samples, with noise for the saved numbers, in float64.

The gradient of some rows equals that of the whole graph for any saved numbers, or for few: those of this step may hide
a coupling, as a gate of 1e-5 does. Noise hides nothing, and in float64 rounding hides next to nothing. The graph is
symbolic in the batch size, so a few samples are enough, and the memory they take is small.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx

from ordered_sgd.agreement import is_inexact
from ordered_sgd.generic_position import KEPT, SAMPLES, WIDER, positive, sketch, widened
from ordered_sgd.selective.places import BatchDim
from ordered_sgd.selective.rows_plan import RowsPlan
from ordered_sgd.selective.split import SplitBackward, gather, scatter, sizes_of

_EQUALITY = (torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor)


Kind = Literal["positive", "signed", "parameters"]
DRAWS: tuple[Kind, ...] = ("positive", "signed", "parameters")


class Replayed(fx.Interpreter):
    """A backward graph run node by node, BatchNorm in training as in eval mode: then it couples no samples.

    Parameters
    ----------
    graph
        The graph.
    wide
        Compute in float64 whatever dtypes the graph asks for.
    sketched
        Results, by position, that come back as their products with a random vector: as good for a comparison, and
        the gradients of all parameters need not be in memory at a time.
    """

    def __init__(self, graph: fx.GraphModule, *, wide: bool = False, sketched: tuple[int, ...] = ()) -> None:
        super().__init__(graph)
        self._wide = wide
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        results = {output.args[0][i] for i in sketched}
        self._sketched = {node for node in results if isinstance(node, fx.Node) and set(node.users) == {output}}

    def run_node(self, n: fx.Node) -> Any:
        """What a node computes."""
        value = super().run_node(n)
        if self._wide:
            value = fx.node.map_aggregate(value, widened)
        return sketch(value) if n in self._sketched and isinstance(value, Tensor) else value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What an operator computes."""
        if self._wide:
            args, kwargs = (fx.node.map_aggregate(part, _wider_dtype) for part in (args, kwargs))
        if "batch_norm" in str(target) and "backward" in str(target):
            return _batch_norm_backward(target, args, kwargs)
        return super().call_function(target, args, kwargs)


def _wider_dtype(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _batch_norm_backward(target: Any, args: Any, kwargs: Any) -> Any:
    """BatchNorm's backward with the statistics as constants: in eval mode, with those of the batch."""
    names = [argument.name for argument in target._schema.arguments]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if not named.get("train", named.get("update", True)):
        return target(*args, **kwargs)
    gradient = named.get("grad_out", named.get("grad_output"))
    inverse: Any = named.get("save_invstd", named.get("save_var"))  # cuDNN's, too, is one over the standard deviation
    eps = named.get("eps", named.get("epsilon", 0.0))
    return torch.ops.aten.native_batch_norm_backward(
        gradient, named["input"], named["weight"], named["save_mean"], inverse**-2 - eps, None, None, False, eps,
        named.get("output_mask", [True] * 3),
    )  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """How saved numbers are replaced by noise between 1/4 and 3/4.

    Parameters
    ----------
    kind
        ``"positive"`` noise opens every ReLU, and booleans are random. ``"signed"`` noise has the signs of the saved
        numbers, and booleans stay, so that other branches are taken. ``"parameters"`` are replaced alone, since noise
        may lie where a function is not defined.
    wide
        In float64; else in the dtypes of the graph.
    """

    kind: Kind = "positive"
    wide: bool = True

    def arguments(self, backward: SplitBackward, arguments: Any) -> list[Any]:
        """Arguments for a few samples; the incoming gradients are zero except for the kept rows."""
        plan, s, values = backward.plan, backward.batch_size(arguments), sizes_of(arguments, backward.plan)
        generator = torch.Generator().manual_seed(0)
        as_saved = _compared_for_equality(backward.graph, plan)
        chosen: list[Any] = []
        for i, (argument, how) in enumerate(zip(arguments, plan.arguments, strict=True)):
            if plan.same_as[i] < i:  # saved twice: still the same numbers
                chosen.append(chosen[plan.same_as[i]])
            elif how == "positions":
                chosen.append(torch.arange(SAMPLES, dtype=argument.dtype, device=argument.device))
            elif isinstance(how, str):
                chosen.append(argument // s * SAMPLES)
            elif not isinstance(argument, Tensor):
                chosen.append(argument)
            else:
                if isinstance(how, BatchDim):
                    last = torch.arange(s - SAMPLES, s, device=argument.device) % s
                    argument = gather(argument, replace(how, read=True), last, s, values)
                if i in plan.tangents:
                    chosen.append(self._tangent(argument, how, values, generator))
                elif i in as_saved or (self.kind == "parameters" and isinstance(how, BatchDim)):
                    chosen.append(widened(argument) if self.wide else argument)
                else:
                    chosen.append(self._noise(argument, generator, scaled=how is None))
        return chosen

    def _noise(self, saved: Tensor, generator: torch.Generator, *, scaled: bool) -> Tensor:
        """Noise in the place of a saved tensor, in its memory layout; integers stay."""
        if saved.dtype == torch.bool and self.kind == "positive":
            return (torch.rand(saved.shape, generator=generator) < 0.5).to(saved.device)
        if not is_inexact(saved):
            return saved
        noise = self._like(saved).copy_(_drawn(positive, saved, generator))
        if self.kind == "signed" and not saved.is_complex():
            noise.copysign_(saved)
        # a product with many weights must not grow from layer to layer
        return noise.div_(saved.numel() ** 0.5) if scaled and saved.dim() > 1 else noise

    def _tangent(self, saved: Tensor, how: Any, values: Any, generator: torch.Generator) -> Tensor:
        """Random gradients coming in for the kept rows, none for the others."""
        whole = self._like(saved)
        if not isinstance(how, BatchDim):
            return whole.zero_()
        whole.copy_(_drawn(torch.randn, saved, generator))
        rows = torch.tensor(KEPT, device=saved.device)
        part = gather(whole, how, rows, SAMPLES, values)
        return scatter(part, how, rows, SAMPLES, values)

    def _like(self, saved: Tensor) -> Tensor:
        return torch.empty_like(saved, dtype=WIDER.get(saved.dtype, saved.dtype) if self.wide else saved.dtype)


def _drawn(draw: Callable[..., Tensor], like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in the shape of a tensor; complex ones where the tensor is complex."""
    parts = [draw(like.shape, generator=generator) for _ in range(1 + like.is_complex())]
    return torch.complex(*parts) if like.is_complex() else parts[0]


def one_rounding_off(arguments: list[Any], backward: SplitBackward) -> list[Any]:
    """The arguments, those with the batch changed by about one rounding error."""
    plan, generator = backward.plan, torch.Generator().manual_seed(2)
    as_saved = _compared_for_equality(backward.graph, plan)
    moved = list(arguments)
    for i, (argument, how) in enumerate(zip(arguments, plan.arguments, strict=True)):
        if plan.same_as[i] < i:
            moved[i] = moved[plan.same_as[i]]
        elif isinstance(how, BatchDim) and is_inexact(argument) and i not in as_saved:
            noise = torch.rand(argument.shape, generator=generator, dtype=torch.float64) - 0.5
            moved[i] = argument * (1 + 4 * torch.finfo(argument.dtype).eps * noise).to(argument)
    return moved


def _compared_for_equality(graph: Any, plan: RowsPlan) -> set[int]:
    """Arguments that a graph compares for equality, as a largest value with all others: noise is equal to nothing."""
    waiting = [node for node in graph.graph.nodes if node.target in _EQUALITY]
    found = set(waiting)
    while waiting:
        sources = set(waiting.pop().all_input_nodes) - found
        found |= sources
        waiting += sources
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return {plan.same_as[i] for i, node in enumerate(inputs) if node in found}
