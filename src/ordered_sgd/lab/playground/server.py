"""The page over HTTP, on this machine alone, with nothing but the standard library."""

import json
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

import torch

from ordered_sgd.errors import ArgumentError, OrderedSGDError, message
from ordered_sgd.lab.playground.sessions import Sessions, respond
from ordered_sgd.lab.playground.settings import WHERE, describe

ADDRESS = "127.0.0.1"
MOST_BYTES = 2**16  # of a request: 400 points take about 12,000
PATIENCE = 60.0  # seconds that a connection may be silent

# Path -> file of this package and its type: nothing else is ever read from the disk.
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
JSON = "application/json"


class Playground(ThreadingHTTPServer):
    """The server, listening on 127.0.0.1; `serve_forever` answers until it is interrupted.

    Parameters
    ----------
    port
        0 for any that is free.
    """

    daemon_threads = True  # Ctrl-C does not wait for a page that keeps its connection

    def __init__(self, port: int = 0, sessions: Sessions | None = None) -> None:
        self.sessions = sessions or Sessions()
        self.lock = threading.Lock()  # one training computes at a time: pages take turns
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            remedy = "Pass another, or --port 0 for any that is free."
            raise ArgumentError(message(WHERE, "--port", "be free", f"{port}: {error.strerror}", remedy)) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show what went wrong, unless a page was closed before it had its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, request: object) -> dict[str, Any]:
        """What `ordered_sgd.lab.playground.sessions.respond` says, one page after the other."""
        with self.lock:
            torch.set_num_threads(1)  # the models are small: more threads only cost
            return respond(self.sessions, request)


class _Refusal(Exception):  # noqa: N818  # a reply, not a fault of ours
    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # a page keeps its connection
    timeout = PATIENCE
    server: Playground

    def do_GET(self) -> None:
        try:
            self._check_host()
            if self.path == "/settings":
                self._send(HTTPStatus.OK, JSON, json.dumps(describe()).encode())
                return
            if self.path not in FILES:
                raise _Refusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
            name, kind = FILES[self.path]
            content = (resources.files("ordered_sgd.lab.playground") / "page" / name).read_bytes()
            self._send(HTTPStatus.OK, kind, content)
        except _Refusal as refusal:
            self._refuse(refusal.status, str(refusal))

    def do_POST(self) -> None:
        try:
            self._check_host()
            if self.path != "/train":
                raise _Refusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
            answer = self.server.answer(self._read())
            self._send(HTTPStatus.OK, JSON, json.dumps(answer, allow_nan=False).encode())
        except _Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except OrderedSGDError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _check_host(self) -> None:
        """Only pages of ours: a foreign site could otherwise reach this server through the user's browser."""
        port = self.server.server_port
        ours = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        origin = self.headers.get("Origin")
        if self.headers.get("Host") not in ours or (origin is not None and origin.removeprefix("http://") not in ours):
            raise _Refusal(HTTPStatus.FORBIDDEN, f"Open {self.server.url} itself.")

    def _read(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 10):
            raise _Refusal(HTTPStatus.LENGTH_REQUIRED, "A request must say how long it is.")
        if int(length) > MOST_BYTES:
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A request must have at most {MOST_BYTES} bytes.")
        if self.headers.get_content_type() != JSON:
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"A request must be {JSON}.")
        try:
            given: object = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):  # no JSON, no UTF-8, a number of thousands of digits, a thousand brackets
            raise _Refusal(HTTPStatus.BAD_REQUEST, "A request must be JSON.") from None
        return given

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self.close_connection = True  # what it sent may not have been read
        self._send(status, JSON, json.dumps({"error": text}).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), **HEADERS}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: only the command line prints."""
