"""The modules with parameters that a function calls itself, not by way of another module."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ordered_sgd.rewind import Buffers, device_of, random_state, restore_random_state

Found = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], bool]


class OutermostCalls:
    """Tells of the modules that a function calls, each just before its first call with gradients.

    A module that is watched has a function of ours in the place that torch has for compiled calls, which neither copies
    nor pickles take along. The first call takes it out of the module and of all modules inside. A module with compiled
    ones inside is passed over: these count as called by the function.

    Parameters
    ----------
    root
        It and the modules inside that have parameters are watched.
    found
        Given the module and what it is called with. It may change the module's call. If it returns False, modules
        inside count as called by the function.
    """

    def __init__(self, root: nn.Module, found: Found) -> None:
        self.inside = False
        self._found = found
        self._before: dict[nn.Module, Any] = {}
        for module in root.modules():
            if next(module.parameters(), None) is not None:
                self._before[module] = module._compiled_call_impl
                _set_call(module, functools.partial(self._first_call, module))

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function whose calls count."""

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self.inside = False

        return run

    def restore(self) -> None:
        """Stop watching."""
        for module, before in self._before.items():
            _set_call(module, before)
        self._before = {}

    def _first_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not self.inside or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return (self._before[module] or module._call_impl)(*args, **kwargs)
        _set_call(module, self._before.pop(module))
        if not self._compiled_inside(module) and self._found(module, args, kwargs):
            for part in module.modules():
                if part in self._before:
                    _set_call(part, self._before.pop(part))
        return module(*args, **kwargs)

    def _compiled_inside(self, module: nn.Module) -> bool:
        parts = [part for part in module.modules() if part is not module]
        return any(self._before.get(part) or isinstance(part, torch._dynamo.OptimizedModule) for part in parts)


class CallInside:
    """A selective call that runs while `calls` are inside their function; elsewhere the module runs as it is.

    Lightning calls a module in DistributedDataParallel to run its whole `training_step`.
    """

    def __init__(self, calls: OutermostCalls, module: nn.Module) -> None:
        call: Any = module._compiled_call_impl
        self._calls, self._module, self._selective = calls, module, call
        self.report, self.forget = call.report, call.forget
        _set_call(module, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of the module."""
        run = self._selective if self._calls.inside else self._module._call_impl
        return run(*args, **kwargs)


class _ReachedError(Exception):
    """Raised in place of the call that is looked for."""


def reaches(owner: Any, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of the module calls `owner.name`; buffers and random numbers are as before."""

    def reached(*_: Any, **__: Any) -> None:
        raise _ReachedError

    buffers, random, attributes = Buffers(module), random_state(device_of(module)), vars(owner)
    saved, before = buffers.save(), attributes[name]
    attributes[name] = reached
    try:
        with torch.no_grad():
            module._call_impl(*args, **kwargs)
    except _ReachedError:
        return True
    finally:
        attributes[name] = before
        buffers.load(saved)
        restore_random_state(random, device_of(module))
    return False


def _set_call(module: nn.Module, call: Any) -> None:
    vars(module)["_compiled_call_impl"] = call  # a module of torch.compile would hand the attribute on
