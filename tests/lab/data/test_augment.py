"""Every change against an implementation of its own, pixel by pixel: PIL where PIL has it, a slow loop where not."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from scipy import stats

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.augment import (
    Affine,
    Bordered,
    Erase,
    Flip,
    PadCrop,
    augment,
    augmentations_of,
    count_numbers,
)
from ordered_sgd.lab.data.protocol import RECIPES, Recipe, recipe

# (channels, height, width): the paper's sets, and odd sizes
SHAPES = [(1, 28, 28), (1, 16, 16), (3, 32, 32), (3, 15, 23), (1, 7, 5), (1, 1, 1)]
S = 40


def random_images(shape: tuple[int, int, int], dtype: str = "uint8") -> NDArray[np.generic]:
    """Images without a zero, so that what comes from outside is told apart."""
    images = np.random.default_rng(0).integers(1, 256, (S, *shape))
    return (images / 7).astype(np.float32) if dtype == "float32" else images.astype(np.uint8)


def to_pil(image: NDArray[np.generic]) -> list[Image.Image]:
    """An RGB picture for three channels of bytes, else a picture for every channel."""
    if image.shape[0] == 3 and image.dtype == np.uint8:
        return [Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))]
    return [Image.fromarray(channel) for channel in image]


def from_pil(pictures: list[Image.Image]) -> NDArray[np.generic]:
    arrays = [np.asarray(picture) for picture in pictures]
    return arrays[0].transpose(2, 0, 1) if arrays[0].ndim == 3 else np.stack(arrays)


def uniform(augmentation, s: int = S, seed: int = 1) -> NDArray[np.float64]:
    return np.random.default_rng(seed).random((s, augmentation.numbers))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_crop_is_pil_s(shape: tuple[int, int, int], padding: int, flip: float, dtype: str) -> None:
    _, h, w = shape
    images, crop = random_images(shape, dtype), PadCrop(padding, flip=flip)
    drawn = crop.draw(uniform(crop), h, w)
    cropped = crop.apply(torch.from_numpy(images), drawn)
    for image, (top, left, mirror), own in zip(images, drawn, cropped.numpy(), strict=True):
        padded = [ImageOps.expand(picture, border=padding, fill=0) for picture in to_pil(image)]
        pictures = [picture.crop((left, top, left + w, top + h)) for picture in padded]
        if mirror:
            pictures = [ImageOps.mirror(picture) for picture in pictures]
        np.testing.assert_array_equal(own, from_pil(pictures))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_flip_is_pil_s(shape: tuple[int, int, int], p: float) -> None:
    images, flip = random_images(shape), Flip(p)
    drawn = flip.draw(uniform(flip), *shape[1:])
    flipped = flip.apply(torch.from_numpy(images), drawn)
    for image, mirror, own in zip(images, drawn, flipped.numpy(), strict=True):
        pictures = [ImageOps.mirror(picture) if mirror else picture for picture in to_pil(image)]
        np.testing.assert_array_equal(own, from_pil(pictures))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize(("degrees", "scale"), [(15, (0.85, 1.15)), (4, (1.05, 1.05)), (180, (0.2, 5.0))])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_affine_map_is_pil_s(
    shape: tuple[int, int, int], degrees: float, scale: tuple[float, float], dtype: str
) -> None:
    _, h, w = shape
    images, affine = random_images(shape, dtype), Affine(degrees, scale)
    drawn = affine.draw(uniform(affine), h, w)
    turned = affine.apply(torch.from_numpy(images), drawn)
    for image, (angle, factor), own in zip(images, drawn, turned.numpy(), strict=True):
        # PIL asks where a pixel comes from: the inverse of a clockwise turn and an enlargement about the centre
        a, b = math.cos(math.radians(angle)) / factor, math.sin(math.radians(angle)) / factor
        x, y = w / 2, h / 2
        inverse = (a, b, x - a * x - b * y, -b, a, y + b * x - a * y)
        how = (Image.Transform.AFFINE, inverse, Image.Resampling.NEAREST)
        pictures = [picture.transform((w, h), *how, fillcolor=0) for picture in to_pil(image)]
        np.testing.assert_array_equal(own, from_pil(pictures))


def test_a_quarter_turn_is_clockwise_and_about_the_centre() -> None:
    images = torch.from_numpy(random_images((3, 32, 32)))
    turned = Affine(180).apply(images, np.tile([90.0, 1.0], (S, 1)))
    assert torch.equal(turned, images.rot90(-1, dims=(2, 3)))


def test_no_turn_at_scale_one_changes_nothing() -> None:
    images = torch.from_numpy(random_images((1, 15, 23)))
    assert torch.equal(Affine(0).apply(images, np.tile([0.0, 1.0], (S, 1))), images)


@pytest.mark.parametrize("fill", [(0.5,), (0.1, 0.2, 0.3)])
@pytest.mark.parametrize(("h", "w"), [(32, 32), (15, 23)])
def test_erasing_is_a_loop_over_pixels(h: int, w: int, fill: tuple[float, ...]) -> None:
    images, erase = torch.from_numpy(random_images((3, h, w), "float32")), Erase(fill=fill)
    drawn = erase.draw(uniform(erase), h, w)
    expected = images.clone()
    for image, (top, left, height, width) in zip(expected, drawn.tolist(), strict=True):
        for row in range(top, top + height):
            for column in range(left, left + width):
                image[:, row, column] = torch.tensor(fill)
    assert torch.equal(erase.apply(images, drawn), expected)
    assert not torch.equal(images, expected)


def test_offsets_of_a_crop_are_uniform() -> None:
    drawn = PadCrop(4).draw(uniform(PadCrop(4), 20_000), 32, 32)
    counts = np.bincount(drawn[:, 0] * 9 + drawn[:, 1], minlength=81)
    assert len(counts) == 81
    assert stats.chisquare(counts).pvalue > 1e-3
    extremes = PadCrop(4).draw(np.array([[0.0, np.nextafter(1, 0), 0.0]]), 32, 32)
    assert extremes.tolist() == [[0, 8, 0]]


def test_images_are_gathered_and_cropped_at_once() -> None:
    images, crop = torch.from_numpy(random_images((3, 9, 8))), PadCrop(3, flip=0.5)
    positions = np.random.default_rng(5).integers(0, S, 100)
    drawn = crop.draw(uniform(crop, 100), 9, 8)
    taken = Bordered(images, 3).take(positions, drawn)
    assert torch.equal(taken, crop.apply(images[positions], drawn))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_a_share_p_is_mirrored(p: float) -> None:
    for flip in (
        Flip(p).draw(uniform(Flip(), 20_000), 8, 8),
        PadCrop(4, p).draw(uniform(PadCrop(4), 20_000), 8, 8)[:, 2],
    ):
        assert flip.mean() == pytest.approx(p, abs=0.015)  # four standard deviations


def test_angles_and_factors_are_uniform_in_their_ranges() -> None:
    angle, factor = Affine(15, (0.85, 1.15)).draw(uniform(Affine(15), 20_000), 28, 28).T
    assert stats.kstest(angle, "uniform", (-15, 30)).pvalue > 1e-3
    assert stats.kstest(factor, "uniform", (0.85, 0.3)).pvalue > 1e-3


def test_rectangles_lie_inside_and_have_the_areas_and_ratios_asked_for() -> None:
    erase = Erase()
    drawn = erase.draw(uniform(erase, 20_000), 320, 320)  # large, so that rounding to pixels does not matter
    top, left, h, w = drawn[drawn[:, 2] > 0].T
    assert len(h) / 20_000 == pytest.approx(0.5, abs=0.015)
    assert min(top.min(), left.min()) == 0
    assert max((top + h).max(), (left + w).max()) == 320
    assert max(h.max(), w.max()) < 320
    area, ratio = h * w / 320**2, h / w
    assert (area.min(), area.max()) == pytest.approx((0.02, 0.4), rel=0.03)
    assert 0.29 < ratio.min() < 0.31
    assert 3.2 < ratio.max() < 3.45
    # uniform wherever no draw is refused: a rectangle of less than .29 of the area always fits
    assert stats.kstest(area[area < 0.28], "uniform", (0.02, 0.26)).pvalue > 1e-3
    free = (top + 0.5) / (320 - h + 1)
    assert stats.kstest(free, "uniform").pvalue > 1e-3


def test_the_first_rectangle_that_fits_is_taken() -> None:
    """Against the rule written out: draw area and ratio until both sides are smaller than the image's."""
    erase, (h, w) = Erase(p=1.0, area=(0.3, 0.9)), (12, 20)
    u = uniform(erase, 500)
    refused = 0
    for row, (_, _, height, width) in zip(u, erase.draw(u, h, w), strict=True):
        for share, place in zip(row[3:13], row[13:], strict=True):
            area, ratio = (0.3 + 0.6 * share) * h * w, 0.3 + (1 / 0.3 - 0.3) * place
            sides = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if sides[0] < h and sides[1] < w:
                break
            refused += 1
        else:
            sides = (0, 0)  # given up
        assert (height, width) == sides
    assert refused > 500


