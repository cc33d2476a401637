"""A model's own loss, compared once with that of the task which the name of its class stands for."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.integrations._labels import OrderedLossFunc
from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state

ROWS = 2  # of the first batch are enough: any other loss differs on them, and their logits are small
EXACT, ROUNDED = 2e-5, 1e-2  # relative: the same logits in single precision, and in half precision
HALF = (torch.float16, torch.bfloat16)


def check_own_loss(ordered: OrderedLossFunc, model: nn.Module, inputs: dict[str, Any]) -> None:
    """Raise if the model's own loss of a batch is not the plain mean of the losses that are about to be ordered.

    Nothing is said of a model that computes no loss, or of a batch without a valid label.
    """
    inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
    inner = getattr(inner, "_orig_mod", inner)  # no second graph is compiled for it
    device, buffers = device_of(inner), Buffers(inner)
    state, held = random_state(device), buffers.save()
    try:
        with torch.no_grad():
            outputs = inner(**_first_rows(inputs))
    except Exception:  # what is not a fault of the loss is raised again by the training pass
        return
    finally:
        restore_random_state(state, device)
        buffers.load(held)
    own = outputs.get("loss") if isinstance(outputs, dict) else None
    if not isinstance(own, Tensor) or own.dim() != 0 or not own.isfinite():
        return
    mean = _mean_loss(ordered, outputs, ordered.task.relabel(_first_rows(inputs), ordered.task.ignored)["labels"])
    rounded = own.dtype in HALF or (not ordered.task.head and _is_mixed(inner))
    if mean is None or torch.isclose(own.double(), mean.double(), rtol=ROUNDED if rounded else EXACT, atol=1e-6):
        return
    name, task = type(inner).__name__, ordered.task.name
    rule = f"be the mean loss of the task {task!r}, {mean.item():.6g} on the first rows"
    remedy = (
        "Turn off the other parts of its loss in its configuration, or pass "
        f"compute_loss_func=OrderedLossFunc({task!r}, ...) to train on that loss alone."
    )
    raise ArgumentError(message("OrderedTrainer", f"the loss of {name}", rule, f"{own.item():.6g}", remedy))


def _first_rows(inputs: dict[str, Any]) -> dict[str, Any]:
    """The batch cut to a few rows, if all its tensors have as many."""
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    if len({value.shape[:1] for value in tensors}) != 1 or tensors[0].dim() == 0:
        return inputs
    return {name: value[:ROWS] if isinstance(value, Tensor) else value for name, value in inputs.items()}


def _mean_loss(ordered: OrderedLossFunc, outputs: Any, labels: Tensor) -> Tensor | None:
    """The plain mean over valid labels, with the router's loss; None without one, or if a unit is half ignored."""
    task = ordered.task
    logits, labels, valid, items = task.compare(outputs, labels, task.ignored)
    if valid is not None and int(items) * valid.numel() != int(valid.sum()) * labels.numel():
        return None  # models average both ends of an answer over their own numbers of samples
    with torch.no_grad():
        losses = ordered.loss_fn.criterion(logits, labels)
    losses = losses.flatten() if valid is None else losses[valid]
    return losses.mean() + ordered.router_loss(outputs) if losses.numel() else None


def _is_mixed(model: nn.Module) -> bool:
    """Whether logits may have been rounded on their way: by the weights' dtype, or by accelerate's autocast."""
    wrapped = hasattr(model, "_original_forward")
    return wrapped or any(weight.dtype in HALF for weight in model.parameters())
