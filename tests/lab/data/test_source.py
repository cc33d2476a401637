"""The batch source: its order, its pixels, its randomness, and its state."""

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ordered_sgd import OrderedStep, batches
from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.data.augment import Affine, Erase, Flip, PadCrop, augment, augmentations_of, count_numbers
from ordered_sgd.lab.data.dataset import Dataset
from ordered_sgd.lab.data.load import load
from ordered_sgd.lab.data.mixup import Mixup
from ordered_sgd.lab.data.protocol import Recipe, recipe
from ordered_sgd.lab.data.source import Batch, BatchSource

N, S = 50, 8
ORDERS = ["epoch", "algorithm", "stored"]
CHANGES = (PadCrop(2, flip=0.5), Affine(10, (0.9, 1.1)), Flip(), Erase(fill=(0.5,)))


def images(n: int = N, channels: int = 3, split: str = "train") -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, channels, 9, 8), dtype=np.uint8)
    return Dataset(x, rng.integers(0, 4, n), ("a", "b", "c", "d"), "random", split)


def table(n: int = N) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.normal(size=(n, 5)), rng.normal(size=n), (), "random")


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = zip(itertools.chain(*one), itertools.chain(*other), strict=True)
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in pairs)


def drawn(source: BatchSource) -> list[list[int]]:
    return [batch.indices.tolist() for batch in source]


def test_an_epoch_is_what_epoch_batches_draws() -> None:
    source, rng = BatchSource(images(), S, rng=7, augment=CHANGES), np.random.default_rng(7)
    for _ in range(3):
        assert drawn(source) == [batch.tolist() for batch in batches.epoch_batches(N, S, rng)]


def test_batches_of_the_algorithm_are_what_algorithm_batches_draws() -> None:
    source, rng = BatchSource(images(), S, rng=7, order="algorithm", augment=CHANGES), np.random.default_rng(7)
    expected = batches.algorithm_batches(N, S, rng)
    for _ in range(3):
        assert drawn(source) == [batch.tolist() for batch in itertools.islice(expected, 7)]


def test_the_stored_order_is_as_stored() -> None:
    batches = drawn(BatchSource(images(), S, rng=0, order="stored"))
    assert list(itertools.chain(*batches)) == list(range(N))


@pytest.mark.parametrize("how", ORDERS)
@pytest.mark.parametrize(("n", "s", "batches"), [(50, 8, 7), (48, 8, 6), (5, 5, 1), (5, 1, 5)])
def test_an_epoch_has_as_many_batches_as_a_shuffle(how, n: int, s: int, batches: int) -> None:
    source = BatchSource(images(n), s, rng=0, order=how)
    sizes = [len(batch.x) for batch in source]
    assert len(sizes) == len(source) == batches
    assert sum(sizes) == (batches * s if how == "algorithm" else n)


def test_bytes_are_scaled_to_one_and_then_by_channel() -> None:
    data, (mean, std) = images(), ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    for x, y, indices in BatchSource(data, S, rng=0, scale=(mean, std)):
        expected = torch.from_numpy(data.x[indices]).to(torch.float32) / 255
        for channel in range(3):
            expected[:, channel] = (expected[:, channel] - mean[channel]) / std[channel]
        torch.testing.assert_close(x, expected, rtol=0, atol=5e-7)  # rounded in another order
        assert torch.equal(y, torch.from_numpy(data.y[indices]))
    plain = next(iter(BatchSource(data, S, rng=0)))
    torch.testing.assert_close(plain.x, torch.from_numpy(data.x[plain.indices]) / 255, rtol=2e-7, atol=0)
    assert (plain.x.min(), plain.x.max()) == (0, 1)


