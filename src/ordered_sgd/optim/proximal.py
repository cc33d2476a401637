"""Proximal SGD: a gradient step on the loss, an exact step on a penalty or a constraint that has no gradient."""

from typing import Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.optim._base import (
    GradientMethod,
    Group,
    check_dim,
    check_number,
    same_kind,
    wants_foreach,
)

Penalty = Literal["l1", "l2", "l2-norm", "group"]
PENALTIES: tuple[Penalty, ...] = ("l1", "l2", "l2-norm", "group")
_SEPARABLE = (None, "l1", "l2")  # sums over entries: only these can be clamped to a box afterwards and stay exact


class ProximalSGD(GradientMethod):
    """SGD on f(w) + strength R(w) with w in a box, where zeros and constraints hold exactly, unlike in plain SGD.

    With the gradient g of f and the buffer b (b = 0 at the start) one step is ::

        d = momentum * b + g
        u = argmin_u  <d, u> + |u - w|^2 / (2 lr) + strength R(u)   subject to   low <= u <= high
        b = (w - u) / lr
        w = u

    that is, ``u = prox(w - lr * d, lr * strength)``. Without momentum this is the proximal stochastic gradient method;
    with it the inertial one (iPiano, Ochs et al., 2014). The buffer holds the step *taken*, including the subgradient
    of the penalty. If it held the sum of g alone, as in `torch.optim.SGD`, it would settle at g / (1 - momentum), and
    the penalty would only have (1 - momentum) of its strength. Without penalty and bounds the two are the same, and
    the result equals `torch.optim.SGD` bit for bit. There is no Nesterov variant.

    ========== =================================== =====================================================
    penalty    R(w)                                known as
    ========== =================================== =====================================================
    "l1"       sum of abs(w_i)                     lasso
    "l2"       *half the squared* norm             ridge, L2 regularisation, weight decay (implicit here)
    "l2-norm"  the norm, *not squared*             group lasso with the whole tensor as one group
    "group"    sum over groups of the group's norm group lasso; no factor for the group's size
    None       0                                   plain SGD, or with `bounds` projected SGD
    ========== =================================== =====================================================

    Parameters
    ----------
    params : iterable
        Parameters or parameter groups, as in torch.
    lr : float or Tensor, default=1e-2
        Learning rate. A tensor is read as a number once per step.
    momentum : float, default=0.0
        Momentum in [0, 1).
    penalty : str or None, default=None
        Name of R in the table, summed over the tensors of a parameter group. Each group may have its own penalty;
        ``penalty=None`` leaves its parameters, for example biases, unpenalized.
    strength : float or None, default=None
        Factor of the penalty, required unless `penalty` is None.
    group_dim : int, default=0
        For "group": one group per index of this dimension. In a linear or convolutional layer, 0 groups the weights
        of an output (a row, a filter), 1 those of an input (a column).
    bounds : tuple of float or None, default=None
        (low, high), with ``math.inf`` for an open side; can be combined with "l1" and "l2".
    maximize : bool, default=False
        Whether to maximize f(w) - strength R(w).
    foreach : bool or None, default=None
        Whether to update many tensors in one call; None decides as torch does. The norms of "group" and "l2-norm" are
        computed tensor by tensor in any case.

    Examples
    --------
    The lasso of ``(w - 3)^2 / 2`` and ``(w - 0.5)^2 / 2`` with strength 1 is 2 and exactly 0:

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = ProximalSGD([w], lr=0.5, penalty="l1", strength=1.0)
    >>> for _ in range(50):
    ...     optimizer.zero_grad()
    ...     (0.5 * (w - torch.tensor([3.0, 0.5])).square().sum()).backward()
    ...     optimizer.step()
    >>> w.tolist()
    [2.0, 0.0]

    Weights penalised, biases free:

    >>> layer = torch.nn.Linear(3, 2)
    >>> groups = [{"params": [layer.weight]}, {"params": [layer.bias], "penalty": None}]
    >>> optimizer = ProximalSGD(groups, lr=0.1, momentum=0.9, penalty="group", strength=1e-3)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        momentum: float = 0.0,
        *,
        penalty: Penalty | None = None,
        strength: float | None = None,
        group_dim: int = 0,
        bounds: tuple[float, float] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "penalty": penalty,
            "strength": strength,
            "group_dim": group_dim,
            "bounds": bounds,
            "maximize": maximize,
            "foreach": foreach,
        }
        super().__init__(params, defaults)
        if strength is not None and all(group["penalty"] is None for group in self.param_groups):
            rule, remedy = f"be one of {', '.join(PENALTIES)} when strength is given", 'Pass penalty="l1".'
            raise ArgumentError(message("ProximalSGD", "penalty", rule, None, remedy))

    def _check_group(self, group: Group) -> None:
        where, penalty = "ProximalSGD", group["penalty"]
        remedy = "Nesterov is not offered; the usual value is momentum=0.9."
        check_number(where, "momentum", group["momentum"], "0 <= momentum < 1", lambda m: 0 <= m < 1, remedy)
        remedy = "Use bounds=(low, high) for a box." if penalty == "box" else "Pass None for no penalty."
        check_choice(where, "penalty", penalty, (*PENALTIES, None), remedy)
        if penalty is not None:
            remedy = f'Pass for example penalty="{penalty}", strength=1e-3.'
            check_number(where, "strength", group["strength"], "at least 0", lambda x: x >= 0, remedy)
        if penalty == "group":
            for param in group["params"]:
                check_dim(where, "group_dim", group["group_dim"], param)
        if group["bounds"] is not None:
            _check_bounds(where, group["bounds"])
            if penalty not in _SEPARABLE:
                rule, remedy = (
                    "go with penalty None, 'l1' or 'l2'",
                    "Put the bounded parameters into a group of their own.",
                )
                raise ArgumentError(message(where, "bounds", rule, f"penalty {penalty!r}", remedy))

    def _update(self, group: Group, params: list[Tensor], gradients: list[Tensor]) -> None:
        buffers = [self._buffer(param, group["bounds"]) for param in params] if group["momentum"] else []
        update = _foreach_step if wants_foreach(group, params) else _loop_step
        update(params, gradients, buffers, group)

    def _buffer(self, param: Tensor, bounds: tuple[float, float] | None) -> Tensor:
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
            if bounds is not None:  # else the jump from a start outside the box would count as a first step
                param.clamp_(*bounds)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def prox(
    x: Tensor,
    t: float,
    penalty: Penalty | None = None,
    *,
    group_dim: int = 0,
    bounds: tuple[float, float] | None = None,
) -> Tensor:
    """Argmin over u of |u - x|^2 / 2 + t R(u), low <= u <= high; R and the other arguments as in `ProximalSGD`.

    >>> import torch
    >>> prox(torch.tensor([3.0, -0.5]), 1.0, "l1")
    tensor([2., 0.])
    >>> prox(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 2.5, "group")
    tensor([[1.5000, 2.0000],
            [0.0000, 0.0000]])
    """
    if penalty == "l1":
        x = x - x.clamp(-t, t)
    elif penalty == "l2":
        x = x / (1 + t)
    elif penalty == "l2-norm":
        x = _shrink_norms(x, t, list(range(x.dim())))
    elif penalty == "group":
        x = _shrink_norms(x, t, [d for d in range(x.dim()) if d != group_dim % x.dim()])
    return x if bounds is None else x.clamp(*bounds)


def _shrink_norms(x: Tensor, t: float, dims: list[int]) -> Tensor:
    """Every block, spread over dims, shortened by t, or zero when it is no longer than that."""
    wide = torch.promote_types(x.dtype, torch.float32)  # a 16-bit block can have a norm that 16 bits cannot hold
    # The extra dimension is there because torch takes a list of no dimensions for all of them.
    norm = torch.linalg.vector_norm(x.unsqueeze(-1), dim=[*dims, x.dim()], keepdim=True, dtype=wide).squeeze(-1)
    # t / t is exactly 1, hence exact zeros; the smallest normal number is for a block of zeros with t = 0.
    scale: Tensor = 1 - t / norm.clamp_min(max(t, torch.finfo(wide).tiny))
    return (x * scale).to(x.dtype)


def _loop_step(params: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], group: Group) -> None:
    """One step, a parameter at a time: the specification of `_foreach_step`."""
    lr = float(group["lr"])
    t = lr * float(group["strength"] or 0.0)
    for i, (param, d) in enumerate(zip(params, gradients, strict=True)):
        if buffers:
            d = buffers[i].mul_(group["momentum"]).add_(d)
        x = param.add_(d, alpha=-lr)
        if group["penalty"] is None and group["bounds"] is None:
            continue
        u = prox(x, t, group["penalty"], group_dim=group["group_dim"], bounds=group["bounds"])
        if buffers and lr > 0:
            # (w - u) / lr, written as d + (x - u) / lr: a step too short for the dtype of w still counts in the buffer
            buffers[i].add_((x - u).div_(lr))
        param.copy_(u)


def _foreach_step(params: list[Tensor], gradients: list[Tensor], buffers: list[Tensor], group: Group) -> None:
    """One step in torch's multi-tensor calls; on the CPU the same bits as the loop.

    One exception is torch's: its foreach multiplication on the CPU rounds the momentum to the dtype of 16-bit buffers.
    """
    lr = float(group["lr"])
    t = lr * float(group["strength"] or 0.0)
    for some_params, some_gradients, *rest in same_kind(params, gradients, *([buffers] if buffers else [])):
        directions = some_gradients
        if rest:
            directions = rest[0]
            torch._foreach_mul_(directions, group["momentum"])
            torch._foreach_add_(directions, some_gradients)
        torch._foreach_add_(some_params, directions, alpha=-lr)
        if group["penalty"] is None and group["bounds"] is None:
            continue
        before = torch._foreach_clone(some_params) if rest and lr > 0 else None
        _foreach_prox_(some_params, t, group)
        if before is not None:
            torch._foreach_sub_(before, some_params)
            torch._foreach_div_(before, lr)
            torch._foreach_add_(directions, before)


def _foreach_prox_(tensors: list[Tensor], t: float, group: Group) -> None:
    if group["penalty"] == "l1":
        inner = torch._foreach_clamp_min(tensors, -t)
        torch._foreach_clamp_max_(inner, t)
        torch._foreach_sub_(tensors, inner)
    elif group["penalty"] == "l2":
        torch._foreach_div_(tensors, 1 + t)
    elif group["penalty"] is not None:  # norms of blocks: torch has them for whole tensors only
        blocks = [prox(x, t, group["penalty"], group_dim=group["group_dim"]) for x in tensors]
        torch._foreach_copy_(tensors, blocks)
    if group["bounds"] is not None:
        torch._foreach_clamp_min_(tensors, group["bounds"][0])
        torch._foreach_clamp_max_(tensors, group["bounds"][1])


def _check_bounds(where: str, bounds: object) -> None:
    if isinstance(bounds, (tuple, list)) and len(bounds) == 2:
        low, high = bounds
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and low <= high:
            return
    remedy = "Use bounds=(0, math.inf) for non-negative parameters."
    raise ArgumentError(message(where, "bounds", "be two numbers (low, high) with low <= high", repr(bounds), remedy))
