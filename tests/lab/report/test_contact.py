import io

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.report.contact import contact_sheet


def pixels_of(sheet: bytes) -> NDArray[np.uint8]:
    """The sheet (height, width, 3) as bytes."""
    return (imread(io.BytesIO(sheet))[:, :, :3] * 255).round().astype(np.uint8)


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def places_of(image: NDArray[np.uint8], sheet: NDArray[np.uint8], times: int) -> list[tuple[int, int]]:
    """Top and left of every exact copy of the image (channels, height, width), each pixel enlarged to a square."""
    colours = np.broadcast_to(image.transpose(1, 2, 0), (*image.shape[1:], 3))
    large = np.kron(colours, np.ones((times, times, 1), np.uint8))
    height, width, _ = large.shape
    corners = np.argwhere((sheet[: 1 - height, : 1 - width] == large[0, 0]).all(axis=2))
    return [(int(y), int(x)) for y, x in corners if np.array_equal(sheet[y : y + height, x : x + width], large)]


@pytest.mark.parametrize(("side", "times"), [(8, 12), (16, 6), (28, 3), (32, 3), (100, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_pixel_of_an_image_is_a_square_of_the_sheet(channels: int, side: int, times: int) -> None:
    images = noise(12, channels, side, side)
    sheet = pixels_of(contact_sheet(images, np.arange(12) % 2, ("no", "yes"), title="two words"))
    places = [places_of(image, sheet, times) for image in images]
    assert [len(found) for found in places] == [1] * 12
    tops = [found[0][0] for found in places]
    lefts = [found[0][1] for found in places]
    assert len(set(tops[:10])) == 1
    assert tops[10] == tops[11] > tops[0]
    assert lefts[:10] == sorted(set(lefts))
    assert lefts[10:] == lefts[:2]


def test_versions_follow_their_image_in_its_row() -> None:
    both = noise(2, 4, 3, 32, 32)
    images, versions = both[:, 0], both[:, 1:]
    sheet = pixels_of(contact_sheet(images, np.array([0, 1]), ("no", "yes"), versions=versions))
    for image, own in zip(images, versions, strict=True):
        ((top, left),) = places_of(image, sheet, 3)
        row = [places_of(version, sheet, 3)[0] for version in own]
        assert [place[0] for place in row] == [top] * 3
        assert [left, *(place[1] for place in row)] == sorted({left, *(place[1] for place in row)})


def test_the_name_of_the_class_stands_below_the_image_and_the_title_above() -> None:
    images = np.zeros((1, 1, 32, 32), np.uint8)
    plain, titled = (pixels_of(contact_sheet(images, [0], ("A class",), title=title)) for title in ("", "A title"))
    assert len(titled) > len(plain)
    paper = plain[0, 0]
    written = np.flatnonzero((plain[:, 12:108] != paper).any(axis=(1, 2)))  # lines with something on them
    (image_ends,) = np.flatnonzero((plain[:, 60] == 0).all(axis=1))[-1:]
    below = written[written > image_ends]
    assert 5 <= len(below) <= 16
    assert below[-1] < len(plain) - 5


@pytest.mark.parametrize("name", ["$a_b$", "50 $", "^_^"])
def test_a_name_is_written_as_it_is_and_never_read_as_a_formula(name: str) -> None:
    assert contact_sheet(noise(1, 1, 8, 8), np.array([0]), (name,), title=name).startswith(b"\x89PNG")


def test_a_target_of_a_regression_is_written_as_a_number() -> None:
    images = noise(2, 1, 8, 8)
    sheets = [contact_sheet(images, np.array(targets), ()) for targets in ([0.5, 2.0], [0.5, 2.25], [0.5, 2.0])]
    assert sheets[0] == sheets[2] != sheets[1]


def test_a_large_image_is_thinned_out() -> None:
    image = noise(1, 4, 600, 300)
    sheet = pixels_of(contact_sheet(image, np.array([0]), ("large",)))
    assert len(places_of(image[0, :3, ::3, ::3], sheet, 1)) == 1


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (2, 2, 8, 8)])
def test_what_cannot_be_shown_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ArgumentError, match=r"contact_sheet: images must be at least one, of 1, 3 or 4 channels; got an"
    ):
        contact_sheet(noise(*shape), np.zeros(shape[0], np.int64), ("a",))
