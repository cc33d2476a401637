"""Mirror descent: gradient steps in the geometry of the simplex (entropy) or of a p-norm."""

import math
from typing import Any, Literal

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

Geometry = Literal["entropy", "p-norm"]


class MirrorDescent(GradientMethod):
    """Gradient descent on the dual of w: theta = mirror(w) - lr * g, then w = primal(theta).

    Each vector w (the whole tensor, or its slices along `dim`) solves, in every step, ::

        w = argmin_u  <g, u> + D(u, w) / lr       D: the Bregman divergence of psi

    ========== ============================== ====================================== ===============================
    geometry   psi(w)                         mirror(w) = gradient of psi             the step
    ========== ============================== ====================================== ===============================
    "entropy"  sum of w_i log w_i, simplex    log w_i (up to a constant)              w_i exp(-lr g_i), divided by
                                                                                      the sum: exponentiated gradient
    "p-norm"   |w|_p^2 / 2, 1 < p <= 2        sign(w_i) |w_i|^(p-1) |w|_p^(2-p)       the same map with q = p / (p-1)
                                                                                      leads back; p = 2 is plain SGD
    ========== ============================== ====================================== ===============================

    "entropy" suits mixture weights and distributions; "p-norm" with p near 1 (for n entries
    p = 2 ln n / (2 ln n - 1)) suits solutions with few large entries.

    The dual is kept as state, in 32 bits if the parameter has 16, so entries too small for the parameter's dtype are
    not lost and short steps add up. On the simplex, an entry that *starts* at zero stays zero. If a vector was changed
    outside the optimizer since the last step, its dual is computed again.

    Parameters
    ----------
    params : iterable
        Parameters or parameter groups, as in torch.
    lr : float or Tensor, default=1e-2
        Learning rate. A tensor is read as a number once per step.
    geometry : {"entropy", "p-norm"}, default="entropy"
        "entropy" needs parameters that are non-negative and sum to one along `dim`, checked when they are added.
    p : float or None, default=None
        Exponent of the p-norm, 1 < p <= 2; needed for "p-norm" only.
    dim : int or None, default=None
        Dimension whose slices are separate vectors; None treats the whole tensor as one vector.
    maximize : bool, default=False
        Whether to step along the gradient instead of against it.
    foreach : bool or None, default=None
        Whether to update many duals in one call; None decides as torch does. The maps run tensor by tensor.

    Examples
    --------
    Weights on three losses move to the largest one, as in an adversarial mixture:

    >>> import torch
    >>> weights = torch.nn.Parameter(torch.full((3,), 1 / 3))
    >>> optimizer = MirrorDescent([weights], lr=1.0, maximize=True)
    >>> for _ in range(20):
    ...     optimizer.zero_grad()
    ...     (weights @ torch.tensor([1.0, 2.0, 3.0])).backward()
    ...     optimizer.step()
    >>> weights.argmax().item(), round(weights.sum().item(), 6)
    (2, 1.0)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        *,
        geometry: Geometry = "entropy",
        p: float | None = None,
        dim: int | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        defaults = {"lr": lr, "geometry": geometry, "p": p, "dim": dim, "maximize": maximize, "foreach": foreach}
        super().__init__(params, defaults)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but the duals keep their dtype, so that 16-bit parameters continue bit for bit."""
        super().load_state_dict(state_dict)
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for key, param in zip(saved, params, strict=True):
            if "dual" in state_dict["state"].get(key, {}):
                self.state[param]["dual"] = state_dict["state"][key]["dual"].to(param.device, copy=True)

    def _check_group(self, group: Group) -> None:
        where = "MirrorDescent"
        remedy = 'Use geometry="p-norm" with p=2 for the Euclidean one.'
        check_choice(where, "geometry", group["geometry"], ("entropy", "p-norm"), remedy)
        if group["geometry"] == "p-norm":
            remedy = "p=2 is plain SGD; for n entries try p = 2 ln n / (2 ln n - 1)."
            check_number(where, "p", group["p"], "1 < p <= 2", lambda p: 1 < p <= 2, remedy)
        for param in group["params"]:
            if group["dim"] is not None:
                check_dim(where, "dim", group["dim"], param)
            if group["geometry"] == "entropy" and not param.is_meta:  # a meta tensor has no values to look at
                _check_simplex(where, param, group["dim"])

    def _update(self, group: Group, params: list[Tensor], gradients: list[Tensor]) -> None:
        lr = float(group["lr"])
        duals = [self._dual(param, group) for param in params]
        slopes = [g.to(dual.dtype) for g, dual in zip(gradients, duals, strict=True)]
        if group["geometry"] == "entropy":
            slopes = [_above_lowest(g, dual, group["dim"]) for g, dual in zip(slopes, duals, strict=True)]
        if wants_foreach(group, params):
            for some_duals, some_slopes in same_kind(duals, slopes):
                torch._foreach_add_(some_duals, some_slopes, alpha=-lr)
        else:
            for dual, slope in zip(duals, slopes, strict=True):
                dual.add_(slope, alpha=-lr)
        for param, dual in zip(params, duals, strict=True):
            if group["geometry"] == "entropy":  # the constant is free: with the largest entries near 0 none gets lost
                dual = _along(torch.log_softmax, dual, group["dim"])
            self.state[param]["dual"] = dual
            param.copy_(_primal(dual, group))

    def _dual(self, param: Tensor, group: Group) -> Tensor:
        """Dual to step from: the stored one, unless the parameter has changed since."""
        wide = param.to(torch.promote_types(param.dtype, torch.float32))
        kept: Tensor | None = self.state[param].get("dual")
        if kept is None:
            return _mirror(wide, group)
        same = _primal(kept, group).to(param.dtype) == param
        same = same.all() if group["dim"] is None else same.all(group["dim"], keepdim=True)
        if param.device.type == "cpu" and bool(same.all()):  # saves a map; elsewhere to ask would wait for the device
            return kept
        return torch.where(same, kept, _mirror(wide, group))


