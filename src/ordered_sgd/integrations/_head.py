"""A language model's forward pass that stops before its output layer; needs nothing but torch.

`HeadForward` runs the model of a trainer. Where it can show that the logits are those of the output layer, possibly
scaled or capped, the layer does not run: its input takes the place of the logits as an `Unprojected`, from which the
loss function scores the tokens in blocks of the vocabulary. Otherwise the model runs as it is, and `ran` says why.
"""

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all
from torch.nn.parallel import DistributedDataParallel

from ordered_sgd.errors import first_line
from ordered_sgd.head import token_losses
from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state

log = logging.getLogger("ordered_sgd")
HEAD = "head: only kept tokens"
# by which models of Transformers multiply their logits, or divide them
_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
_CAPS = ("final_logit_softcapping", "logits_soft_cap")
_PROBED = 2  # entries per dimension of the batch that the probe returns: enough to compare, and small


class LogitForm(NamedTuple):
    """How a model makes its logits from the outputs of its output layer: scaled, then capped."""

    times: float = 1.0
    over: float = 1.0
    softcap: float | None = None

    def scaled(self, x: Tensor) -> Tensor:
        """The first part, which may as well be applied to the input of the layer and to its bias."""
        x = x if self.times == 1 else x * self.times
        return x if self.over == 1 else x / self.over

    def fits(self, x: Tensor, logits: Tensor) -> bool:
        """Whether the logits are exactly the form of x, in the dtype of either."""
        if x.shape != logits.shape:
            return False
        return any(torch.equal(self._of(x.to(dtype)).to(logits.dtype), logits) for dtype in {x.dtype, logits.dtype})

    def _of(self, x: Tensor) -> Tensor:
        x = self.scaled(x)
        return x if self.softcap is None else torch.tanh(x / self.softcap) * self.softcap


def logit_forms(config: Any) -> Iterator[LogitForm]:
    """The forms that the numbers of a configuration allow; the plain one first."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    numbers = [getattr(text, name, None) for name in _SCALES]
    scales = [LogitForm()]
    for number in numbers:
        if isinstance(number, int | float) and number not in (0, 1):
            scales += [LogitForm(times=number), LogitForm(over=number)]
    caps = [getattr(text, name, None) for name in _CAPS]
    for cap, scale in itertools.product([None, *filter(None, caps)], scales):
        yield scale._replace(softcap=cap)


@dataclass(frozen=True)
class Unprojected:
    """The input of an output layer in place of its logits, shape (s, T, d), and all that the losses need besides."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    form: LogitForm
    autocast: torch.dtype | None  # in which the layer would have run

    @property
    def device(self) -> torch.device:
        """Where the losses will be."""
        return self.hidden.device

    def losses(self, labels: Tensor, ignored: int | None) -> Tensor:
        """The cross-entropy of every token, and 0 where its label is the ignored one."""
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            return token_losses(
                self.form.scaled(self.hidden),
                self.weight,
                labels.long(),
                linear_bias=None if self.bias is None else self.form.scaled(self.bias),
                valid=None if ignored is None else labels != ignored,
                softcap=self.form.softcap,
            )


