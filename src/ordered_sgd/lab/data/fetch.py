"""Files of a data set, downloaded and checked: mirrors in turn, resumed, in place only once the checksum is right.

`fetch` and `verify` are where checksums are checked; `load` checks structure.
"""

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from ordered_sgd.errors import DataError, message
from ordered_sgd.lab.data.catalog import Download, Entry, find
from ordered_sgd.lab.data.download import Progress, Retries, UnusableError, cannot_write, receive
from ordered_sgd.lab.data.unpack import digest, unpack

try:
    import fcntl
except ImportError:  # Windows: two downloads at once spoil each other's part, which the checksum then finds
    fcntl = None  # type: ignore[assignment]

_State = Literal["whole", "partial", "absent", "built in"]


@dataclass(frozen=True)
class FileCheck:
    """A file of a data set as `verify` found it."""

    path: str  # below the root
    # unpacked: here, but no checksum is published; built in: not here, and not needed
    state: Literal["ok", "missing", "differs", "part", "unpacked", "built in"]
    expected: str  # checksum
    found: str  # checksum; empty where there is no whole file
    size: int  # bytes that are here


@dataclass(frozen=True)
class Presence:
    """How much of a data set is here, by the names and sizes of its files alone."""

    state: _State
    files: int  # that are here
    of: int
    size: int  # bytes on disk


def look(entry: Entry, root: Path) -> Presence:
    """How much of a data set is here; no file is opened."""
    if not entry.downloads:
        return Presence("built in", 0, 0, 0)
    paths = [path for download in entry.downloads for path in _files(download)]
    found = [place for path in paths if (place := find(root, path)) is not None and place.is_file()]
    size = sum(place.stat().st_size for place in found)
    missing: _State = "built in" if entry.included else "absent" if not found else "partial"
    whole = len(found) == len(paths) and all(_large_enough(entry, download, root) for download in entry.downloads)
    return Presence("whole" if whole else missing, len(found), len(paths), size)


def _large_enough(entry: Entry, download: Download, root: Path) -> bool:
    """Whether the files of a download, all here, can hold what was published: of a member only its pixels are known."""
    sizes = [place.stat().st_size for path in _files(download) if (place := find(root, path))]
    pixels = math.prod(entry.shape) * sum(entry.counts.values())
    return sum(sizes) >= (pixels if download.members else download.size)


def verify(entry: Entry, root: Path) -> list[FileCheck]:
    """A row for every file: right, missing, not needed, with another checksum, cut short, or unpacked by others."""
    found = [check for download in entry.downloads for check in _check(download, root)]
    if not entry.included:
        return found
    return [replace(check, state="built in") if check.state == "missing" else check for check in found]


def fetch(entry: Entry, root: Path, *, progress: Progress | None = None, retries: Retries | None = None) -> list[Path]:
    """Paths of the entry's files, all here and checked; downloads what is not.

    A download grows in a file ``.part`` beside its place. If it is cut, the next attempt, or the next call, goes on
    from there. A second process that fetches the same file waits for the first.

    Parameters
    ----------
    entry
        The data set, from the catalog.
    root
        The data folder; made if it is missing.
    progress
        Called with the file's path below the root, the bytes that are here and the bytes in all.
    retries
        Time-outs and number of attempts.

    Raises
    ------
    DataError
        When no address gives the file. The message names the files, their checksums and addresses, and the folder to
        put them in by hand.
    """
    for download in entry.downloads:
        if _whole(download, root):
            continue
        part = _part(root / download.path)
        part.parent.mkdir(parents=True, exist_ok=True)
        with _alone(part):
            if _whole(download, root):
                continue  # the process that we waited for has fetched it
            faults = _bring(download, root, progress or _silent, retries or Retries())
        if faults:
            raise DataError(_explain(entry, download, root, faults))
    return [find(root, path) or root / path for download in entry.downloads for path in _files(download)]


def _bring(download: Download, root: Path, progress: Progress, retries: Retries) -> dict[str, list[str]]:
    """Put the file in its place; if no address gives it, what is wrong with which machine."""
    place, faults = root / download.path, dict[str, list[str]]()
    part = _part(place)
    if download.members and _check_file(download.path, download.checksum, root).state == "ok":
        _unpack(place, download, root)  # put there by hand, so it stays
        return {}
    for url in download.urls:
        try:
            receive(url, download, part, progress, retries)
        except UnusableError as fault:
            faults.setdefault(str(fault), []).append(urlsplit(url).netloc or url)
            continue
        if download.members:
            _unpack(part, download, root)
            part.unlink()
        else:
            part.replace(place)
        return {}
    return faults


def _unpack(archive: Path, download: Download, root: Path) -> None:
    try:
        unpack(archive, download, root)
    except OSError as error:
        raise cannot_write(root, error, 2 * download.size) from error
    except DataError:
        if archive != root / download.path:
            archive.unlink()
        raise


@contextlib.contextmanager
def _alone(part: Path) -> Iterator[None]:
    """Hold the part, made if it is missing, while other processes wait for it; an empty one is removed at the end."""
    with contextlib.ExitStack() as at_end:
        if fcntl is None:
            part.touch()
        else:
            at_end.callback(os.close, _locked(part))
        try:
            yield
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()


def _locked(part: Path) -> int:
    """A handle of the part with a lock, which ends with the handle or the process."""
    while True:
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: as on Windows
                fcntl.flock(handle, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), part.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # whoever held it has put the file in its place or removed it: look again


def _check(download: Download, root: Path) -> list[FileCheck]:
    """A row for each file, and one for an archive that is still waiting to be completed or unpacked."""
    rows = [_check_file(path, checksum, root) for path, checksum in _files(download).items()]
    if download.members and any(row.state != "ok" for row in rows):
        archive = _check_file(download.path, download.checksum, root)
        rows += [archive] if archive.state != "missing" else []
    return rows


def _check_file(path: str, checksum: str, root: Path) -> FileCheck:
    place = find(root, path)
    if place is None or not place.is_file():
        part = _part(root / path)
        size = part.stat().st_size if part.is_file() else 0
        return FileCheck(path, "part" if size else "missing", checksum, "", size)
    size, at = place.stat().st_size, place.relative_to(root).as_posix()
    if place.suffix != Path(path).suffix:
        return FileCheck(at, "unpacked", checksum, "", size)
    found = digest(place, checksum)
    return FileCheck(at, "ok" if found == checksum else "differs", checksum, found, size)


def _whole(download: Download, root: Path) -> bool:
    return all(_check_file(path, checksum, root).state == "ok" for path, checksum in _files(download).items())


def _files(download: Download) -> Mapping[str, str]:
    """The files that stay, with their checksums: the members of an archive, or the download itself."""
    return download.members or {download.path: download.checksum}


def _part(place: Path) -> Path:
    return place.with_name(place.name + ".part")


def _explain(entry: Entry, download: Download, root: Path, faults: Mapping[str, Sequence[str]]) -> str:
    """What no address gave, and how to bring it by hand."""
    lines = [f"Without a network, put these files into {root.absolute()} and run it again; it checks them:"]
    for other in entry.downloads:
        if not _whole(other, root):
            lines += [f"  {other.path} ({other.size:,} bytes, {other.checksum})"]
            lines += [f"    {url}" for url in other.urls]
    rule = f"arrive with {download.size:,} bytes and the checksum {download.checksum}"
    got = "; ".join(f"{fault} from {', '.join(machines)}" for fault, machines in faults.items())
    return message("fetch", download.path, rule, got, "\n".join(lines))


def _silent(path: str, done: int, total: int) -> None:
    """No progress shown."""
