"""Mini-batches from memory: the whole data set on the device, and a few operations per batch."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ordered_sgd.batches import algorithm_batches, epoch_batches
from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.data.augment import Augmentation, Bordered, PadCrop, augment, augmentations_of, count_numbers
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.mixup import Mixup
from ordered_sgd.lab.data.protocol import Recipe

Order = Literal["epoch", "algorithm", "stored"]
ORDERS: tuple[Order, ...] = ("epoch", "algorithm", "stored")


class Batch(NamedTuple):
    """A mini-batch on the source's device.

    Attributes
    ----------
    x : Tensor of shape (s, ...)
        Samples.
    y : Tensor of shape (s,) or (s, classes)
        Labels; with mixup, mixed one-hot labels.
    indices : Tensor of shape (s,)
        Positions of the samples in the data set.
    """

    x: Tensor
    y: Tensor
    indices: Tensor


class BatchSource:
    """Mini-batches of a data set held in memory: ``for x, y, indices in source`` is one epoch.

    A `torch.utils.data.DataLoader` can replace it, without the indices: ``for x, y, *_ in source`` works for both. Only
    one pass runs at a time; a pass that ended early is not resumed, except by `load_state_dict`.

    Parameters
    ----------
    dataset : Dataset
        Data set. Bytes are scaled to [0, 1] in float32, other numbers converted to float32 unchanged.
    s : int
        Batch size, at most the number of samples. The last batch of an epoch may be smaller.
    rng : int or numpy.random.Generator
        A seed, or a generator that only the source uses. `ordered_sgd.batches` draws the order of the samples from it;
        augmentation uses a generator spawned from it and does not change the order. No global generator is used.
    order : {"epoch", "algorithm", "stored"}, default="epoch"
        ``"epoch"`` shuffles all samples. ``"algorithm"`` draws each batch independently, without replacement within
        the batch, as Algorithm 1 does; an epoch has as many batches as with a shuffle. ``"stored"`` does not shuffle.
    augment : sequence of Augmentation, default=()
        Random changes of images, in this order; `Erase` comes after scaling, all others before it. With a `PadCrop`
        first, the set is stored with borders of zeros (`Bordered`), a quarter more memory for CIFAR-10.
    scale : tuple of two sequences of float or None, default=None
        Mean and standard deviation of each channel of an image in [0, 1], or of each column of a table.
    mixup : Mixup or None, default=None
        Mix samples in pairs. `y` then holds the mixed one-hot labels, shape (s, classes), which
        ``nn.CrossEntropyLoss(reduction="none")`` accepts; `indices` name the first sample of each pair.
    device : str or torch.device, default="cpu"
        Where the data set is stored and the batches are made.

    Examples
    --------
    >>> images = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2)
    >>> source = BatchSource(Dataset(images, np.arange(10) % 2, ("even", "odd"), "arrays"), 4, rng=0)
    >>> [(tuple(x.shape), x.dtype, len(indices)) for x, y, indices in source]
    [((4, 1, 2, 2), torch.float32, 4), ((4, 1, 2, 2), torch.float32, 4), ((2, 1, 2, 2), torch.float32, 2)]
    """

    def __init__(
        self,
        dataset: Dataset,
        s: int,
        *,
        rng: int | np.random.Generator,
        order: Order = "epoch",
        augment: Sequence[Augmentation] = (),
        scale: tuple[Sequence[float], Sequence[float]] | None = None,
        mixup: Mixup | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        check_choice("BatchSource", "order", order, ORDERS)
        _check_size(s, len(dataset))
        if augment and not dataset.images:
            got, remedy = f"samples of shape {dataset.x.shape[1:]}", "Leave augment= out."
            raise ArgumentError(message("BatchSource", "dataset", "hold images to be augmented", got, remedy))
        self.dataset, self.s, self.order = dataset, s, order
        self.mixup, self.device = mixup, torch.device(device)
        self._samples = _Samples(dataset.x, self.device, augment, scale)
        self.y = _on(self.device, dataset.y, as_it_is=dataset.y.dtype.kind != "f")
        self._rng = np.random.default_rng(rng)
        self._changes = self._rng.spawn(1)[0]
        self._start: dict[str, Any] | None = None  # state of the generator when the present pass began
        self._position = 0  # batches of the present pass that have been given out
        self._continues = False  # whether the next pass begins where a loaded one stopped
        self._pass = 0  # its number: an iterator that is not the newest one must not go on

    @classmethod
    def by_recipe(
        cls,
        dataset: Dataset,
        s: int,
        recipe: Recipe,
        *,
        rng: int | np.random.Generator,
        order: Order = "epoch",
        device: str | torch.device = "cpu",
    ) -> "BatchSource":
        """A source that scales and augments as a recipe says: test images only if it says so, and never with mixup.

        >>> from ordered_sgd.lab.data.protocol import recipe
        >>> blank = Dataset(np.zeros((5, 3, 32, 32), np.uint8), np.zeros(5, np.int64), ("a", "b"), "blank", "test")
        >>> source = BatchSource.by_recipe(blank, 5, recipe("cifar10", "standard"), rng=0, order="stored")
        >>> next(iter(source)).x[0, :, 0, 0].tolist()  # -mean / std
        [-2.42906..., -2.41825..., -2.22139...]
        """
        trains = dataset.split == "train"
        return cls(
            dataset,
            s,
            rng=rng,
            order=order,
            augment=augmentations_of(recipe) if trains or recipe.test_too else (),
            scale=recipe.scaling,
            mixup=Mixup(recipe.mixup) if trains and recipe.mixup is not None else None,
            device=device,
        )

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return -(-len(self.dataset) // self.s)

    def __iter__(self) -> Iterator[Batch]:
        """One epoch, or after `load_state_dict` the rest of the saved one."""
        if not self._continues:
            self._start, self._position = _state(self._rng), 0
        self._continues = False
        self._pass += 1
        batches = itertools.islice(self._indices(), len(self))
        return self._feed(itertools.islice(batches, self._position, None), self._pass)

    def state_dict(self) -> dict[str, Any]:
        """The state as numbers and strings, which ``torch.load(..., weights_only=True)`` can read.

        It can also be saved between two batches: the pass after `load_state_dict` then gives exactly the remaining
        batches, and none after the last one.
        """
        start = _state(self._rng) if self._start is None else self._start
        where = {"position": self._position, "rng": start, "changes": _state(self._changes)}
        return {**self._identity(), **where}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; a running pass ends."""
        for name, own in self._identity().items():
            if state[name] != own:
                remedy = "Build the source as the saved one was built."
                raise ArgumentError(
                    message("BatchSource", name, f"be {state[name]!r} as in the saved state", repr(own), remedy)
                )
        self._rng.bit_generator.state = state["rng"]
        self._start, self._position = state["rng"], state["position"]
        self._changes.bit_generator.state = state["changes"]
        self._continues = True
        self._pass += 1

    def _identity(self) -> dict[str, Any]:
        """Properties that a saved state and the source that loads it must share."""
        generator = type(self._rng.bit_generator).__name__
        return {"n": len(self.dataset), "s": self.s, "order": self.order, "generator": generator}

    def _indices(self) -> Iterator[NDArray[np.int64]]:
        """Positions of the samples, batch by batch."""
        n = len(self.dataset)
        if self.order == "epoch":
            return epoch_batches(n, self.s, self._rng)
        if self.order == "algorithm":
            return algorithm_batches(n, self.s, self._rng)
        return iter(np.split(np.arange(n), range(self.s, n, self.s)))

    def _feed(self, batches: Iterator[NDArray[np.int64]], number: int) -> Iterator[Batch]:
        for positions in batches:
            if number != self._pass:
                remedy = "Build a second BatchSource to go through the data inside the loop."
                raise ArgumentError(message("BatchSource", "a pass", "be the newest one", "an older one", remedy))
            self._position += 1
            yield self.batch(positions)
        if number == self._pass:
            self._start, self._position = None, 0

    def batch(self, positions: NDArray[np.int64]) -> Batch:
        """The samples at these positions, augmented and scaled."""
        indices = torch.from_numpy(positions).to(self.device)
        x, y = self._samples.take(positions, indices, self._changes), self.y.index_select(0, indices)
        if self.mixup is not None:
            mixed = self.mixup.apply(x, y, *self.mixup.draw(len(positions), self._changes))
            x, y = mixed.x, mixed.targets(len(self.dataset.classes))
        return Batch(x, y, indices)


