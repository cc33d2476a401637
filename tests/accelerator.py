"""A simulated accelerator: the device type ``sim``, which counts what makes the host wait and refuses mixed devices.

`register` uses torch's hook for backends written in Python. Tensors on the device are plain `torch.Tensor` objects of
device type ``sim``; each of their storages stands for a storage on the CPU. One fallback kernel runs every operator on
the CPU storages, so that autograd, optimizers and torch.compile treat the device as any other.

What it simulates: a device with memory of its own, one stream, events and a random generator. Copies to the host with
``non_blocking=True`` arrive when an event after them is waited for, and hold garbage before that. What it does not
simulate: speed, kernels and rounding of a GPU, pinned memory, several streams or devices, NCCL, autocast.

The registration holds for the whole process and cannot be undone, and it makes `torch.accelerator.is_available()` true.
Tests therefore use the device in a process of its own: `tests/test_accelerator.py` starts `tests/accelerator_cases.py`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "sim"
aten = torch.ops.aten

# Operators whose result, or its size, the host must know. `item`, `bool`, `float`, `allclose` end in the first.
_READS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave.Tensor",
}
_INDEXED = {
    "aten::index.Tensor",
    "aten::index_put_",
    "aten::_index_put_impl_",
}  # by a mask: its true elements are counted
_SWEEP = 512  # allocations between two looks for storages that are gone


class MixedDevicesError(RuntimeError):
    """An operator was given tensors, or a generator, of different devices."""


@dataclass
class Waits:
    """What made the host wait, each as the operator and the line of the library that it came from.

    Parameters
    ----------
    reads
        Numbers, or sizes of results, that the host read: it waits until the device has done everything before.
    uploads
        Blocking copies to the device, which wait for it as well (https://github.com/pytorch/pytorch/issues/120996).
    events
        Waits for an event: until a copy that was sent before has arrived, while the device works on.
    """

    reads: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int]:
        """How often the host waited for the whole queue, and how often for an event."""
        return len(self.reads) + len(self.uploads), len(self.events)


_waits = Waits()


@contextmanager
def watching() -> Iterator[Waits]:
    """What makes the host wait in a block."""
    global _waits
    before, _waits = _waits, Waits()
    try:
        yield _waits
    finally:
        _waits = before


class _Memory:
    """The CPU storage behind every storage of the device."""

    def __init__(self) -> None:
        self._cells: dict[int, tuple[StorageWeakRef, torch.UntypedStorage]] = {}
        self._allocated = 0

    def hold(self, host: Tensor) -> Tensor:
        """A tensor of the device with the numbers and the layout of one on the CPU."""
        self._allocated += 1
        if self._allocated % _SWEEP == 0:
            self._cells = {key: cell for key, cell in self._cells.items() if not cell[0].expired()}
        tensor = torch._C._acc.create_empty_tensor((0,), host.dtype)
        resize(tensor, host)
        storage = tensor.untyped_storage()
        self._cells[storage._cdata] = StorageWeakRef(storage), host.untyped_storage()
        return tensor

    def host(self, tensor: Tensor) -> Tensor:
        """The tensor of the CPU that shares its numbers with one of the device."""
        _, storage = self._cells[tensor.untyped_storage()._cdata]
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(storage, *place)


def resize(tensor: Tensor, like: Tensor) -> None:
    """Give a tensor of the device the layout of another one; no memory is touched."""
    place = like.storage_offset(), like.shape, like.stride()
    aten.set_.source_Storage_storage_offset.redispatch(_meta(), tensor, tensor.untyped_storage(), *place)


def view(base: Tensor, like: Tensor) -> Tensor:
    """A view of the storage of `base` with the sizes and strides of another tensor."""
    if base.dtype != like.dtype:
        raise NotImplementedError(f"a view of {base.dtype} as {like.dtype} on {NAME}")
    return aten.as_strided.default.redispatch(_meta(), base, like.shape, like.stride(), like.storage_offset())


def _meta() -> Any:
    return torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


_memory = _Memory()
_sent: list[tuple[Tensor, Tensor]] = []  # copies to the host that have not arrived: where to, and what


def _arrive(copies: list[tuple[Tensor, Tensor]]) -> None:
    for host, value in copies:
        host.copy_(value)
    _sent[:] = [copy for copy in _sent if not any(copy[0] is host for host, _ in copies)]


class Event:
    """Marks a point in the queue."""

    def __init__(self) -> None:
        self._before: list[tuple[Tensor, Tensor]] = []

    def record(self, stream: object) -> None:
        """Everything so far comes before it."""
        self._before = list(_sent)

    def synchronize(self) -> None:
        """Wait for what comes before it."""
        _waits.events.append(f"event{_origin()}")
        _arrive(self._before)


class _Module:
    """What ``torch.get_device_module("sim")`` returns."""

    Event = Event

    def __init__(self) -> None:
        self._random = torch.Generator().manual_seed(0).get_state()

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def current_stream(self, device: object = None) -> str:
        return "the only one"

    def get_device_name(self, device: object = None) -> str:
        return "simulated accelerator"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def synchronize(self, device: object = None) -> None:
        _waits.reads.append(f"synchronize{_origin()}")
        _arrive(list(_sent))

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    manual_seed = manual_seed_all

    def get_rng_state(self, device: object = None) -> Tensor:
        return self._random.clone()

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        self._random = state.clone()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """The CPU's generator stands in for the device's."""
        before = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
            self._random = torch.get_rng_state()
        finally:
            torch.set_rng_state(before)


_module = _Module()
_libraries: list[Any] = []  # kernels are registered as long as their library lives


def register() -> None:
    """Make the device known to torch, for the rest of the process."""
    if _libraries:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_module)
    library, convolutions = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    library.fallback(_run, "PrivateUse1")
    convolutions.impl("convolution_overrideable", _convolution, "PrivateUse1")
    convolutions.impl("convolution_backward_overrideable", _convolution_backward, "PrivateUse1")
    _libraries.extend([library, convolutions])


def _convolution(*args: Any) -> Any:
    return _run(aten.convolution.default, *args)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any, **named: Any) -> Any:
    bias_sizes = [gradient.shape[1]]
    return _run(aten.convolution_backward.default, gradient, x, weight, bias_sizes, *rest, **named)


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU storages of its arguments."""
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if op.name() == "aten::_copy_from":
        return _copy(*args, **kwargs)
    _refuse_mixtures(op, tensors, leaves)
    _note(op, args, tensors)
    hosts = {id(t): _memory.host(t) for t in tensors if _is_mine(t)}

    def there(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return hosts.get(id(leaf), leaf)
        return torch.device("cpu") if isinstance(leaf, torch.device) and leaf.type == NAME else leaf

    args = _numbers_as_tensors(op, args)
    with _module.drawing() if torch.Tag.nondeterministic_seeded in op.tags else nullcontext():
        found = op(*tree_map(there, args), **tree_map(there, kwargs))
    owners = {hosts[id(t)].untyped_storage()._cdata: t for t in tensors if id(t) in hosts}
    for tensor in tensors:  # `out=` may have another size now
        if id(tensor) in hosts and hosts[id(tensor)].shape != tensor.shape:
            resize(tensor, hosts[id(tensor)])

    def back(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        given = [t for t in tensors if hosts.get(id(t)) is leaf]
        if given:
            return given[0]
        owner = owners.get(leaf.untyped_storage()._cdata)
        return _memory.hold(leaf) if owner is None else view(owner, leaf)

    return tree_map(back, found)


def _numbers_as_tensors(op: Any, args: Any) -> tuple[Any, ...]:
    """The arguments with numbers in the place of tensors, as C++ hands them on, made tensors that promote alike."""
    kinds = [argument.type.kind() for argument in op._schema.arguments]
    first = next((a for a in args if isinstance(a, Tensor)), None)
    return tuple(
        torch.scalar_tensor(a, dtype=torch.result_type(first, a))
        if kind == "TensorType" and first is not None and isinstance(a, int | float)
        else a
        for a, kind in zip(args, kinds, strict=False)
    )


def _copy(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What every `copy_`, `to`, `cpu` and `tolist` ends in."""
    numbers, place = (_memory.host(t) if _is_mine(t) else t for t in (source, target))
    if not _is_mine(target) and non_blocking:
        _sent.append((target, numbers.clone()))
        target.fill_(torch.nan if target.is_floating_point() else -1)  # not there yet
        return target
    if not _is_mine(target):
        _waits.reads.append(f"copy to the host{_origin()}")
        _arrive(list(_sent))
    elif not _is_mine(source) and not non_blocking:
        _waits.uploads.append(f"copy to the device{_origin()}")
    place.copy_(numbers)
    return target


def _refuse_mixtures(op: Any, tensors: list[Tensor], leaves: list[Any]) -> None:
    """Raise for tensors of the CPU beside those of the device, but for single numbers; CUDA is less strict."""
    strangers = [t for t in tensors if not _is_mine(t) and t.dim() > 0]
    if strangers and len(strangers) < len(tensors):
        shapes = ", ".join(f"{t.device.type} {tuple(t.shape)}" for t in tensors)
        raise MixedDevicesError(f"{op.name()} mixes devices{_origin()}: {shapes}")
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        raise MixedDevicesError(f"{op.name()} on {NAME} was given a generator of the CPU{_origin()}")


def _note(op: Any, args: Any, tensors: list[Tensor]) -> None:
    """Count what a GPU would wait for."""
    name = op.name()
    masks = name in _INDEXED and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in args[1])
    if name in _READS or masks:
        _waits.reads.append(f"{name.removeprefix('aten::')}{_origin()}")
        _arrive(list(_sent))
    elif name.startswith("aten::where") and not all(_is_mine(t) for t in tensors):
        # torch copies the number to the device first (where_self_out in TensorCompare.cpp)
        _waits.uploads.append(f"where with a tensor of the CPU{_origin()}")


def _is_mine(tensor: Tensor) -> bool:
    return tensor.device.type == NAME


def _origin() -> str:
    """The line of the library that is being run, if any."""
    frame: Any = sys._getframe(1)
    inside = f"{os.sep}ordered_sgd{os.sep}"
    while frame is not None and inside not in frame.f_code.co_filename:
        frame = frame.f_back
    return "" if frame is None else f" in {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
