"""What a second pass, or a step that is given up, must not disturb: random numbers, and what modules hold."""

import random
import sys
from collections.abc import Mapping, Set
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

LEARNT_IN = 4  # times that all tensors are copied: with micro-batches it is more than once before the model is run
SMALL = 2**14  # elements of a tensor that is always copied: it may change for the first time in any step
# what every module holds is not state of a forward pass; the compiled call is set by the user
_OWN = {*vars(nn.Module()), "_compiled_call_impl"}
_NUMBERS, _CONTAINERS = {int, float, bool, str, NoneType}, {list, dict}  # the first cannot be changed in place


class Held(NamedTuple):
    """What a module held besides parameters and modules, by name, and copies of what may be changed in place."""

    module: nn.Module
    buffers: dict[str, Tensor | None]
    others: dict[str, Any]
    copies: dict[str, Tensor]
    contents: dict[str, Any]
    hooks: tuple[dict[int, Any], dict[int, Any]]


Saved = list[Held]


class Buffers:
    """What a forward pass may change: buffers, and tensors, numbers, texts, lists, dicts and None that modules hold.

    They are those of the model and of other modules that a pass runs, such as a criterion. Examples are running
    statistics, power iterations, averages that start after some epochs, a recurrent state, a counter of calls, a cache.
    Of a list or a dict the entries are put back, not what they hold. Large tensors, as masks and tables, are not copied
    at every step: which of them change is learnt from their values in the first steps, and later from their version
    counters.
    """

    def __init__(self, model: nn.Module, *others: nn.Module) -> None:
        self.model, self.modules = model, (model, *others)
        self._saves = 0
        self._changing: set[tuple[nn.Module, str]] = set()  # large tensors
        self._last: Saved = []
        self._versions: dict[tuple[nn.Module, str], tuple[Tensor, int]] = {}

    def save(self) -> Saved:
        """What the modules hold now."""
        self._learn()
        self._saves += 1
        self._versions = {}
        modules = dict.fromkeys(m for module in self.modules for m in module.modules())
        # a lazy module turns into another one in its first pass
        saved = [self._held(module) for module in modules if not isinstance(module, LazyModuleMixin)]
        self._last = saved if self._saves <= LEARNT_IN else []
        return saved

    def _held(self, module: nn.Module) -> Held:
        buffers, others = dict(module._buffers), _others(module)
        copies, contents = {}, {}
        for name, value in (*others.items(), *buffers.items()):
            kind = type(value)
            if kind in _NUMBERS:
                continue
            if kind in _CONTAINERS:
                contents[name] = value.copy()
            elif not is_lazy(value):
                # torch's kernels update running statistics without counting a version
                small = value.numel() <= SMALL or isinstance(module, _NormBase)
                if small or self._saves <= LEARNT_IN or (module, name) in self._changing:
                    copies[name] = value.clone()
                if not small:
                    self._versions[module, name] = value, value._version
        hooks = dict(module._forward_hooks), dict(module._forward_pre_hooks)
        return Held(module, buffers, others, copies, contents, hooks)

    @torch.no_grad()
    def load(self, saved: Saved, where: Tensor | None = None) -> None:
        """Put all of it back; with `where`, a 0-dim flag on the device, only buffers, and only if it is set."""
        self._learn()
        for held in saved:
            if where is not None:
                _load_where(held, where)
                continue
            module = held.module
            _put_back(module._buffers, module._buffers.keys(), held.buffers)
            _put_back(vars(module), _others(module).keys(), held.others)
            for name, before in held.contents.items():
                _refill(held.others[name], before)
            _refill(module._forward_hooks, held.hooks[0])  # a pass may set them, together with a flag that says so
            _refill(module._forward_pre_hooks, held.hooks[1])
            for name, value in (held.others | held.buffers).items():
                copy = held.copies.get(name)
                # writing would tell autograd that a saved tensor has changed
                if copy is not None and (value.device.type != "cpu" or not torch.equal(value, copy)):
                    value.copy_(copy)
                if (module, name) in self._versions:
                    self._versions[module, name] = value, value._version  # this change was ours
        self._last = []

    def _learn(self) -> None:
        """Note which large tensors have changed since they were last looked at."""
        for (module, name), (tensor, version) in self._versions.items():
            if tensor._version != version:
                self._changing.add((module, name))
        for held in self._last:
            for name, copy in held.copies.items():
                value: Any = (held.others | held.buffers)[name]
                if (held.module, name) in self._versions and not torch.equal(value, copy):
                    self._changing.add((held.module, name))  # by way of .data no version is counted


