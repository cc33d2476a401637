"""Reading files that may lie."""

import gzip
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data.files import fault, opened, read_plain, reason, take

CONTENT = bytes(range(256)) * 40


def take_all(path: Path, count: int) -> bytes:
    with opened(path, 20_000, unpack=True) as handle:
        return take(handle, count, path).tobytes()


@pytest.fixture(params=["plain", "gzip"])
def file(request, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(CONTENT if request.param == "plain" else gzip.compress(CONTENT))
    return path


def test_plain_and_gzip_files_give_the_same_bytes(file):
    with opened(file, len(CONTENT), unpack=True) as handle:
        taken = take(handle, len(CONTENT), file)
    assert taken.tobytes() == CONTENT
    assert taken.dtype == np.uint8
    assert taken.flags.writeable


def test_fewer_bytes_than_asked_for_are_a_fault(file):
    with pytest.raises(DataError, match=r"file must hold 10,241 bytes after its header; got 10,240\."):
        take_all(file, len(CONTENT) + 1)


def test_more_bytes_than_asked_for_are_a_fault(file):
    with pytest.raises(DataError, match="file must end 10,239 bytes after its header; got more bytes"):
        take_all(file, len(CONTENT) - 1)


def test_a_gzip_file_is_not_unpacked_unless_asked_for(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(CONTENT))
    assert read_plain(path, 10_000) == path.read_bytes()


def test_a_file_past_its_limit_is_not_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    with pytest.raises(DataError, match=r"file must take at most 100 bytes; got 10,240\. Replace it by a whole copy"):
        read_plain(path, 100)


@pytest.mark.parametrize("cut", [1, 5, 11, 30, 60])
def test_a_gzip_file_cut_anywhere_is_a_fault(tmp_path, cut):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(CONTENT)[:-cut])
    with pytest.raises(DataError, match=r"file.gz must be readable to its end; got Compressed file ended before"):
        take_all(path, len(CONTENT))


def test_a_wrong_check_sum_of_a_gzip_file_is_a_fault(tmp_path):
    data = bytearray(gzip.compress(CONTENT))
    data[-6] ^= 1
    path = tmp_path / "file.gz"
    path.write_bytes(data)
    with pytest.raises(DataError, match="must be readable to its end; got CRC check failed"):
        take_all(path, len(CONTENT))


def test_every_flipped_bit_of_a_gzip_file_is_a_fault_or_changes_nothing(tmp_path):
    data, path = gzip.compress(CONTENT), tmp_path / "file.gz"
    for place in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[place // 8] ^= 1 << place % 8
        path.write_bytes(spoilt)
        with suppress(DataError):
            assert take_all(path, len(CONTENT)) == CONTENT


def test_a_gzip_bomb_is_stopped_after_the_bytes_that_were_asked_for(tmp_path, peak):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes(1 << 27)))  # 128 MiB in 130 kB

    def read() -> None:
        with opened(path, 1 << 20, unpack=True) as handle:
            take(handle, 1000, path)

    assert peak(read) < 1 << 20


def test_a_missing_file_a_folder_and_a_pipe_are_faults(tmp_path):
    with pytest.raises(DataError, match=r"none must exist; got no such file\. Check the path\."):
        read_plain(tmp_path / "none", 10)
    with pytest.raises(DataError, match="must be a regular file; got a folder, a pipe or a device"):
        read_plain(tmp_path, 1 << 20)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe must be a regular file"):  # and does not wait for a writer
        read_plain(tmp_path / "pipe", 10)


def test_a_file_that_may_not_be_read_is_a_fault(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything, so the mode would not do
    with pytest.raises(DataError, match=r"file must be readable to its end; got Permission denied\."):
        read_plain(path, 20_000)


def test_an_array_that_does_not_fit_into_memory_is_a_fault(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    with pytest.raises(DataError, match="file must fit into memory; got 1,152,921,504,606,846,976 bytes"):
        take_all(path, 1 << 60)


def test_reasons_take_one_line_of_bounded_length():
    assert reason(ValueError("two\nlines.")) == "two lines"
    assert reason(EOFError()) == "EOFError"
    assert len(reason(ValueError("a" * 10_000))) == 200
    assert str(fault(Path("f"), "be", 1, "Do.")) == "load: f must be; got 1. Do."
