"""Shared parts of the optimizers: the step around the update, and argument checks."""

import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, _default_to_fused_or_foreach

from ordered_sgd.errors import ArgumentError, message

Group = dict[str, Any]  # a parameter group of torch: "params" and the options that hold for them


class GradientMethod(Optimizer):
    """A `torch.optim.Optimizer` whose subclasses only define `_check_group` and `_update`."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; returns the closure's loss, or None."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # All gradients are looked at before the first parameter moves, so that a refusal changes nothing.
        work = [(group, self._with_gradient(group)) for group in self.param_groups]
        for group, params in work:
            if params:
                gradients = [param.grad for param in params if param.grad is not None]
                self._update(group, params, [-g for g in gradients] if group["maximize"] else gradients)
        return loss

    def add_param_group(self, param_group: Group) -> None:
        """As in torch, but a group with a wrong option or parameter is rejected and not added."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_number(type(self).__name__, "lr", group["lr"], "at least 0", lambda lr: lr >= 0, "Try lr=1e-2.")
            for param in group["params"]:
                self._refuse_complex(param)
            self._check_group(group)
        except ArgumentError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: Group) -> None:
        raise NotImplementedError  # pragma: no cover

    def _update(self, group: Group, params: list[Tensor], gradients: list[Tensor]) -> None:
        raise NotImplementedError  # pragma: no cover

    def _refuse_complex(self, param: Tensor) -> None:
        if param.is_complex():
            rule, remedy = "be real", "Optimize torch.view_as_real(parameter) instead."
            raise ArgumentError(message(type(self).__name__, "parameters", rule, param.dtype, remedy))

    def _with_gradient(self, group: Group) -> list[Tensor]:
        params = [param for param in group["params"] if param.grad is not None and param.numel() > 0]
        for param in params:
            if param.grad.layout != torch.strided:
                rule, remedy = "be dense", "Build the layer with sparse=False."
                raise ArgumentError(message(type(self).__name__, "gradients", rule, param.grad.layout, remedy))
        return params


def wants_foreach(group: Group, params: list[Tensor]) -> bool:
    """Whether to update many tensors in one call: the group's option, or torch's own default."""
    if group["foreach"] is not None:
        return bool(group["foreach"])
    return _default_to_fused_or_foreach(params, differentiable=False, use_fused=False)[1]


def same_kind(*lists: list[Tensor]) -> Iterator[list[list[Tensor]]]:
    """The lists split by device and dtype, as torch's foreach kernels need it to be fast."""
    groups = Optimizer._group_tensors_by_device_and_dtype(list(lists))  # type: ignore[arg-type]
    for part, _ in groups.values():
        yield part  # type: ignore[misc]


def check_number(where: str, name: str, value: object, rule: str, holds: Callable[[float], bool], remedy: str) -> None:
    """Raise `ArgumentError` unless the value is one finite number that satisfies the rule."""
    one = isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    if one and math.isfinite(number := float(value)) and holds(number):  # type: ignore[arg-type]
        return
    raise ArgumentError(message(where, name, f"be a finite number, {rule}", repr(value), remedy))


def check_dim(where: str, name: str, dim: object, param: Tensor) -> None:
    """Raise `ArgumentError` unless dim is a dimension of the parameter; a scalar counts as a vector of one."""
    size = max(param.dim(), 1)
    if not isinstance(dim, int) or not -size <= dim < size:
        rule = f"be a dimension of every parameter, here from {-size} to {size - 1}"
        got = f"{dim!r} for shape {tuple(param.shape)}"
        raise ArgumentError(message(where, name, rule, got, f"Give this parameter a group with its own {name}."))
