"""Downloads against a server on this machine that does everything a server can do wrong."""

import errno
import gzip
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ordered_sgd.errors import DataError
from ordered_sgd.lab.data import download as module
from ordered_sgd.lab.data.catalog import Download, Entry
from ordered_sgd.lab.data.download import Retries
from ordered_sgd.lab.data.fetch import FileCheck, fetch, verify

BODY = bytes(range(256)) * 400  # 102,400 bytes
QUICK = Retries(timeout=20, attempts=3, pause=0.01)  # a busy machine is no failure
SHORT = Retries(timeout=1, attempts=3, pause=0.01)
Answer = Callable[["Handler"], None]


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the server's script: an answer a request, the last one again and again."""

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.seen.append((self.path, self.headers.get("Range")))
        answers = server.script[self.path]
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def head(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def start(self) -> int:
        return int((self.headers.get("Range") or "bytes=0-")[6:-1])


class Server(http.server.ThreadingHTTPServer):
    """A server on 127.0.0.1 with a script, which remembers the paths and ranges that it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: dict[str, list[Answer]] = {}
        self.seen: list[tuple[str, str | None]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that has had enough hangs up

    def url(self, path: str, *answers: Answer) -> str:
        self.script[path] = list(answers)
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    with Server() as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def whole(content: bytes = BODY) -> Answer:
    def answer(handler: Handler) -> None:
        start = handler.start()
        if start:
            place = f"bytes {start}-{len(content) - 1}/{len(content)}"
            handler.head(206, Content_Length=len(content) - start, Content_Range=place)
        else:
            handler.head(200, Content_Length=len(content))
        handler.wfile.write(content[start:])

    return answer


def cut(after: int, content: bytes = BODY) -> Answer:
    """The right headers, and then only some of the bytes."""

    def answer(handler: Handler) -> None:
        start = handler.start()
        place = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.head(206 if start else 200, Content_Length=len(content) - start, Content_Range=place)
        handler.wfile.write(content[start : start + after])

    return answer


def ignores_range(content: bytes = BODY, **headers: object) -> Answer:
    def answer(handler: Handler) -> None:
        handler.head(200, **headers)
        handler.wfile.write(content)

    return answer


def status(code: int, **headers: object) -> Answer:
    return lambda handler: handler.head(code, Content_Length=0, **headers)


def hangs_up(handler: Handler) -> None:
    """Closes before a single header."""


def stalls(after: int) -> Answer:
    def answer(handler: Handler) -> None:
        handler.head(200, Content_Length=len(BODY))
        handler.wfile.write(BODY[:after])
        time.sleep(3)  # longer than SHORT's time-out

    return answer


def drips(handler: Handler) -> None:
    """All of it, slowly: in longer than the time-out, but with no pause as long."""
    handler.head(200, Content_Length=len(BODY))
    for start in range(0, len(BODY), len(BODY) // 8):
        handler.wfile.write(BODY[start : start + len(BODY) // 8])
        time.sleep(0.15)


def entry_of(*urls: str, content: bytes = BODY, path: str = "Set/raw/a.gz") -> Entry:
    file = Download(path, urls, md5(content), len(content))
    return Entry("set", "A set", (), (1,), {"train": 1}, "none", (file,))


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def refused(entry: Entry, root: Path) -> str:
    with pytest.raises(DataError) as error:
        fetch(entry, root, retries=QUICK)
    assert str(error.value).startswith("fetch: Set/raw/a.gz must arrive with 102,400 bytes and the checksum md5:")
    return str(error.value)


def test_a_file_arrives_whole_and_progress_is_told(server: Server, tmp_path: Path) -> None:
    entry, told = entry_of(server.url("/a", whole())), list[tuple[str, int, int]]()
    assert fetch(entry, tmp_path, progress=lambda *row: told.append(row)) == [tmp_path / "Set/raw/a.gz"]
    assert files_below(tmp_path) == ["Set/raw/a.gz"]
    assert (tmp_path / "Set/raw/a.gz").read_bytes() == BODY
    assert told[0] == ("Set/raw/a.gz", 0, len(BODY))
    assert told[-1] == ("Set/raw/a.gz", len(BODY), len(BODY))
    assert told == sorted(told)


def test_what_is_here_and_right_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    entry = entry_of(server.url("/a", whole()))
    fetch(entry, tmp_path)
    fetch(entry, tmp_path)
    assert server.seen == [("/a", None)]


def test_sha256_is_checked_too(server: Server, tmp_path: Path) -> None:
    right = replace(
        entry_of(server.url("/a", whole())).downloads[0], checksum=f"sha256:{hashlib.sha256(BODY).hexdigest()}"
    )
    fetch(replace(entry_of(), downloads=(right,)), tmp_path)
    wrong = replace(right, path="b", checksum="sha256:" + "0" * 64)
    with pytest.raises(DataError, match=f"checksum sha256:0+; got the checksum {right.checksum} from 127"):
        fetch(replace(entry_of(), downloads=(wrong,)), tmp_path)


def test_a_cut_connection_is_resumed_where_it_was_cut(server: Server, tmp_path: Path) -> None:
    fetch(entry_of(server.url("/a", cut(30_000), cut(1_000), whole())), tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=30000-"), ("/a", "bytes=31000-")]
    assert (tmp_path / "Set/raw/a.gz").read_bytes() == BODY


def test_a_cut_file_is_kept_as_a_part_and_the_next_call_goes_on(server: Server, tmp_path: Path) -> None:
    entry = entry_of(server.url("/a", cut(30_000), hangs_up))
    assert "(3 attempts) from 127" in refused(entry, tmp_path)
    assert files_below(tmp_path) == ["Set/raw/a.gz.part"]
    assert verify(entry, tmp_path) == [FileCheck("Set/raw/a.gz", "part", md5(BODY), "", 30_000)]
    server.script["/a"] = [whole()]
    fetch(entry, tmp_path)
    assert server.seen[-1] == ("/a", "bytes=30000-")
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_the_part_of_one_mirror_is_completed_by_the_next(server: Server, tmp_path: Path) -> None:
    first, second = server.url("/a", cut(30_000), status(404)), server.url("/b", whole())
    fetch(entry_of(first, second), tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=30000-"), ("/b", "bytes=30000-")]


def test_cuts_with_much_received_do_not_use_up_the_attempts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEADWAY", 10_000)
    fetch(entry_of(server.url("/a", cut(10_000))), tmp_path, retries=QUICK)
    assert len(server.seen) == 11


def test_a_server_that_only_ever_cuts_is_given_up(server: Server, tmp_path: Path) -> None:
    assert "a connection cut after 15 of 102,400 bytes (3 attempts)" in refused(
        entry_of(server.url("/a", cut(5))), tmp_path
    )


def test_a_server_that_ignores_the_range_starts_over(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", cut(30_000), ignores_range(Content_Length=len(BODY)))
    fetch(entry_of(url), tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=30000-")]
    assert (tmp_path / "Set/raw/a.gz").read_bytes() == BODY


def test_a_server_that_sends_another_range_is_left(server: Server, tmp_path: Path) -> None:
    def other_range(handler: Handler) -> None:
        handler.head(206, Content_Length=len(BODY) - 10, Content_Range=f"bytes 10-{len(BODY) - 1}/{len(BODY)}")
        handler.wfile.write(BODY[10:])

    assert "another range than bytes 500-102399/102400" in refused(
        entry_of(server.url("/a", cut(500), other_range)), tmp_path
    )


def test_a_range_that_the_server_does_not_have_starts_over(server: Server, tmp_path: Path) -> None:
    fetch(entry_of(server.url("/a", cut(30_000), status(416), whole())), tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=30000-"), ("/a", None)]


def test_a_part_that_is_longer_than_the_file_starts_over(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "Set/raw/a.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY + b"more")
    fetch(entry_of(server.url("/a", whole())), tmp_path)
    assert server.seen == [("/a", None)]
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_a_part_that_lacked_only_its_name_is_not_downloaded_again(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "Set/raw/a.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY)
    fetch(entry_of(server.url("/a", whole())), tmp_path)
    assert server.seen == []
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_a_part_of_wrong_bytes_is_thrown_away_and_the_same_address_asked_again(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "Set/raw/a.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 500)
    fetch(entry_of(server.url("/a", whole())), tmp_path, retries=QUICK)
    assert server.seen == [("/a", "bytes=500-"), ("/a", None)]


def test_a_slow_server_is_waited_for(server: Server, tmp_path: Path) -> None:
    fetch(entry_of(server.url("/a", drips)), tmp_path, retries=SHORT)
    assert server.seen == [("/a", None)]


def test_a_server_that_stalls_is_asked_again_for_the_rest(server: Server, tmp_path: Path) -> None:
    fetch(entry_of(server.url("/a", stalls(30_000), whole())), tmp_path, retries=SHORT)
    assert server.seen == [("/a", None), ("/a", "bytes=30000-")]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (status(404), "HTTP 404 Not Found"),
        (
            status(302, Location="file:///etc/hostname"),
            "HTTP 302 Found - Redirection to url 'file:///etc/hostname' is not allowed",
        ),
        (status(302, Location="ftp://127.0.0.1/a"), "HTTP 302 redirect to ftp://127.0.0.1/a, not followed"),
        (status(302, Location="http://[/"), "Invalid IPv6 URL"),
        (status(302, Location="/a"), "HTTP 302 The HTTP server returned a redirect error"),
        (whole(BODY + b"!"), "102,401 bytes announced instead of 102,400"),
        (whole(BODY[:-1]), "102,399 bytes announced instead of 102,400"),
        (ignores_range(BODY, Content_Length=50_000), "50,000 bytes announced instead of 102,400"),
        (ignores_range(BODY + b"!"), "more than 102,400 bytes"),
        (whole(BODY[:-1] + b"!"), f"the checksum {md5(BODY[:-1] + b'!')}"),
        (ignores_range(gzip.compress(BODY), Content_Encoding="gzip"), "a connection cut after"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_an_address_with_another_file_is_left_for_the_next(
    answer: Answer, fault: str, server: Server, tmp_path: Path
) -> None:
    first = server.url("/a", answer)
    text = refused(entry_of(first), tmp_path)
    assert fault in text
    assert f" from {urlsplit(first).netloc}. Without a network, put these files into {tmp_path} and" in text
    assert not (tmp_path / "Set/raw/a.gz").exists()
    fetch(entry_of(first, server.url("/b", whole())), tmp_path, retries=QUICK)
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


@pytest.mark.parametrize("answer", [hangs_up, status(503), status(429), stalls(0)], ids=["cut", "503", "429", "stall"])
def test_a_passing_fault_is_tried_again(answer: Answer, server: Server, tmp_path: Path) -> None:
    fetch(entry_of(server.url("/a", answer, whole())), tmp_path, retries=SHORT)
    assert server.seen == [("/a", None)] * 2


def test_a_machine_that_was_there_is_waited_for_when_it_is_gone(server: Server, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = status(302, Location=f"http://127.0.0.1:{free.getsockname()[1]}/a")
    fetch(entry_of(server.url("/a", cut(500), closed, whole())), tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=500-"), ("/a", "bytes=500-")]


def test_a_redirect_on_the_web_is_followed(server: Server, tmp_path: Path) -> None:
    there = server.url("/b", whole())
    fetch(entry_of(server.url("/a", status(302, Location=there))), tmp_path)
    assert [path for path, _ in server.seen] == ["/a", "/b"]


def test_wrong_bytes_leave_nothing_and_both_checksums_are_named(server: Server, tmp_path: Path) -> None:
    other = b"?" * len(BODY)
    text = refused(entry_of(server.url("/a", whole(other))), tmp_path)
    assert md5(BODY) in text
    assert md5(other) in text
    assert files_below(tmp_path) == []


def test_a_file_that_differs_is_replaced_only_once_the_right_one_is_here(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "Set/raw/a.gz"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"mine")
    entry = entry_of(server.url("/a", status(404)))
    assert [check.state for check in verify(entry, tmp_path)] == ["differs"]
    refused(entry, tmp_path)
    assert place.read_bytes() == b"mine"
    server.script["/a"] = [whole()]
    fetch(entry, tmp_path)
    assert place.read_bytes() == BODY


def test_without_a_network_one_message_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as free:
        machine = f"127.0.0.1:{free.getsockname()[1]}"
    closed = f"http://{machine}/a"
    files = tuple(Download(f"Set/{name}", (closed, closed + "2"), md5(name.encode()), 1) for name in "ab")
    with pytest.raises(DataError) as error:
        fetch(replace(entry_of(), downloads=files), tmp_path / "new", retries=Retries())
    first, *rest = str(error.value).split("\n")
    assert f"got Connection refused from {machine}, {machine}. Without a network" in first
    assert first.endswith(f"put these files into {tmp_path / 'new'} and run it again; it checks them:")
    assert rest == [
        line
        for file in files
        for line in (f"  {file.path} (1 bytes, {file.checksum})", *(f"    {url}" for url in file.urls))
    ]
    assert files_below(tmp_path) == []


def test_only_web_addresses_are_opened(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(BODY)
    assert "neither http nor https" in refused(entry_of((tmp_path / "here").as_uri()), tmp_path / "root")


class FullDisk(io.FileIO):
    """A file on a disk with room for 50,000 bytes."""

    def write(self, block: Any) -> int:
        room = 50_000 - self.tell()
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(memoryview(block)[:room])


def test_a_full_disk_is_named_and_the_download_goes_on_once_there_is_room(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_of(server.url("/a", whole()))
    opens = Path.open
    with monkeypatch.context() as full:
        full.setattr(
            Path,
            "open",
            lambda path, mode, buffering=-1: opens(path, mode) if buffering else FullDisk(path, mode),
        )
        with pytest.raises(DataError, match=r"part must be writable; got No space left on device. Make room for 52,4"):
            fetch(entry, tmp_path, retries=QUICK)
    assert files_below(tmp_path) == ["Set/raw/a.gz.part"]
    fetch(entry, tmp_path)
    assert server.seen == [("/a", None), ("/a", "bytes=50000-")]
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_an_interruption_leaves_only_the_part(server: Server, tmp_path: Path) -> None:
    def interrupt(path: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    entry = entry_of(server.url("/a", whole()))
    with pytest.raises(KeyboardInterrupt):
        fetch(entry, tmp_path, progress=interrupt)
    assert files_below(tmp_path) == ["Set/raw/a.gz.part"]
    fetch(entry, tmp_path)
    assert server.seen[1][1] is not None
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_two_fetches_at_once_download_once(server: Server, tmp_path: Path) -> None:
    entry = entry_of(server.url("/a", drips))
    both = [threading.Thread(target=fetch, args=(entry, tmp_path), kwargs={"retries": QUICK}) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert server.seen == [("/a", None)]
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


def test_the_fetch_of_another_process_is_waited_for(server: Server, tmp_path: Path) -> None:
    url = server.url("/a", drips)
    script = f"""if True:  # starts when it is told to, so that both ask at once
        from pathlib import Path
        from ordered_sgd.lab.data.catalog import Download, Entry
        from ordered_sgd.lab.data.fetch import fetch
        file = Download("Set/raw/a.gz", ({url!r},), {md5(BODY)!r}, {len(BODY)})
        print("ready", flush=True)
        input()
        fetch(Entry("set", "", (), (), {{}}, "", (file,)), Path({str(tmp_path)!r}))
    """
    call, pipe = [sys.executable, "-c", script], subprocess.PIPE
    others = [subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    threads = [threading.Thread(target=other.communicate, args=("\n",)) for other in others]
    for thread in threads:
        thread.start()
    fetch(entry_of(url), tmp_path, retries=QUICK)
    for thread in threads:
        thread.join()
    assert [other.returncode for other in others] == [0, 0]
    assert server.seen == [("/a", None)]
    assert (tmp_path / "Set/raw/a.gz").read_bytes() == BODY


def test_a_file_system_without_locks_still_fetches(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[fetch.__module__], "fcntl", None)
    fetch(entry_of(server.url("/a", whole())), tmp_path)
    assert files_below(tmp_path) == ["Set/raw/a.gz"]


MEMBERS = {"set-py/one": b"1" * 3000, "set-py/two": b"2" * 5000}


def archive_at(server: Server, *names: str, cut_after: int | None = None) -> Entry:
    """An entry whose members lie in an archive on the server, beside files of these names."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in {**MEMBERS, **dict.fromkeys(names, b"")}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    content = stream.getvalue()
    url = server.url("/a", *([cut(cut_after, content)] if cut_after else []), whole(content))
    members = {name: md5(inside) for name, inside in MEMBERS.items()}
    file = Download("set.tar.gz", (url,), md5(content), len(content), members)
    return replace(entry_of(), downloads=(file,))


def test_an_archive_is_unpacked_and_removed(server: Server, tmp_path: Path) -> None:
    entry = archive_at(server, "set-py/readme.html", cut_after=100)
    assert fetch(entry, tmp_path, retries=QUICK) == [tmp_path / name for name in MEMBERS]
    assert files_below(tmp_path) == list(MEMBERS)
    fetch(entry, tmp_path, retries=QUICK)
    assert server.seen == [("/a", None), ("/a", "bytes=100-")]


def test_an_archive_that_is_refused_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold paths below its own folder; got '/tmp/x'"):
        fetch(archive_at(server, "/tmp/x"), tmp_path)
    assert files_below(tmp_path) == []


def test_a_disk_that_is_full_while_unpacking_keeps_the_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = archive_at(server)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr("shutil.copyfileobj", full)
        with pytest.raises(DataError, match=r"must be writable; got No space left on device. Make room for"):
            fetch(entry, tmp_path)
    assert files_below(tmp_path) == ["set.tar.gz.part"]
    assert [check.state for check in verify(entry, tmp_path)] == ["missing", "missing", "part"]
    fetch(entry, tmp_path)
    assert len(server.seen) == 1
    assert files_below(tmp_path) == list(MEMBERS)