class _Samples:
    """The samples on the device, gathered, augmented and scaled batch by batch."""

    def __init__(
        self,
        array: NDArray[Any],
        device: torch.device,
        changes: Sequence[Augmentation],
        scale: tuple[Sequence[float], Sequence[float]] | None,
    ) -> None:
        x = _on(device, array, as_it_is=array.dtype == np.uint8)
        self.size = x.shape[2:]
        self.shift, self.factor = _scaling(scale, x)
        self.before = [change for change in changes if not change.after_scaling]
        self.after = [change for change in changes if change.after_scaling]
        self.stored: Tensor | Bordered = x
        self.crop = PadCrop(0)
        if self.before and isinstance(self.before[0], PadCrop):  # then it is done while gathering
            self.crop = self.before[0]
            self.stored = Bordered(x, self.crop.padding)
            del self.before[0]
        cropping = self.crop.numbers if isinstance(self.stored, Bordered) else 0
        self.numbers = cropping, count_numbers(self.before), count_numbers(self.after)

    def take(self, positions: NDArray[np.int64], indices: Tensor, rng: np.random.Generator) -> Tensor:
        """The samples at these positions; `indices` are the same positions on the device."""
        cropping, before, after = self.numbers
        u = rng.random((len(positions), cropping + before + after))
        if isinstance(self.stored, Bordered):
            x = self.stored.take(positions, self.crop.draw(u, *self.size))
        else:
            x = self.stored.index_select(0, indices)
        x = augment(x, self.before, u[:, cropping:]).float()
        # x is the batch's own memory by now: scaled in place
        if self.shift is not None:
            x.sub_(self.shift)
        if self.factor is not None:
            x.mul_(self.factor)
        return augment(x, self.after, u[:, cropping + before :])