def test_an_image_in_which_no_rectangle_fits_is_left_alone() -> None:
    erase = Erase(p=1.0)
    images = torch.rand(S, 1, 1, 1)
    assert torch.equal(augment(images, [erase], uniform(erase)), images)


def test_a_change_does_not_depend_on_the_other_images_of_the_batch() -> None:
    images = torch.from_numpy(random_images((3, 15, 23), "float32"))
    changes = [PadCrop(3, flip=0.5), Affine(30, (0.8, 1.2)), Flip(), Erase()]
    u = np.random.default_rng(3).random((S, count_numbers(changes)))
    whole = augment(images, changes, u)
    parts = [augment(images[k : k + 7], changes, u[k : k + 7]) for k in range(0, S, 7)]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("change", [PadCrop(2), Flip(), Affine(20), Erase(fill=(3.0,))], ids=repr)
def test_what_is_given_stays_as_it_is_and_its_layout_does_not_matter(change) -> None:
    images = torch.from_numpy(random_images((3, 9, 8)))
    before = images.clone()
    drawn = change.draw(uniform(change), 9, 8)
    changed = change.apply(images, drawn)
    assert torch.equal(images, before)
    assert not torch.equal(changed, before)
    assert (changed.dtype, changed.shape) == (images.dtype, images.shape)
    assert torch.equal(change.apply(images.to(memory_format=torch.channels_last), drawn), changed)


