"""How the paper's data are scaled and changed at random, as plain data.

The paper's text says nothing about either, so its protocol and that of the scripts its authors published have the same
values here: the scripts', https://github.com/k9k2/qSGD. Random erasing follows its `cifar10_WideResNet` folder, mixup
the code of Verma et al. (2019), to which the text refers.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ordered_sgd.errors import ArgumentError, check_choice, message

Kind = Literal["none", "standard", "random-erasing", "mixup"]
KINDS: tuple[Kind, ...] = ("none", "standard", "random-erasing", "mixup")


class Scaling(NamedTuple):
    """Numbers per channel: what is subtracted from pixels in [0, 1], and what they are divided by then."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Erasing(NamedTuple):
    """Random erasing: probability, range of areas as shares of the image, lowest aspect ratio, value per channel."""

    p: float
    area: tuple[float, float]
    aspect: float
    fill: tuple[float, ...]


@dataclass(frozen=True)
class Recipe:
    """What happens to images between the file and the model. The default scales to [0, 1] and does nothing else.

    Parameters
    ----------
    scaling
        Applied after scaling to [0, 1]; None for [0, 1] alone.
    padding
        Zeros around an image before a window of its own size is cut out; 0 for no crop.
    flip
        Mirror half of the images, left and right exchanged.
    degrees, zoom
        Turn by up to so many degrees either way, enlarge by a factor from this range; nearest neighbour, zeros outside.
    erasing
        Fill a rectangle of some images.
    mixup
        Mix images in pairs with a weight from Beta(mixup, mixup).
    test_too
        Whether the test images are cropped, turned and flipped as well.
    """

    scaling: Scaling | None = None
    padding: int = 0
    flip: bool = False
    degrees: float = 0.0
    zoom: tuple[float, float] = (1.0, 1.0)
    erasing: Erasing | None = None
    mixup: float | None = None
    test_too: bool = False


_CIFAR10 = Scaling(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
_CIFAR10_MIXUP = Scaling(
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255), std=(63.0 / 255, 62.1 / 255, 66.7 / 255)
)  # of Verma et al.

# (data set, kind of augmentation) -> recipe. Without augmentation every set is scaled to [0, 1] only.
RECIPES: dict[tuple[str, Kind], Recipe] = {
    # The scripts' affine map is torchvision's, which at their time turned about a point half a pixel right of and below
    # the centre; ours turns about the centre, as torchvision does now.
    # In the scripts training and test set of Semeion are one object, and so share the augmentation.
    ("semeion", "standard"): Recipe(padding=1, degrees=4.0, zoom=(1.05, 1.05), test_too=True),
    ("mnist", "standard"): Recipe(padding=2, degrees=15.0, zoom=(0.85, 1.15)),
    ("kmnist", "standard"): Recipe(padding=2),
    ("fashion-mnist", "standard"): Recipe(padding=2, flip=True),
    ("cifar10", "standard"): Recipe(_CIFAR10, padding=4, flip=True),
    ("cifar100", "standard"): Recipe(padding=4, flip=True),
    ("svhn", "standard"): Recipe(padding=4, flip=True),  # digits are mirrored as well
    # The fill is in units of the scaled image, where the mean itself would be 0: so in the scripts.
    ("cifar10", "random-erasing"): Recipe(
        _CIFAR10, padding=4, flip=True, erasing=Erasing(0.5, (0.02, 0.4), 0.3, _CIFAR10.mean)
    ),
    ("cifar10", "mixup"): Recipe(_CIFAR10_MIXUP, padding=2, flip=True, mixup=1.0),
}


def recipe(name: str, kind: Kind = "none") -> Recipe:
    """The recipe of a data set in the paper's experiments, for both protocols.

    Parameters
    ----------
    name
        A data set; one that the paper does not use has no augmentation.
    kind
        ``"none"``, ``"standard"``, or for CIFAR-10 ``"random-erasing"`` and ``"mixup"``.

    Examples
    --------
    >>> recipe("fashion-mnist", "standard").padding, recipe("digits").flip
    (2, False)
    """
    check_choice("recipe", "kind", kind, KINDS)
    if kind == "none":
        return Recipe()
    if (name, kind) not in RECIPES:
        known = ", ".join(known for known, other in RECIPES if other == kind)
        remedy = f"It is known for {known}. For other data pass augment= to BatchSource."
        raise ArgumentError(message("recipe", "name", f"have the augmentation {kind!r}", repr(name), remedy))
    return RECIPES[name, kind]