def _mirror(w: Tensor, group: Group) -> Tensor:
    return w.log() if group["geometry"] == "entropy" else _norm_gradient(w, group["p"], group["dim"])


def _primal(theta: Tensor, group: Group) -> Tensor:
    if group["geometry"] == "entropy":
        return _along(torch.softmax, theta, group["dim"])
    return _norm_gradient(theta, group["p"] / (group["p"] - 1), group["dim"])


def _norm_gradient(x: Tensor, r: float, dim: int | None) -> Tensor:
    """Gradient of |x|_r^2 / 2: sign(x_i) |x_i|^(r-1) |x|_r^(2-r); its inverse has r / (r - 1)."""
    if r == 2:
        return x.clone()
    # Powers of x / max|x| cannot overflow, and at least one of them is 1: the norm is between 1 and n.
    largest = torch.linalg.vector_norm(x, math.inf, dim=dim, keepdim=True)
    share = x.abs() / largest.clamp_min(torch.finfo(x.dtype).tiny)
    norm = torch.linalg.vector_norm(share, r, dim=dim, keepdim=True).clamp_min(1)  # 0 for x = 0 alone
    gradient: Tensor = x.sign() * largest * share.pow(r - 1) * norm.pow(2 - r)
    return gradient


def _above_lowest(gradient: Tensor, dual: Tensor, dim: int | None) -> Tensor:
    """Gradient minus its lowest entry, the same step on the simplex, which can then only underflow."""
    gone = dual == -math.inf  # entries at zero: they neither count nor move
    masked = gradient.masked_fill(gone, math.inf)
    lowest = masked.amin() if dim is None else masked.amin(dim, keepdim=True)
    return (gradient - lowest).masked_fill(gone, 0.0)


def _along(function: Any, x: Tensor, dim: int | None) -> Tensor:
    """function(x, dim); for dim None the whole tensor is one vector."""
    result: Tensor = function(x.flatten(), 0).view_as(x) if dim is None else function(x, dim)
    return result


def _check_simplex(where: str, param: Tensor, dim: int | None) -> None:
    wide = param.detach().to(torch.promote_types(param.dtype, torch.float32))
    remedy = "Start from torch.softmax(x, dim), or pass dim= if slices are the distributions."
    if not bool((wide >= 0).all()):
        got = f"a smallest entry of {wide.min().item():.6g}"
        raise ArgumentError(message(where, "parameters", 'be non-negative for geometry "entropy"', got, remedy))
    sums = (wide.sum() if dim is None else wide.sum(dim)).reshape(-1)
    tolerance = max(1e-5, 2 * torch.finfo(param.dtype).eps)  # rounding of the entries to the dtype, and of their sum
    off = (sums - 1).abs()
    if off.numel() and not float(off.max()) <= tolerance:
        got = f"a sum of {sums[off.argmax()].item():.6g} for shape {tuple(param.shape)} and dim={dim}"
        rule = 'sum to one along dim for geometry "entropy"'
        raise ArgumentError(message(where, "parameters", rule, got, remedy))