def _scaling(
    scale: tuple[Sequence[float], Sequence[float]] | None, x: Tensor
) -> tuple[Tensor | None, Tensor | float | None]:
    """Shift and factor of the samples, which also scale bytes to [0, 1]."""
    top = 255 if x.dtype == torch.uint8 else 1
    if scale is None:
        return None, 1 / top if top > 1 else None
    for values in scale:
        if len(values) not in (1, x.shape[1]):
            rule = f"have mean and std of 1 or {x.shape[1]} numbers"
            remedy = "Give one for every channel or column."
            raise ArgumentError(message("BatchSource", "scale", rule, len(values), remedy))
    if min(scale[1]) <= 0:
        remedy = "Leave out a column that does not vary."
        raise ArgumentError(message("BatchSource", "scale", "have positive deviations", min(scale[1]), remedy))
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, *(1,) * (x.dim() - 2)) for values in scale)
    return (mean * top).float().to(x.device), (1 / (std * top)).float().to(x.device)


def _check_size(s: int, n: int) -> None:
    if not 1 <= s <= n:
        remedy = "Use a batch size of at most the number of samples."
        raise ArgumentError(message("BatchSource", "s", f"be between 1 and n = {n}", s, remedy))


def _on(device: torch.device, array: NDArray[Any], *, as_it_is: bool) -> Tensor:
    """The array as a tensor, as it is or in float32."""
    if not as_it_is:
        array = array.astype(np.float32, copy=False)
    if not array.flags.writeable:  # torch shares memory with writeable arrays only
        array = array.copy()
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _state(rng: np.random.Generator) -> dict[str, Any]:
    """The generator's state in Python's own types."""
    state: dict[str, Any] = _plain(rng.bit_generator.state)
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
