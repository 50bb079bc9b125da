"""A server that gives the page its document and answers as a test says: piece by piece, late, cut off, or hostile.

The document and its headers are those of a real server, and so is everything that is asked for but chats, and what a
test has put in its place.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

from harness import SOON_S, Server


class Gone(Exception):
    """The page has closed the connection."""


class Out:
    """One chat's answer, as it is sent."""

    def __init__(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.handler = handler

    def begin(self, status: int = 200, **headers: str) -> None:
        self.handler.send_response(status)
        for name, value in ({"Content-Type": "text/event-stream"} | headers).items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.send_header("Connection", "close")
        self.handler.end_headers()

    def raw(self, text: str) -> None:
        try:
            self.handler.wfile.write(text.encode())
            self.handler.wfile.flush()
        except OSError as error:
            raise Gone from error

    def frame(self, document: dict[str, Any]) -> None:
        self.raw(f"data: {json.dumps(document)}\n\n")

    def text(self, *pieces: str) -> None:
        for piece in pieces:
            self.frame({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})

    def comment(self, text: str) -> None:
        self.raw(f": {text}\n\n")

    def end(self, reason: str = "stop", **usage: Any) -> None:
        self.frame({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        counts = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        self.frame({"choices": [], "usage": counts | usage})
        self.raw("data: [DONE]\n\n")

    def error(self, status: int, message: str, param: str | None = None, **headers: str) -> None:
        self.begin(status, Content_Type="application/json", **headers)
        error = {"message": message, "type": "x", "param": param, "code": None}
        self.raw(json.dumps({"error": error}))

    def whole(self, text: str, size: int = 400) -> None:
        """A complete answer, in pieces of that many characters."""
        self.begin()
        self.text(*(text[i : i + size] for i in range(0, len(text), size)))
        self.end()

    def until_gone(self) -> None:
        """Wait for the page to leave."""
        self.handler.connection.settimeout(SOON_S)
        if self.handler.connection.recv(1) != b"":
            raise AssertionError("the page sent more than its request")


class Scripted:
    """Answers chats with the functions in `answers`, in order; `bodies` has what was asked."""

    def __init__(self, real: Server) -> None:
        self.real = real
        self.answers: list[Callable[[Out], None]] = []
        self.bodies: list[dict[str, Any]] = []
        # path -> function that makes what is there: its status, text and headers; None: the connection ends
        self.places: dict[str, Callable[[], tuple[int, str, dict[str, str]] | None]] = {}
        self.left = threading.Event()  # a chat whose page has gone
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                if self.path in outer.places:
                    self.put(outer.places[self.path]())
                    return
                wanted = {k: v for k, v in self.headers.items() if k in ("Accept", "Accept-Encoding")}
                reply = outer.real.request("GET", self.path, headers=wanted)
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    if name not in ("connection", "date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def put(self, made: tuple[int, str, dict[str, str]] | None) -> None:
                if made is None:
                    return
                status, text, headers = made
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.bodies.append(json.loads(body))
                try:
                    outer.answers.pop(0)(Out(self))
                except Gone:
                    outer.left.set()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
