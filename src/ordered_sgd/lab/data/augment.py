"""Random changes of images, a whole batch at a time: crop, flip, affine map, erasing.

Each is drawn and applied apart. `draw` turns uniform numbers, a row for each image, into the parameters of the change;
`apply` is a function of images and parameters alone. An image's change depends on its row and on nothing else in the
batch, so that the same numbers cut into batches of another size change every image in the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ordered_sgd.errors import ArgumentError, message
from ordered_sgd.lab.data.protocol import Recipe

Numbers = NDArray[np.float64]


class Augmentation(Protocol):
    """A random change of images (s, c, h, w), uint8 or float."""

    numbers: ClassVar[int]  # uniform numbers that each image takes
    after_scaling: ClassVar[bool]  # False: applied to the stored bytes, a quarter of the memory to move

    def draw(self, u: Numbers, height: int, width: int) -> NDArray[Any]:
        """The parameters of the change, a row for each image, from numbers in [0, 1), shape (s, numbers)."""

    def apply(self, images: Tensor, drawn: NDArray[Any]) -> Tensor:
        """The changed images: a function of nothing but its arguments."""


def count_numbers(augmentations: Sequence[Augmentation]) -> int:
    """How many uniform numbers these changes take for each image.

    >>> count_numbers([PadCrop(4), Flip()])
    4
    """
    return sum(augmentation.numbers for augmentation in augmentations)


def augment(images: Tensor, augmentations: Sequence[Augmentation], u: Numbers) -> Tensor:
    """The images after all these changes, in this order, from numbers in [0, 1), shape (s, count_numbers(...)).

    Examples
    --------
    >>> images = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    >>> augment(images, [PadCrop(1), Flip()], np.array([[0.0, 0.5, 0.5, 0.9]]))[0, 0].tolist()
    [[0, 0, 0], [0, 1, 2], [3, 4, 5]]
    """
    start = 0
    for augmentation in augmentations:
        stop = start + augmentation.numbers
        images = augmentation.apply(images, augmentation.draw(u[:, start:stop], *images.shape[2:]))
        start = stop
    return images


@dataclass(frozen=True)
class PadCrop:
    """A window of the image's own size, somewhere in the image with a border of zeros: shifts by at most `padding`.

    With probability `flip` it is mirrored, left and right exchanged: faster than a `Flip` of its own.
    """

    padding: int
    flip: float = 0.0
    numbers: ClassVar[int] = 3
    after_scaling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise _refused("PadCrop", "padding", "be at least 0", self.padding)
        if not 0 <= self.flip <= 1:
            raise _refused("PadCrop", "flip", "be in [0, 1]", self.flip)

    def draw(self, u: Numbers, height: int, width: int) -> NDArray[np.int64]:
        """Top and left of the window in the padded image, from 0 to twice the padding, and 1 to mirror it."""
        drawn = (u[:, :3] * (2 * self.padding + 1)).astype(np.int64)
        drawn[:, 2] = u[:, 2] < self.flip
        return drawn

    def apply(self, images: Tensor, drawn: NDArray[np.int64]) -> Tensor:
        """The windows at these places."""
        return Bordered(images, self.padding).take(np.arange(len(images)), drawn)


class Bordered:
    """Images with zeros between them in memory: a shifted image is a slice, gathered and cropped in one copy.

    An image has `padding` columns of zeros on its right and rows of zeros below it; on its left and above it lie those
    of its neighbours. That takes (1 + padding / side) squared of the images' memory.
    """

    def __init__(self, images: Tensor, padding: int) -> None:
        n, c, h, w = images.shape
        self.row = w + padding
        plane = self.row * (h + padding)
        self.image = c * plane
        corner = padding * self.row + padding  # where the first pixel lies: before it are zeros
        flat = images.new_zeros(corner + n * self.image)
        flat.as_strided(images.shape, (self.image, plane, self.row, 1), corner).copy_(images)
        # all windows, named by where they start: the first one `corner` before the first pixel, the last one behind
        starts = (n - 1) * self.image + 2 * corner + 1
        self.windows = flat.as_strided((starts, c, h, w), (1, plane, self.row, 1))

    def take(self, positions: NDArray[np.int64], drawn: NDArray[np.int64]) -> Tensor:
        """Windows of the images at these positions, by what `PadCrop` has drawn for each: a copy an image."""
        top, left, mirrored = drawn.T
        start = positions * self.image + top * self.row + left
        kept = len(start) - np.count_nonzero(mirrored)
        if kept == len(start):
            return self.windows.index_select(0, _on(self.windows, start))
        order = np.argsort(mirrored, kind="stable")  # those to be mirrored last: one slice
        images = self.windows.index_select(0, _on(self.windows, start[order]))
        images[kept:] = images[kept:].flip(3)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return images.index_select(0, _on(images, back))


@dataclass(frozen=True)
class Flip:
    """The image or, with probability `p`, its mirror image, left and right exchanged."""

    p: float = 0.5
    numbers: ClassVar[int] = 1
    after_scaling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise _refused("Flip", "p", "be in [0, 1]", self.p)

    def draw(self, u: Numbers, height: int, width: int) -> NDArray[np.bool_]:
        """Whether to mirror."""
        return u[:, 0] < self.p

    def apply(self, images: Tensor, drawn: NDArray[np.bool_]) -> Tensor:
        """The images, those chosen mirrored."""
        rows = _on(images, np.flatnonzero(drawn))
        return images.index_copy(0, rows, images.index_select(0, rows).flip(3))


@dataclass(frozen=True)
class Affine:
    """The image turned by up to `degrees` either way and enlarged by a factor from `scale`, about its centre.

    Nearest neighbour, zeros outside. Coordinates are those of torchvision's RandomAffine on PIL images: a pixel's
    centre lies at a half, a positive angle turns clockwise, and positions are rounded to 1/65536 as PIL rounds them, so
    that the pixels are PIL's. (PIL takes another way, with other rounding, for an angle of exactly 0.)
    """

    degrees: float
    scale: tuple[float, float] = (1.0, 1.0)
    numbers: ClassVar[int] = 2
    after_scaling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.degrees <= 180:
            raise _refused("Affine", "degrees", "be between 0 and 180", self.degrees)
        if not 0 < self.scale[0] <= self.scale[1]:
            raise _refused("Affine", "scale", "be two positive numbers in ascending order", self.scale)

    def draw(self, u: Numbers, height: int, width: int) -> Numbers:
        """Angle in degrees and factor, both uniform."""
        low, high = self.scale
        return np.stack(((2 * u[:, 0] - 1) * self.degrees, low + (high - low) * u[:, 1]), axis=1)

    def apply(self, images: Tensor, drawn: Numbers) -> Tensor:
        """The turned and enlarged images."""
        s, c, h, w = images.shape
        across, down = (_on(images, part) for part in _sources(drawn, h, w))
        source = (across[:, :, None, :] + down[:, :, :, None]) >> 16  # (s, 2, h, w): column and row, with a border of 1
        column, row = source[:, 0].clamp_(0, w + 1), source[:, 1].clamp_(0, h + 1)  # outside: in the border of zeros
        position = row.mul_(w + 2).add_(column)
        pixels = F.pad(images, (1, 1, 1, 1)).reshape(s, c, -1)
        return pixels.gather(2, position.view(s, 1, h * w).expand(s, c, h * w)).view(s, c, h, w)


def _sources(drawn: Numbers, h: int, w: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where pixels come from in an image with a border of 1: (column, row) in units of 1/65536, to be added up.

    The first part, (s, 2, w), belongs to a pixel's x, the second, (s, 2, h), to its y.
    """
    angle, scale = np.deg2rad(drawn[:, 0]), drawn[:, 1]
    cos, sin = np.cos(angle) / scale, np.sin(angle) / scale
    along_x, along_y = np.stack((cos, -sin), axis=1), np.stack((sin, cos), axis=1)
    corner = (w / 2, h / 2) - along_x * (w / 2) - along_y * (h / 2)
    first = corner + along_x / 2 + along_y / 2  # the centre of the pixel in the corner
    across = _fixed(first + 1)[:, :, None] + _fixed(along_x)[:, :, None] * np.arange(w)
    return across, _fixed(along_y)[:, :, None] * np.arange(h)


