"""Any model, in place: its calls are compiled so that their backward skips samples without a gradient."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ordered_sgd.errors import message
from ordered_sgd.rewind import Buffers, is_unfinished
from ordered_sgd.selective.compiler import SelectiveBackend
from ordered_sgd.selective.explain import EXACT, BackwardReport, NotCompiledError, hint_for
from ordered_sgd.selective.runs import CheckedRuns
from ordered_sgd.selective.versions import why_not


class SelectiveCall:
    """What a model runs in place of its own call.

    Parameters
    ----------
    model
        Called with gradients it runs compiled, by a backend whose backward computes only samples that have a gradient;
        without gradients, inside a transform of torch.func or once something went wrong, as it is.
    lower
        Whether inductor compiles the graphs.
    """

    def __init__(self, model: nn.Module, *, lower: bool = False) -> None:
        self.model, self.lower = model, lower
        self.report = BackwardReport(hint=hint_for(model))
        backend = SelectiveBackend(self.report, eager_dropout=True, lower=lower)
        self._runs = CheckedRuns(model, Buffers(model), partial(_call, model), backend)
        self._entered, self._unfinished = Entered(), True
        _warn_if_not_entered(model, self._entered, self.report)
        reason = why_not()
        if reason is not None:
            self._give_up(reason)

    @torch._dynamo.disable(recursive=False)  # type: ignore[untyped-decorator]  # an outer torch.compile runs this as it is
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the model."""
        plain = partial(self.model._call_impl, *args, **kwargs)
        self._unfinished = self._unfinished and is_unfinished(self.model)
        if not torch.is_grad_enabled() or self.report.plain is not None or _in_transform() or self._unfinished:
            return plain()
        self._entered.once = True
        forwards = self._runs.backend.forwards
        try:
            batch = (args, kwargs)
            outputs, _ = self._runs(partial(self._runs.compiled, batch), plain, batch)
        except NotCompiledError as error:
            self._give_up(str(error))
            return plain()
        if self._runs.backend.forwards == forwards:
            why = "as with an LSTM or a backward hook inside, or past its limit of recompiles"
            self._give_up(f"torch.compile traced nothing, {why}")
        return outputs

    def forget(self) -> None:
        """The model is plain again: nobody is to be warned of that."""
        self._entered.once = True

    def _give_up(self, reason: str) -> None:
        self.report.plain = reason
        remedy = f"{EXACT} {self.report.hint}".strip()
        self.report.warn(message("selective_backward", "the model", "run selectively", reason, remedy))


def _call(model: nn.Module, batch: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    args, kwargs = batch
    return model._call_impl(*args, **kwargs)


@dataclass
class Entered:
    """Whether a selective model was called."""

    once: bool = False


def _warn_if_not_entered(model: nn.Module, entered: Entered, report: BackwardReport) -> None:
    """Warn with the first gradient of the first parameter if no call came before it."""
    parameter = next((p for p in model.parameters() if p.requires_grad and not is_lazy(p)), None)

    def look(_: Tensor) -> None:
        hook.remove()
        if not entered.once:
            got = "a gradient without a call of the model itself"
            remedy = "Call model(x), not model.forward(x), and use selective_backward(model, compile=True) in place of "
            remedy += "torch.compile(model) or model.compile()."
            rule = "be called for its backward to be selective"
            report.warn(message("selective_backward", "the model", rule, got, remedy))

    if parameter is not None:
        hook = parameter.register_post_accumulate_grad_hook(look)


def _in_transform() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None