class _Reach(torch.autograd.Function):
    """The input itself, behind a node that leads to the layer's parameters.

    DistributedDataParallel searches the graph of the outputs for parameters that will get a gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor | None) -> Tensor:
        ctx.others = len(parameters)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return *gradients, *[None] * ctx.others


class HeadForward:
    """Runs a model for training, without its output layer where the losses are the same.

    Parameters
    ----------
    needs_logits
        Why logits are needed in any case, or None.

    Attributes
    ----------
    ran
        ``"head: only kept tokens"`` or ``"logits: "`` and the reason; None before the first pass.
    """

    def __init__(self, needs_logits: str | None) -> None:
        self.needs_logits = needs_logits
        self.ran: str | None = None
        self._layer: weakref.ref[nn.Module] | None = None  # what follows holds for this layer
        self._around: list[nn.Module] = []  # the modules that hold it
        self._form: LogitForm | str | None = None  # or the reason for logits
        self._buffers: Buffers | None = None

    def __call__(self, model: nn.Module, /, **inputs: Any) -> Any:
        """The model's outputs; without the output layer, a dict with an `Unprojected` under ``"logits"``."""
        layer = _output_layer(model)
        reason = self.needs_logits or _unfit(model, layer) or self._remembered(model, layer)
        if reason is not None:
            self._say(f"logits: {reason}")
            return model(**inputs)
        assert isinstance(layer, nn.Linear)
        found = self._try(model, layer, inputs)
        if not isinstance(found, str):
            self._say(HEAD)
            return found
        outputs = model(**inputs)  # an error that is not due to the missing layer is raised again here
        self._form = found
        self._say(f"logits: {found}")
        return outputs

    def _remembered(self, model: nn.Module, layer: nn.Module | None) -> str | None:
        """Why logits are needed, as far as it is known of this layer."""
        assert layer is not None
        if self._layer is None or self._layer() is not layer:
            self._layer, self._form, self._buffers = weakref.ref(layer), None, Buffers(model)
            self._around = [m for m in model.modules() if any(inner is layer for inner in m.modules())]
        if isinstance(self._form, str):
            return self._form
        return _watched(self._around)

    def _try(self, model: nn.Module, layer: nn.Linear, inputs: dict[str, Any]) -> dict[str, Any] | str:
        """The outputs without the output layer; or the reason why not, with everything as it was before."""
        assert self._buffers is not None
        device = device_of(model)
        state, held = random_state(device), self._buffers.save()
        try:
            if self._form is None:
                self._form = _probe(model, layer, inputs)
                restore_random_state(state, device)
                self._buffers.load(held)
                held = self._buffers.save()
            found = self._form if isinstance(self._form, str) else _without(model, layer, inputs, self._form)
        except Exception as error:  # the model may do anything with logits
            found = f"without its output layer the model raises {type(error).__name__}: {first_line(error)}"
        if isinstance(found, str):
            restore_random_state(state, device)
            self._buffers.load(held)
        return found

    def _say(self, ran: str) -> None:
        if ran != self.ran:
            self.ran = ran
            log.info("the ordered loss is computed from the %s", ran)


def logits_of(outputs: Any) -> Any:
    """The logits of a model's outputs, or what stands in their place."""
    return outputs["logits"] if isinstance(outputs, dict) else outputs[0]


def body_of(model: Any) -> nn.Module | None:
    """The module of a language model that computes the input of its output layer; None if it has no such part."""
    layer = _output_layer(model)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # inside an adapter of peft
    body = getattr(inner, "base_model", None)
    if layer is None or not isinstance(body, nn.Module) or any(module is layer for module in body.modules()):
        return None
    return body


def _output_layer(model: nn.Module) -> nn.Module | None:
    inner: Any = model.module if isinstance(model, DistributedDataParallel) else model
    try:
        layer = inner.get_output_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    if type(layer).__name__ == "ModulesToSaveWrapper":  # of peft: the copy that is trained runs in the layer's place
        with contextlib.suppress(KeyError, TypeError):
            layer = layer.modules_to_save[layer.active_adapter]
    return layer if isinstance(layer, nn.Module) else None


def _unfit(model: nn.Module, layer: nn.Module | None) -> str | None:
    """Why the output layer cannot be left out, as far as it can be seen from the outside."""
    if layer is None:
        return "the model has no output embeddings"
    if not isinstance(layer, nn.Linear) or type(layer).forward is not nn.Linear.forward:
        return f"the output layer is a {type(layer).__name__}, not a linear layer"
    if "forward" in vars(layer):
        return "the forward of the output layer has been replaced"
    weight: Tensor = layer.weight
    if type(weight) not in (Tensor, nn.Parameter) or weight.dim() != 2 or weight.numel() == 0:
        return "the weight of the output layer is sharded or quantized"
    if type(model).__module__.startswith("deepspeed"):
        return "DeepSpeed runs the model"
    if isinstance(model, DistributedDataParallel) and model.static_graph:
        return "DistributedDataParallel expects a static graph"
    return None


