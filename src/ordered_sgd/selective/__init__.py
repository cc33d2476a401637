"""A sample that receives no gradient needs no backward pass.

`selective_backward` makes the backward of any model look at the gradients that come in and compute only the samples
that have one; `explain_backward` says what ran, and `restore_backward` undoes it.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.selective.explain import BackwardReport

__all__ = ["BackwardReport", "explain_backward", "restore_backward", "selective_backward"]

Model = TypeVar("Model", bound=nn.Module)


def selective_backward(model: Model, *, compile: bool = False) -> Model:
    """The same model, whose backward computes only samples that have a gradient.

    In place: type, parameters and `state_dict` stay as they are, and so do the outputs and gradients. The model is
    compiled on its first call with gradients. Samples that influence each other inside the model, as through BatchNorm
    in training, are found and computed together, and `explain_backward` says so. A sample counts as without gradient
    if what comes in for it is exactly zero: then it contributes exactly zero, except where it has an infinite
    derivative, whose product with zero would be NaN.

    A copy or a pickle of the model is plain: call this on it again.

    Parameters
    ----------
    model
        Any module, called as ``model(...)`` with the batch in the first dimension of its inputs. One in
        DistributedDataParallel may be given with or without its wrapper.
    compile
        Compile the model with inductor too, as ``torch.compile(model)`` does. Otherwise its operators run one by one.
        Numbers are the same up to rounding.

    Examples
    --------
    >>> import torch
    >>> from ordered_sgd import ordered_mean
    >>> model = selective_backward(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> losses = nn.functional.cross_entropy(model(torch.randn(16, 4)), torch.zeros(16).long(), reduction="none")
    >>> ordered_mean(losses, q=0.25).backward()
    >>> print(explain_backward(model))
    1 backward passes computed 25 % of the samples; 1 of them left samples out.
    """
    inner = _inner(model)
    from ordered_sgd.selective.call import SelectiveCall  # brings torch's compiler, which takes seconds to load

    known: Any = inner._compiled_call_impl
    how = "model.compile()" if known is not None and not isinstance(known, SelectiveCall) else None
    if isinstance(inner, torch._dynamo.OptimizedModule) and not compile:  # its compiled code would not run
        how = "torch.compile(model)"
    if how is not None:
        remedy = f"Call selective_backward(model, compile=True) instead of {how}."
        raise ArgumentError(message("selective_backward", "the model", "not be compiled", how, remedy))
    if getattr(known, "lower", None) is not compile:
        restore_backward(model)
        inner._compiled_call_impl = SelectiveCall(inner, lower=compile)
    return model


def explain_backward(model: nn.Module) -> BackwardReport:
    """What the backward passes of the model did so far: how many samples they computed, and why not fewer."""
    report = getattr(_inner(model)._compiled_call_impl, "report", None)
    if isinstance(report, BackwardReport):
        return report
    return BackwardReport(plain="it is not selective: call selective_backward(model), and after model.compile() again")


def restore_backward(model: Model) -> Model:
    """The same model as it was before `selective_backward`."""
    inner = _inner(model)
    known = inner._compiled_call_impl
    if isinstance(getattr(known, "report", None), BackwardReport):
        known.forget()  # type: ignore[union-attr]
        inner._compiled_call_impl = None
    return model


def _inner(model: nn.Module) -> nn.Module:
    """The module inside a data-parallel wrapper."""
    if not isinstance(model, nn.Module):
        remedy = "Pass a torch module."
        raise ArgumentError(message("selective_backward", "model", "be a module", type(model).__name__, remedy))
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
