"""Looking at the operators of a pass: what they draw, how much they compute, which parameters they write to."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Looks at every operator; inside, nothing is compiled, since torch refuses to while operators are looked at."""

    supports_higher_order_operators = True  # such as flex_attention: they run as they are

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._inside: list[AbstractContextManager[None]] = []

    def __enter__(self) -> Self:
        self._inside.append(eagerly())
        self._inside[-1].__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._inside.pop().__exit__(*raised)


class Writes(Watch):
    """Keeps parameters as they were before a pass that writes to them, as one that moves an average of weights.

    Parameters
    ----------
    model
        Whose parameters are watched; an embedding that bounds the norm of its rows may do so: a second time it changes
        nothing.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        named = [(name, p, p.detach()) for name, p in model.named_parameters() if type(p) is nn.Parameter]
        self._before = named
        self._stored = {_storage(held): (name, p) for name, p, held in named}
        self._copies: dict[str, tuple[nn.Parameter, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable and func is not torch.ops.aten.embedding_renorm_.default:
            for given, argument in zip(args, schema.arguments, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(given, Tensor):
                    self._keep(given)
        return func(*args, **(kwargs or {}))

    def _keep(self, written: Tensor) -> None:
        name, p = self._stored.get(_storage(written), (None, None))
        if name is not None and p is not None and name not in self._copies:
            self._copies[name] = p, p.detach().clone()

    def undone(self) -> str | None:
        """The name of a parameter that was written to, after all of them were put back; None if none was."""
        replaced = {
            name: (p, held)
            for name, p, held in self._before
            if _storage(p) != _storage(held) and not torch.equal(p, held)
        }
        for p, held in replaced.values():
            p.data = held
        for p, value in self._copies.values():
            p.data.copy_(value)
        return next(iter(self._copies | replaced), None)


def _storage(tensor: Tensor) -> int:
    """What tells storages apart; the address of the data does not on every device."""
    number: int = tensor.untyped_storage()._cdata
    return number


@contextmanager
def eagerly(modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Inside, what the user compiled runs as if it were not, and the given modules are called plainly."""
    compiled = [(module, module._compiled_call_impl) for module in modules if module._compiled_call_impl is not None]
    with ExitStack() as undo:
        if "torch._dynamo" in sys.modules:
            undo.enter_context(torch.compiler.set_stance("force_eager"))
        for module, call in compiled:
            undo.callback(setattr, module, "_compiled_call_impl", call)
            module._compiled_call_impl = None
        yield
