"""Samples that influence each other, as far as a forward graph shows it."""

import operator
from collections.abc import Sequence

import sympy
from torch import fx

from ordered_sgd.selective.places import NoPlanError
from ordered_sgd.selective.sizes import ancestors, batch_dims, name_of, tensors_of

_BATCH_NORM = ("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")


def refuse_coupling(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    symbol: sympy.Symbol,
    answers: Sequence[fx.Node],
    *,
    batchnorm: bool,
) -> bool:
    """Raise for a trained value that loses the batch, or carries it twice, on its way to an output that has it.

    Returns whether BatchNorm was let through by name.
    """
    (results,) = (node for node in backward.graph.nodes if node.op == "output")
    primals = [node for node in forward.graph.nodes if node.op == "placeholder"]
    trained = {node for node, grad in zip(primals, results.args[0], strict=False) if grad is not None}
    reach = ancestors([node for node in answers if batch_dims(node.meta["val"], symbol)])
    lenient = False
    for node in forward.graph.nodes:
        if node.op != "call_function" or name_of(node) == "aten.detach":
            continue
        sources = [arg for arg in node.all_input_nodes if arg in trained]
        if not sources:
            continue
        trained.add(node)
        if any(word in name_of(node) for word in _BATCH_NORM) and _in_training(node) and _over_batch(node, symbol):
            if not batchnorm:
                raise NoPlanError(f"{name_of(node)} takes statistics over the batch")
            lenient = True
            continue
        values = tensors_of(node.meta.get("val"))
        if node in reach and any(len(batch_dims(v, symbol)) > 1 for v in values):
            raise NoPlanError(f"{name_of(node)} carries the batch twice")
        had = any(batch_dims(v, symbol) for arg in sources for v in tensors_of(arg.meta.get("val")))
        if node in reach and had and values and not any(batch_dims(v, symbol) for v in values):
            origin = node if node.target is not operator.getitem else node.args[0]
            if any(word in name_of(origin) for word in _BATCH_NORM) and lenient:
                continue
            if _over_samples(origin):
                raise NoPlanError(f"{origin.meta['original_aten']} takes statistics over the batch")
            raise NoPlanError(f"{name_of(origin)} loses the batch dimension")
    return lenient


def _over_samples(node: fx.Node) -> bool:
    """Whether a node is a part of batch_norm, which was traced as its parts."""
    return any(word in str(node.meta.get("original_aten")) for word in _BATCH_NORM)


def _in_training(node: fx.Node) -> bool:
    """Whether a batch_norm node takes statistics of the batch; the argument is named in the operator's schema."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    for flag in ("training", "train"):
        if flag in names:
            place = names.index(flag)
            return bool(node.args[place] if place < len(node.args) else node.kwargs.get(flag, True))
    return "no_training" not in str(node.target)


def _over_batch(node: fx.Node, symbol: sympy.Symbol) -> bool:
    """Whether a batch_norm node reduces the batch: InstanceNorm has it among the channels, standardized weights not."""
    source = node.args[0]
    return not isinstance(source, fx.Node) or any(dim != 1 for dim in batch_dims(source.meta["val"], symbol))
