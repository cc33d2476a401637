"""What is advised on, by name: a function of yours, or a data set and a model of the laboratory."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ordered_sgd.errors import ArgumentError, OrderedSGDError, message
from ordered_sgd.lab.experiments.evaluate import batches
from ordered_sgd.lab.experiments.own import imported_function, is_function, told
from ordered_sgd.lab.experiments.own_table import fitting
from ordered_sgd.lab.experiments.run import check_fit, counted, problem_for
from ordered_sgd.lab.experiments.setting import Setting
from ordered_sgd.lab.experiments.spec import ExperimentSpec
from ordered_sgd.lab.experiments.torch_epochs import optimizer_for

_RULE, _REMEDY = (
    "return (model, criterion, loader) or (model, criterion, loader, optimizer)",
    "As in your training loop.",
)


class LoopParts(NamedTuple):
    """What `advise` is called with."""

    model: nn.Module
    criterion: Callable[..., Tensor]
    loader: Any
    optimizer: Optimizer | None = None


def from_function(name: str, spec: ExperimentSpec) -> LoopParts:
    """What a function of the user's returns: the parts of a training loop, or ``(data, model)`` as for `compare`."""
    if not is_function(name):
        remedy = "Run: osgd advise my.module:function, or osgd advise --data table.csv"
        raise ArgumentError(message("advise", "FUNCTION", "be named package.module:function", repr(name), remedy))
    function = imported_function(name, "FUNCTION")
    try:
        returned = function()
    except OrderedSGDError:
        raise
    except Exception as error:
        remedy = "Correct it; the traceback is shown by: osgd --debug advise ..."
        raise ArgumentError(message("advise", name, "run without an error", told(error), remedy)) from error
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], nn.Module):
        return from_spec(spec.but(data=name, model=name))
    if not (isinstance(returned, tuple) and len(returned) in (3, 4) and isinstance(returned[0], nn.Module)):
        kinds = ", ".join(type(part).__name__ for part in returned) if isinstance(returned, tuple) else ""
        raise ArgumentError(message("advise", name, _RULE, kinds or type(returned).__name__, _REMEDY))
    return LoopParts(*returned)


def from_spec(spec: ExperimentSpec) -> LoopParts:
    """The model, loss, batches and optimizer of an experiment."""
    spec = counted(spec)
    problem = problem_for(spec)
    spec = fitting(spec, problem.train, engine=True)
    check_fit(spec, problem)
    setting = Setting(spec, *problem)
    return LoopParts(setting.model, setting.criterion, _Batches(setting), optimizer_for(spec, setting.model))


class _Batches:
    """The batches of an experiment as a loader."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, y) for x, y, _ in batches(self.setting.source, self.setting.model))

    def __len__(self) -> int:
        return len(self.setting.source)