def test_tables_come_in_float32_and_can_be_scaled_by_column() -> None:
    data = table()
    mean, std = data.x.mean(0).tolist(), data.x.std(0).tolist()
    for x, y, indices in BatchSource(data, S, rng=0):
        assert torch.equal(x, torch.from_numpy(data.x[indices]).float())
        assert torch.equal(y, torch.from_numpy(data.y[indices]).float())
    scaled = torch.cat([batch.x for batch in BatchSource(data, S, rng=0, scale=(mean, std))])
    torch.testing.assert_close(scaled.mean(0), torch.zeros(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(5))


def test_changes_come_before_scaling_and_erasing_after_it() -> None:
    data, scale = images(), ((0.5,), (0.25,))
    source = BatchSource(data, S, rng=3, augment=CHANGES, scale=scale)
    generator = np.random.default_rng(3).spawn(1)[0]
    for x, _, indices in source:
        u = generator.random((len(indices), count_numbers(CHANGES)))
        cut = count_numbers(CHANGES[:3])
        pixels = augment(torch.from_numpy(data.x[indices]), CHANGES[:3], u[:, :cut])
        scaled = (pixels.float() / 255 - 0.5) / 0.25
        expected = augment(scaled, CHANGES[3:], u[:, cut:])
        torch.testing.assert_close(x, expected, rtol=0, atol=5e-7)  # a pixel is 0.016


@pytest.mark.parametrize("how", ORDERS)
def test_the_same_seed_gives_the_same_bits_whatever_the_global_generators_do(how) -> None:
    def run(seed: int) -> list[Batch]:
        source = BatchSource(images(), S, rng=seed, order=how, augment=CHANGES, mixup=Mixup())
        batches = []
        for batch in itertools.chain(source, source):
            np.random.rand()  # noqa: NPY002
            torch.rand(1)
            batches.append(batch)
        return batches

    first = run(1)
    torch.manual_seed(99)
    assert same(first, run(1))
    assert not same(first, run(2))


def test_global_generators_are_left_alone() -> None:
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    list(BatchSource(images(), S, rng=0, augment=CHANGES, mixup=Mixup()))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


def test_a_second_epoch_changes_the_images_in_another_way() -> None:
    source = BatchSource(images(), N, rng=0, order="stored", augment=(PadCrop(2),))
    (first,), (second,) = list(source), list(source)
    assert not torch.equal(first.x, second.x)


def test_an_image_s_change_does_not_depend_on_the_batch_size() -> None:
    def whole(s: int) -> torch.Tensor:
        return torch.cat([batch.x for batch in BatchSource(images(), s, rng=0, augment=CHANGES)])

    assert torch.equal(whole(8), whole(50))


def test_a_generator_can_be_given_instead_of_a_seed() -> None:
    given = BatchSource(images(), S, rng=np.random.default_rng(5), augment=CHANGES)
    assert same(list(given), list(BatchSource(images(), S, rng=5, augment=CHANGES)))


@pytest.mark.parametrize("how", ORDERS)
@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_a_saved_state_continues_bit_by_bit(how, taken: int) -> None:
    def build(seed: int) -> BatchSource:
        return BatchSource(images(), S, rng=seed, order=how, augment=CHANGES, mixup=Mixup())

    source = build(1)
    list(source)  # an epoch before it
    running = iter(source)
    for _ in range(taken):
        next(running)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    rest, after = list(running), list(source)
    assert len(rest) == 7 - taken

    other = build(2)
    next(iter(other))
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same(list(other), rest)
    assert same(list(other), after)


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox, np.random.SFC64, np.random.PCG64DXSM])
def test_any_generator_s_state_is_saved_in_plain_types(kind) -> None:
    def build(seed: int) -> BatchSource:
        return BatchSource(images(), S, rng=np.random.Generator(kind(seed)), augment=CHANGES)

    source = build(1)
    running = iter(source)
    next(running)
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    other = build(2)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert same(list(other), list(running))


def test_a_state_saved_between_epochs_starts_the_next_one() -> None:
    source = BatchSource(images(), S, rng=1, augment=CHANGES)
    new = source.state_dict()
    first = list(source)
    between = source.state_dict()
    second = list(source)
    source.load_state_dict(new)
    assert same(list(source), first)
    source.load_state_dict(between)
    assert same(list(source), second)


def test_a_pass_left_early_is_not_taken_up_again() -> None:
    source, rng = BatchSource(images(), S, rng=1), np.random.default_rng(1)
    next(iter(source))
    list(batches.epoch_batches(N, S, rng))
    assert drawn(source) == [batch.tolist() for batch in batches.epoch_batches(N, S, rng)]


def test_an_older_pass_does_not_go_on_beside_a_newer_one() -> None:
    source = BatchSource(images(), S, rng=1)
    older = iter(source)
    next(older)
    newer = iter(source)
    with pytest.raises(ArgumentError, match=r"a pass must be the newest one; got an older one. Build a second"):
        next(older)
    assert len(list(newer)) == len(source)


def test_an_older_pass_that_ends_leaves_the_newer_one_alone() -> None:
    source = BatchSource(images(), N, rng=1)
    older = iter(source)
    next(older)
    newer = iter(source)
    assert list(older) == []
    state, rest = source.state_dict(), list(newer)
    source.load_state_dict(state)
    assert same(list(source), rest)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("n", lambda: BatchSource(images(N - 1), S, rng=0)),
        ("s", lambda: BatchSource(images(), S + 1, rng=0)),
        ("order", lambda: BatchSource(images(), S, rng=0, order="algorithm")),
        ("generator", lambda: BatchSource(images(), S, rng=np.random.Generator(np.random.SFC64(0)))),
    ],
)
def test_the_state_of_another_source_is_refused(name: str, other) -> None:
    state = BatchSource(images(), S, rng=0).state_dict()
    with pytest.raises(ArgumentError, match=f"BatchSource: {name} must be .* as in the saved state"):
        other().load_state_dict(state)


def test_mixed_batches_have_soft_targets_of_both_samples() -> None:
    source = BatchSource(images(), S, rng=0, mixup=Mixup())
    for x, y, indices in source:
        assert (x.shape[0], y.shape) == (len(indices), (len(indices), 4))
        torch.testing.assert_close(y.sum(1), torch.ones(len(indices)))
        assert (y[torch.arange(len(indices)), source.y[indices]] > 0).all()


