"""Archives that hold more, less or other than they should."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.catalog import Download, Entry
from ordered_sgd.lab.data.fetch import fetch, verify
from ordered_sgd.lab.data.unpack import unpack

FILES = {"set-py/one": b"1" * 3000, "set-py/two": b"2" * 5000}


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def info(name: str, **attributes: object) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    return member


def archive_of(*extra: tarfile.TarInfo, files: dict[str, bytes] = FILES) -> bytes:
    """A tar.gz with a folder, what is given, the files and one that nobody asked for."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.addfile(info("set-py", type=tarfile.DIRTYPE))
        for member in extra:
            tar.addfile(member, io.BytesIO(b"x" * member.size) if member.isreg() else None)
        for name, content in {**files, "set-py/readme.html": b"hello"}.items():
            tar.addfile(info(name, size=len(content)), io.BytesIO(content))
    return stream.getvalue()


def download_of(content: bytes, urls: tuple[str, ...] = ()) -> Download:
    members = {name: md5(content) for name, content in FILES.items()}
    return Download("set.tar.gz", urls, md5(content), len(content), members)


def put(tmp_path: Path, content: bytes) -> tuple[Path, Download]:
    archive = tmp_path / "set.tar.gz"
    archive.write_bytes(content)
    return archive, download_of(content)


def test_only_the_named_members_are_written(tmp_path: Path) -> None:
    archive, download = put(tmp_path, archive_of())
    unpack(archive, download, tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("set-py", "set-py/one", "set-py/two", "set.tar.gz")
    ]
    assert all((tmp_path / name).read_bytes() == content for name, content in FILES.items())


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "absolute path": (lambda: archive_of(info("/tmp/x", size=3)), "must hold paths below its own folder; got '/tmp/x'"),
    "climbing path": (lambda: archive_of(info("a/../../x", size=3)), "below its own folder; got 'a/../../x'"),
    "symbolic link": (
        lambda: archive_of(info("set-py/one", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        "must hold files and folders only; got a link or device 'set-py/one'",
    ),
    "hard link": (lambda: archive_of(info("set-py/l", type=tarfile.LNKTYPE, linkname="set-py/one")), "got a link or"),
    "device": (lambda: archive_of(info("set-py/d", type=tarfile.CHRTYPE)), "got a link or device 'set-py/d'"),
    "pipe": (lambda: archive_of(info("set-py/d", type=tarfile.FIFOTYPE)), "got a link or device 'set-py/d'"),
    "huge member": (lambda: archive_of(info("set-py/zeros", size=5 * 2**20)), "must unpack to at most 1,0"),
    "member of terabytes in name": (
        lambda: gzip.compress(info("set-py/one", size=2**40).tobuf(tarfile.GNU_FORMAT)),
        "bytes; got 1,099,511,627,776",
    ),
    "bomb in a header": (
        lambda: gzip.compress(info("x", size=2**30, type=tarfile.XHDTYPE).tobuf(tarfile.GNU_FORMAT) + bytes(2**23)),
        "must unpack to at most 1,0",
    ),
    "headers of headers": (
        lambda: gzip.compress(info("x", type=tarfile.XHDTYPE).tobuf(tarfile.GNU_FORMAT) * 1500),
        "must be a whole tar.gz archive; got maximum recursion depth",
    ),
    "missing member": (
        lambda: archive_of(files={"set-py/one": b"1" * 3000}),
        "must hold set-py/two; got no such member",
    ),
    "other bytes": (
        lambda: archive_of(files={**FILES, "set-py/two": b"3" * 5000}),
        f"must hold set-py/two with the checksum {md5(FILES['set-py/two'])}; got {md5(b'3' * 5000)}.",
    ),
    "truncated": (lambda: archive_of()[:-40], "must be a whole tar.gz archive; got "),
    "not gzip": (lambda: b"hello" * 100, "must be a whole tar.gz archive; got Not a gzipped file"),
    "not tar": (lambda: gzip.compress(b"hello" * 1000), "must be a whole tar.gz archive; got "),
    "damaged gzip": (
        lambda: archive_of()[:60] + b"\xff" * 40 + archive_of()[100:],
        "must be a whole tar.gz archive; got ",
    ),
    "nothing": (lambda: b"", "must be a whole tar.gz archive; got "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_archive_that_is_not_plain_is_refused_and_nothing_written(case: str, tmp_path: Path) -> None:
    make, text = REFUSED[case]
    archive, download = put(tmp_path, make())
    with pytest.raises(DataError) as error:
        unpack(archive, download, tmp_path)
    assert str(error.value).startswith(f"fetch: {archive} must ")
    assert text in str(error.value)
    assert list(tmp_path.rglob("*")) == [archive]


def test_a_changed_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    plain = gzip.decompress(archive_of())
    for position in range(0, len(plain), 61):
        changed = bytearray(plain)
        changed[position] ^= 0x55
        (folder := tmp_path / str(position)).mkdir()
        archive, download = put(folder, gzip.compress(bytes(changed), 1))
        try:
            unpack(archive, download, folder)
        except DataError:
            assert list(folder.rglob("*")) == [archive]
            continue
        assert all((folder / name).read_bytes() == content for name, content in FILES.items())


def test_an_archive_put_there_by_hand_is_unpacked_and_stays(tmp_path: Path) -> None:
    _, download = put(tmp_path, archive_of())
    entry = Entry("set", "", (), (), {}, "", (download,))
    assert [(check.path, check.state) for check in verify(entry, tmp_path)] == [
        *(("set-py/one", "missing"), ("set-py/two", "missing"), ("set.tar.gz", "ok"))
    ]
    assert fetch(entry, tmp_path) == [tmp_path / name for name in FILES]
    assert (tmp_path / "set.tar.gz").exists()
    assert [check.state for check in verify(entry, tmp_path)] == ["ok", "ok"]