def _watched(around: list[nn.Module]) -> str | None:
    """Why a module that holds the output layer would notice that it is left out."""
    if hooks_of_all._global_forward_hooks:
        return "there are forward hooks for all modules"
    for module in around:
        name = type(module).__name__
        if name == "FullyShardedDataParallel":
            return "the weight of the output layer is sharded or quantized"
        if name == "OptimizedModule" or module._compiled_call_impl is not None:
            return f"{name} is compiled"
        if module._forward_hooks:
            return f"{name} has a forward hook, which would see no logits"
    return None


@contextlib.contextmanager
def _replaced(layer: nn.Linear, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within, calls of the layer run the function instead."""
    # an attribute of the object, which goes before the method of its class
    layer.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del layer.forward


def _autocast(x: Tensor) -> torch.dtype | None:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _probe(model: nn.Module, layer: nn.Linear, inputs: dict[str, Any]) -> LogitForm | str:
    """How the model makes its logits, found by random outputs of its output layer; or why this is not known.

    These have the size of the vocabulary and a wide range, so that a model that masks words, leaves some out or limits
    large logits is found out. What it does to positions shows in every pass, where the whole batch is compared.
    """
    given: list[Tensor] = []
    words, generator = layer.weight.shape[0], torch.Generator().manual_seed(0)

    def random_outputs(x: Tensor) -> Tensor:
        shape = *(min(n, _PROBED) for n in x.shape[:-1]), words
        ranges = torch.randint(-6, 13, shape, generator=generator)
        values = torch.randn(shape, generator=generator) * torch.pow(2.0, ranges)
        given.append(values.to(x.device, _autocast(x) or x.dtype))
        return given[-1].clone()

    inner = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.no_grad(), _replaced(layer, random_outputs):
        logits = logits_of(inner(**inputs))
    if len(given) != 1:
        return _calls(len(given))
    for form in logit_forms(getattr(inner, "config", None)):
        if isinstance(logits, Tensor) and form.fits(given[0], logits):
            return form
    return "the model changes its logits after the output layer"


def _without(model: nn.Module, layer: nn.Linear, inputs: dict[str, Any], form: LogitForm) -> dict[str, Any] | str:
    """The model's outputs with the input of its output layer in place of logits; or why they cannot be used."""
    seen: list[tuple[Tensor, Tensor, int, torch.dtype | None]] = []

    def remember(x: Tensor) -> Tensor:
        passed: Tensor = _Reach.apply(x, *layer.parameters())  # type: ignore[no-untyped-call]
        seen.append((x, passed, passed._version, _autocast(x)))
        return passed

    with _replaced(layer, remember):
        outputs = model(**inputs)
    if len(seen) != 1:
        return _calls(len(seen))
    hidden, passed, version, autocast = seen[0]
    logits = logits_of(outputs)
    changed = "the model changes its logits after the output layer"
    if not isinstance(logits, Tensor) or passed._version != version:
        return changed
    if logits.requires_grad != passed.requires_grad:
        return "the output layer runs in a part of the model that is computed twice"
    plain = logits is passed and form == LogitForm()  # then there is nothing to compare
    if not plain and not form.fits(passed.detach(), logits.detach()):
        return changed
    aux_loss = outputs.get("aux_loss") if isinstance(outputs, dict) else None
    return {"logits": Unprojected(hidden, layer.weight, layer.bias, form, autocast), "aux_loss": aux_loss}


def _calls(number: int) -> str:
    return f"the output layer runs {number} times in a forward pass, not once"