def _fixed(values: Numbers) -> NDArray[np.int64]:
    return np.floor(values * 65536 + 0.5).astype(np.int64)


@dataclass(frozen=True)
class Erase:
    """The image, with probability `p` with a rectangle in it filled: random erasing (Zhong et al., 2017).

    The rectangle has a share of the image's area drawn from `area` and a ratio of height to width drawn from
    [aspect, 1/aspect], both uniform and drawn anew while it is not smaller than the image.

    Parameters
    ----------
    p, area, aspect
        As above; the defaults are those of Zhong et al.
    fill
        A value for every channel, in units of the scaled image.
    """

    p: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)
    aspect: float = 0.3
    fill: tuple[float, ...] = (0.0,)
    after_scaling: ClassVar[bool] = True
    # Draws before the image is left as it is. Zhong's code has 100; one draw fails with probability .05 on a square.
    attempts: ClassVar[int] = 10
    numbers: ClassVar[int] = 3 + 2 * attempts

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise _refused("Erase", "p", "be in [0, 1]", self.p)
        if not 0 < self.area[0] <= self.area[1] < 1:
            raise _refused("Erase", "area", "be two shares in (0, 1) in ascending order", self.area)
        if not 0 < self.aspect <= 1:
            raise _refused("Erase", "aspect", "be in (0, 1]", self.aspect)

    def draw(self, u: Numbers, height: int, width: int) -> NDArray[np.int64]:
        """Top, left, height and width of the rectangle; nothing is filled where height and width are 0."""
        (low, high), s = self.area, len(u)
        area = (low + (high - low) * u[:, 3 : 3 + self.attempts]) * (height * width)
        ratio = self.aspect + (1 / self.aspect - self.aspect) * u[:, 3 + self.attempts :]
        sizes = np.stack((np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio)))).astype(np.int64)
        fits = (sizes[0] < height) & (sizes[1] < width)  # (s, attempts)
        h, w = sizes[:, np.arange(s), fits.argmax(axis=1)] * (fits.any(axis=1) & (u[:, 0] < self.p))
        top, left = (u[:, 1] * (height - h + 1)).astype(np.int64), (u[:, 2] * (width - w + 1)).astype(np.int64)
        return np.stack((top, left, h, w), axis=1)

    def apply(self, images: Tensor, drawn: NDArray[np.int64]) -> Tensor:
        """The images with these rectangles filled."""
        if len(self.fill) not in (1, images.shape[1]):
            raise _refused("Erase", "fill", f"hold 1 or {images.shape[1]} values, one a channel", self.fill)
        top, left, h, w = drawn.T[:, :, None]
        y, x = np.arange(images.shape[2]), np.arange(images.shape[3])
        rows, columns = (y >= top) & (y < top + h), (x >= left) & (x < left + w)
        filled = _on(images, rows[:, None, :, None] & columns[:, None, None, :])
        fill = torch.tensor(self.fill, dtype=images.dtype, device=images.device)
        return torch.where(filled, fill.view(-1, 1, 1), images)


def augmentations_of(recipe: Recipe) -> tuple[Augmentation, ...]:
    """The changes that a recipe names, in the order of the published scripts: crop, flip, affine, erasing.

    >>> from ordered_sgd.lab.data.protocol import recipe
    >>> augmentations_of(recipe("cifar10", "standard"))
    (PadCrop(padding=4, flip=0.5),)
    """
    changes: list[Augmentation] = []
    if recipe.padding or recipe.flip:
        changes.append(PadCrop(recipe.padding, flip=0.5 if recipe.flip else 0.0))
    if recipe.degrees or recipe.zoom != (1.0, 1.0):
        changes.append(Affine(recipe.degrees, recipe.zoom))
    if recipe.erasing is not None:
        changes.append(Erase(*recipe.erasing))
    return tuple(changes)


def _on(images: Tensor, array: NDArray[Any]) -> Tensor:
    """The array as a tensor where the images are."""
    return torch.from_numpy(array).to(images.device)


def _refused(where: str, name: str, rule: str, got: object) -> ArgumentError:
    return ArgumentError(
        message(where, name, rule, got, "The recipes in ordered_sgd.lab.data.protocol have values that work.")
    )
