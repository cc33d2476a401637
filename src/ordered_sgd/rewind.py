"""What a second pass over a batch, or a step that is given up, must not disturb: random numbers, buffers, counters."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode


class Copy(NamedTuple):
    """A buffer of a module by its name, the tensor that it was, and what that held."""

    module: nn.Module
    name: str
    buffer: Tensor
    value: Tensor


class Number(NamedTuple):
    """A Python number on a module, as a counter of calls; None where the module had none of that name."""

    module: nn.Module
    name: str
    value: float | None


class Saved(NamedTuple):
    """What a pass may change, as it was."""

    buffers: list[Copy]
    numbers: list[Number]


LEARNT_IN = 4  # times that buffers are saved: with micro-batches it is more than once before the model is run


class Buffers:
    """What a forward pass changes: running statistics, power iterations, and Python numbers such as counters.

    They are those of the model and of other modules that a pass runs, such as a criterion. Buffers of normalisation are
    known. Which others change is learnt, so that masks and tables are not copied at every step: from their values in
    the first steps, and later from their version counters, or when another tensor is in their place. Python numbers
    are learnt in the first steps alone.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        self.model, self.modules = model, (model, *others)
        self._none = all(next(module.buffers(), None) is None for module in self.modules)
        self._all: list[Copy] = []  # copies of all, while it is learnt
        self._saves = 0
        self._seen: dict[tuple[nn.Module, str], tuple[Tensor, int]] = {}
        self._changing: set[tuple[nn.Module, str]] = set()
        self._numbers: dict[nn.Module, dict[str, float]] = {}  # of all modules, while it is learnt
        self._counting: set[tuple[nn.Module, str]] = set()

    def save(self) -> Saved:
        """Copies of what may change: all of it at first, later what has changed so far."""
        self._learn()
        self._saves += 1
        learning = self._saves <= LEARNT_IN
        modules = [m for module in self.modules for m in module.modules()] if learning or not self._none else []
        found = [(m, name, b) for m in modules for name, b in m._buffers.items() if b is not None]
        # torch's kernels update running statistics without counting a version
        saved = [
            Copy(m, name, b, b.clone())
            for m, name, b in found
            if learning or (m, name) in self._changing or isinstance(m, _NormBase)
        ]
        self._all = saved if learning else []
        self._seen = {(m, name): (b, b._version) for m, name, b in found}
        self._numbers = {m: _numbers_of(m) for m in modules} if learning else {}
        counting = [Number(m, name, vars(m).get(name)) for m, name in self._counting]
        return Saved(saved, [Number(m, *one) for m, all_ in self._numbers.items() for one in all_.items()] or counting)

    @torch.no_grad()
    def load(self, saved: Saved, where: Tensor | None = None) -> None:
        """Put the copies back; with `where`, a 0-dim flag on the device, only if it is set, and only buffers."""
        self._learn()
        for module, name, buffer, value in saved.buffers:
            now = module._buffers[name]
            if where is not None and now is not None:
                new = torch.where(where > 0, value, now)
                if now is buffer:
                    buffer.copy_(new)
                else:
                    module._buffers[name] = buffer = new
            else:
                module._buffers[name] = buffer
                # writing would tell autograd that a saved tensor has changed
                if buffer.device.type != "cpu" or not torch.equal(buffer, value):
                    buffer.copy_(value)
            self._seen[module, name] = buffer, buffer._version  # this change was ours
        self._all = []
        if where is None:
            self._put_back(saved.numbers)

    def _put_back(self, numbers: list[Number]) -> None:
        """Set the numbers that a pass has changed; one that it has made is taken away."""
        known = {(module, name): value for module, name, value in numbers}
        for module, name in self._counting:
            value = known.get((module, name))
            if value is not None:
                vars(module)[name] = value
            else:
                vars(module).pop(name, None)
        self._numbers = {m: _numbers_of(m) for m in self._numbers}

    def _learn(self) -> None:
        """Note what has changed since it was last looked at."""
        for (module, name), (buffer, version) in self._seen.items():
            if module._buffers.get(name) is not buffer or buffer._version != version:
                self._changing.add((module, name))
        for module, name, buffer, value in self._all:
            if not torch.equal(buffer, value):  # by way of .data no version is counted
                self._changing.add((module, name))
        for module, before in self._numbers.items():
            self._counting |= {(module, name) for name, _ in before.items() ^ _numbers_of(module).items()}


def _numbers_of(module: nn.Module) -> dict[str, float]:
    """Python numbers and flags that a module holds, but whether it is in training."""
    held = vars(module).items()
    return {name: value for name, value in held if isinstance(value, int | float) and name != "training"}


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


def random_state(device: torch.device) -> list[Tensor]:
    """State of the generators that dropout draws from: the CPU's and, on an accelerator, the device's."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def restore_random_state(states: list[Tensor], device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.get_device_module(device).set_rng_state(states[1], device)


def same_random_state(a: list[Tensor], b: list[Tensor]) -> bool:
    """Whether nothing was drawn between two states of the same generators."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
