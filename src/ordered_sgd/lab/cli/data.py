"""`osgd data`: what is here, bring it, check it, look at it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from ordered_sgd.errors import ArgumentError, check_choice, message
from ordered_sgd.lab.cli.options import json_option, show

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ordered_sgd.lab.data.catalog import Entry
    from ordered_sgd.lab.data.dataset import Dataset
    from ordered_sgd.lab.data.protocol import Kind, Recipe

_WHERE = "osgd data"
_HELP = {"help_option_names": ["-h", "--help"]}
_VERSIONS = 9  # of an image beside it
_MOST = 200  # images on a sheet: matplotlib draws at most 65,535 pixels in height


@click.group(context_settings=_HELP)
def command() -> None:
    """The paper's data sets: what is here, where it comes from, and how it looks.

    Files lie in the folder ORDERED_SGD_DATA, or in the cache folder of the platform, in torchvision's layout.
    """


@command.command("list", context_settings=_HELP)
@json_option
def list_(as_json: bool) -> None:
    """What is here of every data set, its samples, size and licence."""
    from ordered_sgd.lab.data.catalog import CATALOG, data_root

    root = data_root()
    rows = [_row(entry, root) for entry in CATALOG.values()]
    lines = [
        {
            "name": row["name"],
            "here": row["here"] + (f" {row['files']}/{row['of']}\n{decimal(row['size'])}" if row["files"] else ""),
            "samples": f"{row['train']:6,} train\n{row['test']:6,} test",
            "what it is, licence": f"{row['what']}\n{row['licence']}",
        }
        for row in rows
    ]
    _print(rows, lines, f"data in {root}", as_json)


def _row(entry: "Entry", root: Path) -> dict[str, Any]:
    from ordered_sgd.lab.data.fetch import look

    here = look(entry, root)
    samples = {split: entry.counts[split] for split in ("train", "test")}
    files = {"here": here.state, "files": here.files, "of": here.of, "size": here.size}
    return {"name": entry.name, "what": entry.title, **samples, **files, "licence": entry.licence}


@command.command(context_settings=_HELP)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
def fetch(names: tuple[str, ...], as_json: bool) -> None:
    """Download data sets; what is here and right is left alone.

    Goes on where a download was cut. A file has its name only once it is whole and its checksum is right.
    """
    from ordered_sgd.lab.data.catalog import data_root
    from ordered_sgd.lab.data.fetch import fetch as bring

    root, rows = data_root(), list[dict[str, Any]]()
    for entry in _entries(names):
        with _progress() as progress:
            paths = bring(entry, root, progress=progress)
        rows += [{"name": entry.name, "file": str(path), "size": path.stat().st_size} for path in paths]
    lines = [{"file": os.path.relpath(row["file"], root), "size": decimal(row["size"])} for row in rows]
    _print(rows, lines, f"in {root}, with the published checksums", as_json)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for each file that is downloaded."""
    parts = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars = Progress(TextColumn("{task.description}"), *parts, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def update(path: str, done: int, total: int) -> None:
        if path not in tasks:  # bytes of an earlier day do not count for the speed
            bars.start()
            tasks[path] = bars.add_task(Path(path).name, total=total, completed=done)
        bars.update(tasks[path], completed=done)

    try:
        yield update
    finally:
        if tasks:
            bars.stop()


@command.command(context_settings=_HELP)
@click.argument("names", nargs=-1, metavar="[NAME...]")
@json_option
@click.pass_context
def verify(context: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Compare the checksums of files with the published ones.

    Without names: of every data set of which there is a file. The exit code is 1 when a file differs, or when a set
    that was named is not whole.
    """
    from ordered_sgd.lab.data.catalog import CATALOG, data_root
    from ordered_sgd.lab.data.fetch import look
    from ordered_sgd.lab.data.fetch import verify as check

    root = data_root()
    entries = _entries(names) or [entry for entry in CATALOG.values() if look(entry, root).files]
    checks = [(entry.name, found) for entry in entries for found in check(entry, root)]
    rows = [{"name": name, **asdict(found)} for name, found in checks]
    lines = [
        {"file": found.path, "state": found.state, "expected": _short(found.expected), "found": _short(found.found)}
        for _, found in checks
    ]
    _print(rows, lines, f"files in {root}", as_json)
    wrong = ("differs", "missing", "part") if names else ("differs",)
    context.exit(int(any(row["state"] in wrong for row in rows)))


@command.command("show", context_settings=_HELP)
@click.argument("name")
@click.option("--split", default="train", show_default=True, help="train or test.")
@click.option("--augment", default=None, help="none, standard, random-erasing or mixup; by default as in the paper.")
@click.option("--n", type=int, default=None, help="Images; 50, or 10 if augmented.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the augmentation.")
@click.option("--out", type=click.Path(path_type=Path), default=None, help="The PNG file; NAME-SPLIT.png if not given.")
def show_(name: str, split: str, augment: str | None, n: int | None, seed: int, out: Path | None) -> None:
    """Write a contact sheet: images with the names of their classes.

    Where the paper augments, each image begins a row and nine versions of it follow, as training sees them. A set of
    which only part is here is shown as well, and the sheet says so. NAME is a data set or a file that `load` reads.
    """
    kind = _check_show(name, split, augment, n)
    from ordered_sgd.lab.data.load import load
    from ordered_sgd.lab.report.contact import contact_sheet

    data = load(name, "test" if split == "test" else "train", partial=True)
    if not data.images:
        got = f"samples of shape {data.x.shape[1:]}"
        raise ArgumentError(message(_WHERE, "NAME", "hold images", got, "Run: osgd data list"))
    data = data.take(_spread(data, n or (50 if kind == "none" else 10)))
    title, versions = f"{data.label}, {split}", None
    if kind != "none":
        words, versions = _versions(data, kind, seed)
        title += f"\nfirst of each row: as stored; others: {words}"
    sheet = contact_sheet(data.x, data.y, data.classes, title=title, versions=versions)
    out = out or Path(f"{Path(name).stem}-{split}.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(sheet)
    click.echo(f"written: {out}", err=True)


def _check_show(name: str, split: str, augment: str | None, n: int | None) -> "Kind":
    """The kind of augmentation to show, or one clear error before anything is read."""
    from ordered_sgd.lab.data.catalog import CATALOG
    from ordered_sgd.lab.data.protocol import KINDS, RECIPES

    if not Path(name).suffix:
        check_choice(_WHERE, "NAME", name, tuple(CATALOG), "Run: osgd data list")
    check_choice(_WHERE, "--split", split, ("train", "test"))
    if n is not None and not 1 <= n <= _MOST:
        raise ArgumentError(message(_WHERE, "--n", f"be between 1 and {_MOST}", n, "Leave it out when in doubt."))
    known: list[Kind] = [kind for kind in KINDS if _augmented(RECIPES.get((name, kind)), split)]
    if augment is not None:
        remedy = f"The paper augments the {split} images of {name} in no other way."
        check_choice(_WHERE, "--augment", augment, ("none", *known), remedy)
    return next((kind for kind in known if augment in (None, kind)), "none")


def _augmented(recipe: "Recipe | None", split: str) -> bool:
    return recipe is not None and (split == "train" or recipe.test_too)


def _spread(data: "Dataset", n: int) -> "NDArray[np.int64]":
    """Positions of n samples: the first of every class, then the second of every class, and so on."""
    import numpy as np

    if not data.classes:
        return np.arange(min(n, len(data)))
    order = np.argsort(data.y, kind="stable")
    _, starts, counts = np.unique(data.y[order], return_index=True, return_counts=True)
    turn = np.empty(len(data), np.int64)
    turn[order] = np.arange(len(data)) - np.repeat(starts, counts)
    return np.lexsort((data.y, turn))[:n]


def _versions(data: "Dataset", kind: "Kind", seed: int) -> tuple[str, "NDArray[np.uint8]"]:
    """What augmentation does, in words, and images (n, 9, channels, height, width) made by it as a model gets them."""
    import torch

    from ordered_sgd.lab.data.augment import augmentations_of
    from ordered_sgd.lab.data.protocol import Scaling, recipe
    from ordered_sgd.lab.data.source import BatchSource

    steps = recipe(data.name, kind)
    source = BatchSource.by_recipe(data, len(data), steps, rng=seed, order="stored")
    batches = torch.stack([batch.x for _ in range(_VERSIONS) for batch in source], dim=1)
    mean, std = steps.scaling or Scaling((0.0,), (1.0,))
    pixels = batches * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    words = [str(change) for change in augmentations_of(steps)]
    if steps.mixup is not None:
        words.append(f"mixed with another image of the sheet, alpha = {steps.mixup:g}")
    return ", ".join(words), (pixels.clamp(0, 1) * 255).round().to(torch.uint8).numpy()


def _entries(names: Sequence[str]) -> "list[Entry]":
    """The data sets of these names that have files, each once."""
    from ordered_sgd.lab.data.catalog import CATALOG

    files = tuple(name for name, entry in CATALOG.items() if entry.downloads)
    for name in names:
        check_choice(_WHERE, "NAME", name, files, "Others need no download.")
    return [CATALOG[name] for name in dict.fromkeys(names)]


def _print(rows: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, str]], title: str, as_json: bool) -> None:
    """The rows as JSON, or a table of lines that says the same in fewer words."""
    if as_json:
        show(rows, title="", as_json=True)
        return
    if not lines:
        click.echo(f"{title}: none. Run: osgd data fetch NAME", err=True)
        return
    table = Table(title=title, title_justify="left")
    for name in lines[0]:
        table.add_column(name, overflow="fold")
    for line in lines:
        table.add_row(*line.values())
    Console(markup=False).print(table)  # a folder's name may have brackets


def _short(checksum: str) -> str:
    """Enough of a checksum to tell two apart."""
    return checksum.partition(":")[2][:8]