def moved(before: Saved, after: Saved) -> str | None:
    """What modules hold otherwise than before, by name and kind of module; None where nothing is seen to differ."""
    earlier = {held.module: held for held in before}
    for held in after:
        if held.module not in earlier:
            return f"a {type(held.module).__name__}"
        name = _moved_in(earlier[held.module], held)
        if name is not None:
            return f"{name!r} of a {type(held.module).__name__}"
    return None


def _moved_in(before: Held, after: Held) -> str | None:
    old, new = before.others | before.buffers, after.others | after.buffers
    if old.keys() != new.keys():
        return next(iter(sorted(old.keys() ^ new.keys())))
    return next((name for name in new if _differs(name, before, after, old[name], new[name])), None)


def _differs(name: str, before: Held, after: Held, old: Any, new: Any) -> bool:
    """Whether an entry differs, by its copies where it has them."""
    if name in after.contents:
        return type(old) is not type(new) or not _same_entries(before.contents[name], after.contents[name])
    if type(new) in _NUMBERS:
        return type(old) is not type(new) or (old != new and old == old)  # NaN is like itself
    copy, earlier = after.copies.get(name), before.copies.get(name)
    if copy is None:
        return old is not new
    if earlier is None:  # copied from now on, since it was found to change
        return True
    return (copy.shape, copy.dtype) != (earlier.shape, earlier.dtype) or not torch.equal(copy, earlier)


def _others(module: nn.Module) -> dict[str, Any]:
    """Plain tensors, numbers, texts, lists, dicts and None that a module holds; a tensor of a graph is none of them."""
    found, held = {}, vars(module)
    for name in held.keys() - _OWN:
        value = held[name]
        kind = type(value)
        if kind in _NUMBERS or kind in _CONTAINERS or (isinstance(value, Tensor) and not value.requires_grad):
            found[name] = value
    return found


def _put_back(now: dict[str, Any], names: Set[str], before: Mapping[str, Any]) -> None:
    """Make the entries of these names those of before; what is new is taken away."""
    for name in names - before.keys():
        del now[name]
    for name, value in before.items():
        if now.get(name, now) is not value:
            now[name] = value


def _refill(now: Any, before: Any) -> None:
    """Make the entries of a list or a dict those of before, if one of them is another."""
    if not _same_entries(now, before):
        now.clear()
        (now.update if isinstance(now, dict) else now.extend)(before)


def _same_entries(now: Any, before: Any) -> bool:
    """Whether two lists or two dicts hold the same objects."""
    if len(now) != len(before):
        return False
    entries = (lambda held: [*held.keys(), *held.values()]) if isinstance(now, dict) else list
    return all(one is other for one, other in zip(entries(now), entries(before), strict=True))


def is_unfinished(model: nn.Module) -> bool:
    """Whether a first pass will make some of the model's parameters, as that of `nn.LazyLinear` does."""
    return any(isinstance(module, LazyModuleMixin) for module in model.modules())


def _load_where(held: Held, where: Tensor) -> None:
    """Put the buffers of a module back if the flag is set."""
    for name, buffer in held.buffers.items():
        now, copy = held.module._buffers.get(name), held.copies.get(name)
        if now is None or copy is None or buffer is None:
            continue
        new = torch.where(where > 0, copy, now)
        if now is buffer:
            buffer.copy_(new)
        else:
            held.module._buffers[name] = new


class RandomState(NamedTuple):
    """States of the generators that a model may draw from: torch's for the CPU and the device, Python's and NumPy's."""

    torch: list[Tensor]
    python: Any
    numpy: Any


def random_state(device: torch.device) -> RandomState:
    """The states now."""
    states = [torch.get_rng_state()]
    if device.type not in ("cpu", "meta"):
        states.append(torch.get_device_module(device).get_rng_state(device))
    numpy = sys.modules.get("numpy")
    return RandomState(states, random.getstate(), None if numpy is None else numpy.random.get_state())


def restore_random_state(state: RandomState, device: torch.device) -> None:
    """Put the generators back."""
    torch.set_rng_state(state.torch[0])
    if len(state.torch) > 1:
        torch.get_device_module(device).set_rng_state(state.torch[1], device)
    restore_host_random_state(state)


def restore_host_random_state(state: RandomState) -> None:
    """Put Python's and NumPy's generators back."""
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy"].random.set_state(state.numpy)


def same_random_state(a: RandomState, b: RandomState) -> bool:
    """Whether nothing was drawn from torch's generators in between."""
    return all(torch.equal(one, other) for one, other in zip(a.torch, b.torch, strict=True))


def same_host_random_state(a: RandomState, b: RandomState) -> bool:
    """Whether nothing was drawn from Python's and NumPy's generators in between."""
    if a.python != b.python or a.numpy is None or b.numpy is None:
        return bool(a.python == b.python)
    equal = sys.modules["numpy"].array_equal
    return all(equal(one, other) for one, other in zip(a.numpy, b.numpy, strict=True))


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter lives."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
