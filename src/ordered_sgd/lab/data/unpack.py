"""The named members of a tar archive, and nothing else of it."""

import gzip
import hashlib
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path, PurePosixPath

from ordered_sgd.errors import DataError, message
from ordered_sgd.lab.data.catalog import Download
from ordered_sgd.lab.data.files import reason

_GROWTH, _SPARE = 4, 2**20  # an archive may unpack to 4 times its size and a MiB; CIFAR's grow to 1.1 times


def digest(path: Path, like: str) -> str:
    """The file's checksum, ``"md5:..."`` or ``"sha256:..."``, by the same algorithm as `like`."""
    name = like.partition(":")[0]
    with path.open("rb") as file:
        return f"{name}:{hashlib.file_digest(file, partial(hashlib.new, name, usedforsecurity=False)).hexdigest()}"


def unpack(archive: Path, download: Download, root: Path) -> None:
    """Put the members that the download names in their places below the root, each checked.

    They are written under names of our own in a folder of our own, and move all at the end: an archive with one wrong
    member changes nothing. No path of the archive is ever used to write.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=root) as name:
        copies = {path: Path(name, str(number)) for number, path in enumerate(download.members)}
        try:
            _copy(archive, copies)
        except Exception as error:  # of a damaged archive: TarError, EOFError, zlib.error, ValueError, RecursionError
            if isinstance(error, DataError | OSError) and not isinstance(error, gzip.BadGzipFile):
                raise
            raise DataError(_refusal(archive, "be a whole tar.gz archive", reason(error))) from error
        for path, copy in copies.items():
            if not copy.exists():
                raise DataError(_refusal(archive, f"hold {path}", "no such member"))
            expected, found = download.members[path], digest(copy, download.members[path])
            if found != expected:
                raise DataError(_refusal(archive, f"hold {path} with the checksum {expected}", found))
        for path, copy in copies.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            copy.replace(root / path)


def _copy(archive: Path, copies: Mapping[str, Path]) -> None:
    """Copy the members that are asked for; raise at any that an archive of plain files would not have."""
    limit = _GROWTH * archive.stat().st_size + _SPARE
    with _Bounded(archive, limit) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if path.is_absolute() or ".." in path.parts:
                raise DataError(_refusal(archive, "hold paths below its own folder", repr(member.name)))
            if not (member.isreg() or member.isdir()):
                raise DataError(_refusal(archive, "hold files and folders only", f"a link or device {member.name!r}"))
            if member.size > limit:
                raise DataError(_refusal(archive, f"unpack to at most {limit:,} bytes", f"{member.size:,}"))
            content = tar.extractfile(member)
            if content is not None and member.name in copies:
                with content, copies[member.name].open("wb") as copy:
                    shutil.copyfileobj(content, copy)


class _Bounded(gzip.GzipFile):
    """A gzip file that gives no more bytes than it may: a small archive can unpack to terabytes."""

    def __init__(self, archive: Path, limit: int) -> None:
        super().__init__(archive, "rb")
        self.archive, self.limit = archive, limit

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        if self.tell() > self.limit:
            raise DataError(_refusal(self.archive, f"unpack to at most {self.limit:,} bytes", "more"))
        return block


def _refusal(archive: Path, rule: str, got: str) -> str:
    return message("fetch", str(archive), rule, got, "Nothing was unpacked; fetch it again.")
