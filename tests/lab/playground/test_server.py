"""The server: to this machine alone, files of the page alone, and no request that brings it down."""

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPResponse

import pytest

from ordered_sgd.errors import ArgumentError
from ordered_sgd.lab.playground.server import FILES, MOST_BYTES, Playground

JSON = {"Content-Type": "application/json"}


def ask(
    server: Playground, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def test_it_listens_on_this_machine_alone(server: Playground) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_page_is_whole_and_names_no_other_place(server: Playground) -> None:
    for path, (_, kind) in FILES.items():
        response, text = ask(server, "GET", path)
        assert (response.status, response.headers["Content-Type"]) == (200, kind)
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert not re.search(r"https?://|//[a-z]+\.|@import", text)
        for name in re.findall(r"""(?:src|href|from|fetch\()[= ]?"(?:\./)?([a-z.]+)\"""", text):
            assert f"/{name}" in {*FILES, "/settings", "/train"}
    assert json.loads(ask(server, "GET", "/settings")[1])["bounds"]["s"] == [1, 200]


def test_training_over_http(server: Playground) -> None:
    response, text = ask(server, "POST", "/train", json.dumps({"steps": 2, "settings": {"s": 10}}), JSON)
    assert response.status == 200
    assert (json.loads(text)["step"], json.loads(text)["s"]) == (2, 10)


def test_pages_at_the_same_time_do_not_disturb_each_other(server: Playground) -> None:
    def page(seed: int) -> list[int]:
        session, steps = None, []
        for _ in range(4):
            request = {"session": session, "steps": 1, "settings": {"seed": seed}}
            answer = json.loads(ask(server, "POST", "/train", json.dumps(request), JSON)[1])
            session = answer["session"]
            steps.append(answer["step"])
        return steps

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(page, range(4))) == [[1, 2, 3, 4]] * 4


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/etc/passwd", "/page", "/?x", "/train"])
def test_nothing_but_the_page_is_read(server: Playground, path: str) -> None:
    response, text = ask(server, "GET", path)
    assert response.status == 404
    assert json.loads(text) == {"error": "There is nothing here."}


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        ("{", JSON, 400, "must be JSON"),
        (b"\xff\xfe", JSON, 400, "must be JSON"),
        ("[" * 60000, JSON, 400, "must be JSON"),
        ('{"steps": ' + "9" * 9000 + "}", JSON, 400, "must be JSON"),
        ('{"settings": {"lr": NaN}}', JSON, 400, "lr must be a number from 0.0001 to 10; got nan."),
        ('{"settings": {"s": 1e999}}', JSON, 400, "s must be an int"),
        ("null", JSON, 400, "request must be an object"),
        ("{}", {"Content-Type": "text/plain"}, 415, "must be application/json"),
        ("{}", {}, 415, "must be application/json"),
        (" " * (MOST_BYTES + 1), JSON, 413, "at most 65536 bytes"),
        ("{}", {**JSON, "Content-Length": "9" * 30}, 411, "how long"),
        ("{}", {**JSON, "Content-Length": "-1"}, 411, "how long"),
        ("{}", {**JSON, "Host": "evil.example"}, 403, "Open http://127.0.0.1:"),
        ("{}", {**JSON, "Origin": "http://evil.example"}, 403, "Open http://127.0.0.1:"),
        ("{}", {**JSON, "Origin": "null"}, 403, "Open http://127.0.0.1:"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_bad_request_is_told_so_and_the_server_lives(
    server: Playground, body: str | bytes, headers: dict[str, str], status: int, words: str
) -> None:
    response, text = ask(server, "POST", "/train", body, headers)
    assert response.status == status
    assert words in json.loads(text)["error"]
    assert ask(server, "GET", "/")[0].status == 200


def test_a_page_closed_in_the_middle_is_no_fault(server: Playground, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)) as half:
        half.sendall(b"POST /train HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 50\r\n" % server.server_port)
    with socket.create_connection(("127.0.0.1", server.server_port)) as noise:
        noise.sendall(b"\x00\x01\x02\r\n\r\n")
    assert ask(server, "GET", "/")[0].status == 200
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_named(server: Playground) -> None:
    with pytest.raises(ArgumentError, match=f"--port must be free; got {server.server_port}: .* Pass another"):
        Playground(server.server_port)