def test_bytes_and_numbers_are_changed_alike() -> None:
    images = torch.from_numpy(random_images((3, 15, 23)))
    changes = [PadCrop(3, flip=0.5), Affine(30, (0.8, 1.2)), Flip()]
    u = np.random.default_rng(3).random((S, count_numbers(changes)))
    assert torch.equal(augment(images, changes, u).float(), augment(images.float(), changes, u))


@pytest.mark.parametrize("key", RECIPES, ids=" ".join)
def test_a_recipe_becomes_the_changes_it_names(key) -> None:
    one = RECIPES[key]
    changes = augmentations_of(one)
    names = [type(change).__name__ for change in changes]
    wanted = {"PadCrop": one.padding > 0, "Affine": one.degrees > 0, "Erase": one.erasing is not None}
    assert names == [name for name, present in wanted.items() if present]
    assert changes[0] == PadCrop(one.padding, flip=0.5 * one.flip)
    assert augmentations_of(Recipe()) == ()


def test_the_published_erasing_is_the_default_with_the_published_fill() -> None:
    assert augmentations_of(recipe("cifar10", "random-erasing"))[-1] == Erase(fill=(0.4914, 0.4822, 0.4465))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: PadCrop(-1), "PadCrop: padding must be at least 0; got -1"),
        (lambda: PadCrop(1, flip=2), r"PadCrop: flip must be in \[0, 1\]; got 2"),
        (lambda: Flip(1.5), r"Flip: p must be in \[0, 1\]; got 1.5"),
        (lambda: Affine(-4), "Affine: degrees must be between 0 and 180; got -4"),
        (lambda: Affine(4, (1.1, 0.9)), "Affine: scale must be two positive numbers"),
        (lambda: Erase(p=-1), "Erase: p must be"),
        (lambda: Erase(area=(0.5, 0.1)), "Erase: area must be"),
        (lambda: Erase(aspect=3), "Erase: aspect must be"),
        (
            lambda: Erase(fill=(1.0, 2.0, 3.0)).apply(torch.zeros(1, 1, 4, 4), np.zeros((1, 4), np.int64)),
            "Erase: fill must hold 1 or 1 values",
        ),
    ],
)
def test_settings_without_sense_are_refused(build, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        build()
