"""The engine that suits the model: never by timing, so that the same spec runs the same engine."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ordered_sgd.engines.dense import DenseEngine
from ordered_sgd.engines.phases import Ahead, Around, Computed, Engine, Kept, Parts, Scored, Stateless
from ordered_sgd.engines.rows import Rows, check_verify_every
from ordered_sgd.engines.twopass import TwoPass
from ordered_sgd.errors import first_line, message, warn
from ordered_sgd.rewind import device_of, random_state, restore_random_state
from ordered_sgd.watch import Watch, eagerly

log = logging.getLogger("ordered_sgd")

# Floating-point operations of one step (forward and backward) from which the rows engine pays for its overhead.
# `osgd bench step` shows on which side of it a model is faster.
ROWS_FROM = 1e8
# The share of a batch up to which two passes pay: a forward is about a third of a step.
TWOPASS_UP_TO = 0.6


@dataclass(frozen=True)
class Auto:
    """The engine that suits the model: plain when q keeps all, rows when that pays and samples are apart, else dense.

    A model with recurrent layers, which torch.compile does not trace or unrolls, runs in two passes; one with a GRU and
    dropout runs densely.

    It is always exact: a model with BatchNorm in training runs densely, and a warning says how to ask for the
    approximation by name.

    Parameters
    ----------
    verify_every : int, default=0
        As of `Rows`, where it is chosen.

    Examples
    --------
    >>> Auto()
    Auto(verify_every=0)
    """

    verify_every: int = 0

    def __post_init__(self) -> None:
        check_verify_every("Auto", self.verify_every)

    def build(self, parts: Parts) -> "AutoEngine":
        """The engine of one training."""
        return AutoEngine(parts, self)


class AutoEngine(Stateless):
    """Runs the first batches densely and counts their operations, then settles on an engine.

    With `told` the user has already chosen what happens where BatchNorm couples samples: nothing is warned of.
    """

    def __init__(self, parts: Parts, options: Auto, *, told: bool = False) -> None:
        self.parts, self.model, self.score = parts, parts.model, parts.score
        self.dense = DenseEngine(parts)
        self._rows, self._told = Rows(verify_every=options.verify_every), told
        self._why = parts.parallel.why_not_rows
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.modules())
        self._channels_last: bool | None = None if convolves else False  # None: not tried yet
        self._chosen: Engine | None = None
        self.operations: int | None = None  # of the first step in which a choice was possible

    @property
    def why(self) -> str | None:
        """Why the engine that was chosen runs otherwise than it promises, or why it was chosen."""
        return (None if self._chosen is None else self._chosen.why) or self._why

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch, by the engine that suits the model."""
        if self._channels_last is None:
            self._channels_last = self._runs_channels_last(batch)
        if self._channels_last:
            batch = (_channels_last(batch[0]), *batch[1:])
        if ahead.keeps_all or self.dense.parallel.why_not_rows is not None:
            return self.dense.forward(batch, ahead)
        if self._chosen is None and self.operations is not None:
            self.decide(self.operations)  # as a checkpoint tells
        if self._chosen is not None:
            return self._chosen.forward(batch, ahead)
        with _Operations() as counted:  # the first batch is computed densely, and counted
            return CountedScored(self.dense.forward(batch, ahead), counted, self)

    def state_dict(self) -> dict[str, Any]:
        """The operations of a step, by which the engine is chosen."""
        return {"operations": self.operations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Decide by the saved operations in the next step, so that a resumed run uses the same engine.

        Not now: BatchNorm may not be in training while a checkpoint is loaded.
        """
        operations = state["operations"]
        if operations is not None and operations != self.operations:
            self.operations, self._chosen = operations, None

    def decide(self, operations: int) -> None:
        """Settle on an engine by the floating-point operations of a step."""
        self.operations, self._why = operations, self.dense.parallel.why_not_rows
        if operations < ROWS_FROM and self._why is None:
            self._why = f"a step of {operations:.0e} operations is too small for rows to pay"
        elif self._why is None and self._couples():
            self._why = "BatchNorm in training couples the samples of a batch"
            remedy = 'Pass engine=Rows(batchnorm="full-batch") for an approximation in less time, or engine="dense".'
            if not self._told:
                warn(message("OrderedStep", "samples", "not influence each other to be skipped", self._why, remedy))
        recurrent = _recurrent_layers(self.model)
        if self._why is None and _draws(self.model) and not all(isinstance(layer, nn.LSTM) for layer in recurrent):
            self._why = "a GRU or RNN with dropout takes longer in two passes"  # every operation is looked at for draws
        if self._why is not None:
            self._chosen = self.dense
            log.info("engine auto runs dense: %s", self._why)
            return
        self._chosen = TwoPassesOrDense(self.parts, self.dense) if recurrent else self._rows.build(self.parts)
        log.info("engine auto runs %s: %.0e operations", "twopass" if recurrent else self._rows, operations)

    def _couples(self) -> bool:
        """Whether BatchNorm in training is trained itself; below frozen layers no gradient passes it, as rows finds."""
        norms = [module for module in self.model.modules() if isinstance(module, _BatchNorm) and module.training]
        return any(norm.weight is None or norm.weight.requires_grad for norm in norms)

    def _runs_channels_last(self, batch: Any) -> bool:
        """Whether the model runs on images laid out channels-last: one that takes a `view` of them may not."""
        laid_out = _channels_last(batch[0])
        if all(a is b for a, b in zip(tree_leaves(laid_out), tree_leaves(batch[0]), strict=True)):
            return True  # nothing to change so far
        if self.dense.parallel.over_ranks:  # a pass of its own would be one of all ranks: by the weights alone
            return convolves_channels_last(self.model)
        device, buffers = device_of(self.model), self.parts.buffers
        random, saved = random_state(device), buffers.save()
        try:
            with torch.no_grad(), eagerly(self.model.modules()):
                self.score((laid_out, *batch[1:]))
        except Exception as error:  # whatever a model raises of a layout that it does not expect
            log.info("engine auto leaves images as they are: %s", first_line(error))
            return False
        finally:
            torch.clear_autocast_cache()  # it holds weights that were cast without a graph
            restore_random_state(random, device)
            buffers.load(saved)
        return True


class TwoPassesOrDense(Stateless):
    """Two passes where few enough samples are expected to be kept, one dense pass otherwise."""

    def __init__(self, parts: Parts, dense: DenseEngine) -> None:
        self.dense, self.twopass = dense, TwoPass().build(parts)

    @property
    def why(self) -> str | None:
        """Why two passes do not run."""
        return self.twopass.why

    def forward(self, batch: Any, ahead: Ahead) -> Scored:
        """The losses of one batch."""
        pays = ahead.share is None or ahead.share <= TWOPASS_UP_TO
        return self.twopass.forward(batch, ahead) if pays else self.dense.forward(batch, ahead)


def _recurrent_layers(model: nn.Module) -> list[nn.RNNBase]:
    """Layers that torch.compile leaves alone, or unrolls into a graph that is slower than they are."""
    return [module for module in model.modules() if isinstance(module, nn.RNNBase)]


def _draws(model: nn.Module) -> bool:
    """Whether the model has dropout, in layers of its own or between recurrent ones."""
    rates = [module.p for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]
    return any(rates) or any(layer.dropout for layer in _recurrent_layers(model))


@dataclass(frozen=True)
class CountedScored(Around):
    """A plain step whose operations are counted, and the engine to be chosen by them."""

    counted: "_Operations"
    engine: AutoEngine

    def backward(self, kept: Kept) -> Computed:
        """Back-propagate through the whole batch, and choose the engine of the next steps: the same on all ranks."""
        with self.counted:
            computed = self.inner.backward(kept)
        self.engine.decide(self.engine.parts.parallel.largest(self.counted.total))
        return computed

    def abandon(self) -> Computed:
        """Leave the pass; the next one is counted."""
        return self.inner.abandon()


def _recurrent(x: Tensor, *rest: Any, out_val: Any, **options: Any) -> int:
    """Operations of the forward of a recurrent layer, shape (time, s, features): each weight is used at all of them."""
    del out_val, options
    weights = [leaf for leaf in tree_leaves(rest[:4]) if isinstance(leaf, Tensor) and leaf.dim() == 2]
    return 2 * x.shape[0] * x.shape[1] * sum(weight.numel() for weight in weights)


def _recurrent_backward(*given: Any, **options: Any) -> int:
    return 2 * _recurrent(*given, **options)


# what torch's own table does not know
_RECURRENT = {
    torch.ops.aten.mkldnn_rnn_layer: _recurrent,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    torch.ops.aten._cudnn_rnn: _recurrent,
    torch.ops.aten._cudnn_rnn_backward: _recurrent_backward,
}


class _Operations(Watch):
    """Counts the floating-point operations of products and convolutions, where nearly all of them are."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        packet: Any = getattr(func, "_overloadpacket", None)
        count = flop_registry.get(packet) or _RECURRENT.get(packet)
        if count is not None:
            with suppress(Exception):  # torch's formulas do not know every case, and a count must not cost a step
                self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def convolves_channels_last(model: nn.Module) -> bool:
    """Whether the model has convolutions, and the weights of all of them are laid out channels-last.

    >>> model = nn.Conv2d(1, 4, 3)
    >>> convolves_channels_last(model), convolves_channels_last(model.to(memory_format=torch.channels_last))
    (False, True)
    """
    # is_contiguous(memory_format=...) would say so of a single channel in either layout
    strides = [module.weight.stride(1) for module in model.modules() if isinstance(module, nn.Conv2d)]
    return bool(strides) and set(strides) == {1}


def _channels_last(x: Any) -> Any:
    """The inputs with images on the CPU laid out channels-last, in which convolutions are faster."""

    def lay_out(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() == 4 and leaf.is_floating_point() and leaf.device.type == "cpu":
            return leaf.to(memory_format=torch.channels_last)  # contiguous() leaves one channel as it is
        return leaf

    return tree_map(lay_out, x)
