"""One file from one address, into a part file that is resumed, bounded and checked; nothing here prints."""

import http.client
import io
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ordered_sgd.errors import DataError, message
from ordered_sgd.lab.data.catalog import Download
from ordered_sgd.lab.data.files import reason
from ordered_sgd.lab.data.unpack import digest

Progress = Callable[[str, int, int], None]  # path below the root, bytes that are here, bytes in all
_BLOCK = 2**16
_HEADWAY = 2**20  # bytes after which a cut connection does not count among the failures in a row
_WEB = ("http://", "https://")
_PASSING = (408, 416, 425, 429)  # answers that may be another when asked again, as those from 500 on


@dataclass(frozen=True)
class Retries:
    """How long to wait for an address before the next one is tried."""

    timeout: float = 20.0  # seconds without a byte
    attempts: int = 4  # in a row, with little or nothing received
    pause: float = 1.0  # seconds before the second attempt; doubled before each further one


class UnusableError(Exception):
    """An address will not do; another may."""


def receive(url: str, download: Download, part: Path, progress: Progress, retries: Retries) -> None:
    """Complete the part from one address, and check it. What is wrong is thrown away, what was cut is kept.

    Raises
    ------
    UnusableError
        When the address cannot be reached, has another file, or is cut too often.
    DataError
        When the part cannot be written.
    """
    failures, reached, fault = 0, False, ""
    while failures < retries.attempts:
        if failures:
            time.sleep(retries.pause * 2 ** (failures - 1))
        before = part.stat().st_size
        try:
            _append(url, download, part, progress, retries.timeout)
            found = digest(part, download.checksum)
            if found == download.checksum:
                return
            os.truncate(part, 0)
            fault = f"the checksum {found}"
            if before == 0:
                raise UnusableError(fault)  # else begin anew: the bytes of an earlier day may be the wrong ones
        except urllib.error.URLError as error:
            fault = reason(error.reason) if isinstance(error.reason, Exception) else str(error.reason)
            if not reached:
                raise UnusableError(fault) from error  # no network, or no such machine: waiting will not help
        except (OSError, http.client.HTTPException) as error:
            fault = reason(error)
        reached = True
        failures = 0 if part.stat().st_size - before >= _HEADWAY else failures + 1
    raise UnusableError(f"{fault} ({retries.attempts} attempts)")


def _append(url: str, download: Download, part: Path, progress: Progress, timeout: float) -> None:
    """Append to the part what it lacks, and not a byte more than the catalog says."""
    size, done = download.size, part.stat().st_size
    if done == size:
        return
    if done > size:
        done = 0
        os.truncate(part, 0)
    with _open(url, done, part, timeout) as response, part.open("r+b", buffering=0) as file:
        done = _first_byte(response, done, size)
        file.truncate(done)
        file.seek(done)
        progress(download.path, done, size)
        while block := response.read1(_BLOCK):
            done += len(block)
            if done > size:
                file.truncate(0)
                raise UnusableError(f"more than {size:,} bytes")
            _write(file, block, size - done)
            progress(download.path, done, size)
    if done < size:
        raise ConnectionError(f"a connection cut after {done:,} of {size:,} bytes")


def _open(url: str, start: int, part: Path, timeout: float) -> http.client.HTTPResponse:
    """The answer of an address, from byte `start` on if it can."""
    if not url.startswith(_WEB):
        raise UnusableError("an address that is neither http nor https")
    request = urllib.request.Request(url, headers={"User-Agent": "ordered-sgd"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    opener = urllib.request.build_opener(_WebOnly)  # made anew: it reads the proxies of the environment
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            os.truncate(part, 0)  # it has no such bytes: begin anew
        text = f"HTTP {error.code} {' '.join(str(error.reason).split())}"
        if error.code in _PASSING or error.code >= 500:
            raise ConnectionError(text) from error
        raise UnusableError(text) from error
    except ValueError as error:  # a redirect to an address that is none
        raise UnusableError(reason(error)) from error
    return response


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only; urllib itself would follow one to ftp."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if not newurl.startswith(_WEB):
            raise urllib.error.HTTPError(newurl, code, f"redirect to {newurl}, not followed", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _first_byte(response: http.client.HTTPResponse, asked: int, size: int) -> int:
    """The position of the first byte that will arrive: the one asked for, or 0 where the server ignores the range."""
    start = 0
    if response.status == 206:
        start = asked
        if not re.fullmatch(rf"bytes {start}-\d+/({size}|\*)", response.headers.get("Content-Range", "")):
            raise UnusableError(f"another range than bytes {start}-{size - 1}/{size}")
    if response.length is not None and response.length != size - start:
        raise UnusableError(f"{response.length:,} bytes announced instead of {size - start:,}")
    return start


def _write(file: io.FileIO, block: bytes, lacking: int) -> None:
    view = memoryview(block)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        raise cannot_write(Path(str(file.name)), error, lacking + len(view)) from error


def cannot_write(path: Path, error: OSError, lacking: int) -> DataError:
    """The error of a full disk, or one that cannot be written."""
    remedy = f"Make room for {lacking:,} bytes and run it again: it goes on from there."
    return DataError(message("fetch", str(path), "be writable", reason(error), remedy))