def test_a_dataloader_works_in_its_place() -> None:
    data = images(48)
    x, y = torch.from_numpy(data.x).float() / 255, torch.from_numpy(data.y)

    def train(loader) -> int:
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 8, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = OrderedStep(model, nn.CrossEntropyLoss(reduction="none"), optimizer, q=0.5)
        return sum(step(x, y).q for x, y, *_ in loader)

    assert train(BatchSource(data, S, rng=0)) == train(DataLoader(TensorDataset(x, y), S, shuffle=True)) == 24
    assert train(BatchSource(data, S, rng=0, mixup=Mixup())) == 24


def test_a_recipe_augments_training_images_and_scales_both() -> None:
    one = recipe("cifar10", "mixup")
    train = BatchSource.by_recipe(images(), S, one, rng=0)
    scaled = {"rng": 0, "scale": one.scaling}
    assert same(list(train), list(BatchSource(images(), S, augment=augmentations_of(one), mixup=Mixup(), **scaled)))
    test = BatchSource.by_recipe(images(split="test"), S, one, rng=0, order="stored")
    assert same(list(test), list(BatchSource(images(), S, order="stored", **scaled)))


def test_a_recipe_can_ask_for_augmented_test_images() -> None:
    data, one = images(channels=1, split="test"), recipe("semeion", "standard")
    own = BatchSource.by_recipe(data, S, one, rng=0, order="stored")
    assert same(list(own), list(BatchSource(data, S, rng=0, order="stored", augment=augmentations_of(one))))


@pytest.mark.parametrize("changes", [(), CHANGES, CHANGES[1:]])
def test_the_data_are_never_written(changes) -> None:
    for data in (images(), table()):
        before = data.x.copy(), data.y.copy()
        scale = ((0.5,), (0.5,))
        list(BatchSource(data, S, rng=0, augment=changes if data.images else (), scale=scale, mixup=Mixup()))
        assert np.array_equal(data.x, before[0])
        assert np.array_equal(data.y, before[1])


@pytest.mark.parametrize("form", ["read-only", "reversed", "memory-mapped"])
def test_arrays_of_any_form_are_taken(form: str, tmp_path: Path) -> None:
    x = images().x
    if form == "read-only":
        x.flags.writeable = False
    elif form == "reversed":
        x = x[::-1]
    else:
        np.save(tmp_path / "x.npy", x)
        x = np.load(tmp_path / "x.npy", mmap_mode="r")
    data = Dataset(x, np.arange(N), (), "random")
    (batch,) = BatchSource(data, N, rng=0, order="stored")
    torch.testing.assert_close(batch.x, torch.tensor(np.array(x)) / 255, rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: BatchSource(images(5), 6, rng=0),
            "BatchSource: s must be between 1 and n = 5; got 6. Use a batch size",
        ),
        (lambda: BatchSource(images(), 0, rng=0), "s must be between 1 and n = 50; got 0"),
        (lambda: BatchSource(images(), 8, rng=0, order="epochs"), "order must be one of .* Did you mean 'epoch'"),
        (
            lambda: BatchSource(table(), 8, rng=0, augment=[Flip()]),
            r"dataset must hold images to be augmented; got .*\(5,\)",
        ),
        (lambda: BatchSource(images(), 8, rng=0, scale=((0.5, 0.5), (1, 1))), "mean and std of 1 or 3 numbers; got 2"),
        (
            lambda: BatchSource(images(), 8, rng=0, scale=((0.5,), (0.0,))),
            "scale must have positive deviations; got 0.0",
        ),
    ],
)
def test_arguments_without_sense_are_refused(build, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        build()


def test_digits_are_fed() -> None:
    pytest.importorskip("sklearn")
    data = load("digits")
    source = BatchSource.by_recipe(data, 64, Recipe(), rng=0)
    x = torch.cat([batch.x for batch in source])
    assert len(x) == len(data)
    assert x.dtype == torch.float32
    assert x.min() == 0
    assert x.max() == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("semeion", "standard"),
        ("mnist", "standard"),
        ("fashion-mnist", "standard"),
        ("cifar10", "standard"),
        ("cifar10", "random-erasing"),
        ("cifar10", "mixup"),
    ],
)
def test_real_sets_are_fed_by_their_recipes(name: str, kind, real_root: Path) -> None:
    folder = {"fashion-mnist": "FashionMNIST", "mnist": "MNIST", "cifar10": "cifar-10-batches-py"}.get(name, name)
    if not (real_root / folder).exists():
        pytest.skip(f"{folder} is not in ORDERED_SGD_DATA")
    data = load(name, partial=True)
    source = BatchSource.by_recipe(data, 64, recipe(name, kind), rng=0)
    x, y, indices = next(iter(source))
    assert x.shape == (64, *data.x.shape[1:])
    assert torch.isfinite(x).all()
    if kind != "mixup":
        assert torch.equal(y, torch.from_numpy(data.y[indices]))
