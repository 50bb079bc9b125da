"""A Hugging Face hub on loopback ports: one for the hub, one for the host that its large files redirect to.

It speaks what huggingface_hub and kvahead ask for: the list of a revision's files, HEAD and GET of files, ranges. What
goes wrong is set per test: `faults` by the file's name, taken one after the other by GET requests for it.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@dataclass
class Repository:
    """The files of one commit; those that are LFS's are fetched from the other host, by their sha256."""

    files: dict[str, bytes]
    commit: str = COMMIT
    revisions: dict[str, str] = field(default_factory=dict)
    lfs: Callable[[str], bool] = lambda name: name.endswith((".safetensors", ".gguf"))
    gated: bool = False
    token: str | None = None  # private: only for who presents it

    def etag(self, name: str) -> str:
        data = self.files[name]
        if self.lfs(name):
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


# A fault gets the handler and the content that is asked for; true: it has answered.
Fault = Callable[["Handler", bytes], bool]


@dataclass
class Hub:
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    head_headers: dict[str, dict[str, str]] = field(default_factory=dict)  # instead of true ones
    api: Callable[[Handler], bool] | None = None
    url: str = ""
    storage_url: str = ""

    def asked(self, method: str, part: str) -> list[tuple[str, dict[str, str]]]:
        """Path and headers of the requests whose path has `part`."""
        return [(path, headers) for verb, path, headers in self.requests if verb == method and part in path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def reply(self, code: int, headers: dict[str, Any] | None = None, body: bytes = b"") -> None:
        self.send_response(code)
        headers = {"Content-Length": len(body)} | (headers or {})
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code: int, error: str, message: str = "") -> None:
        self.reply(code, {"X-Error-Code": error, "X-Error-Message": message})

    def send_content(self, data: bytes, headers: dict[str, Any] | None = None) -> None:
        """200, or 206 for a range."""
        wanted = self.headers.get("Range")
        if not wanted or self.command == "HEAD":
            self.reply(200, headers, data)
            return
        start, _, end = wanted.removeprefix("bytes=").partition("-")
        first, last = int(start), int(end) if end else len(data) - 1
        if first >= len(data):
            self.reply(416, {"Content-Range": f"bytes */{len(data)}"})
            return
        body = data[first : last + 1]
        self.reply(206, (headers or {}) | {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{len(data)}"}, body)

    def answer(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, dict(self.headers.items())))
        parts = path.strip("/").split("/")
        if parts[0] == "storage":
            self.storage("/".join(parts[1:]))
            return
        name = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if repository is None or (repository.token and token != repository.token):
            self.refuse(404 if token else 401, "RepoNotFound", "Invalid username or password.")
        elif parts[:2] == ["api", "models"]:
            self.describe(name, repository, parts[4:])
        elif repository.gated and token != "hf_granted":
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {name} is restricted.")
        else:
            self.file(repository, parts[3:])

    def describe(self, name: str, repository: Repository, rest: list[str]) -> None:
        revision = "/".join(rest[1:]) or "main"
        known = {"main": repository.commit, repository.commit: repository.commit} | repository.revisions
        if self.hub.api and self.hub.api(self):
            return
        if revision not in known:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        document: Any = {
            "id": name, "sha": known[revision],
            "siblings": [{"rfilename": file} for file in repository.files],
        }
        if rest[:1] == ["tree"]:
            document = [self.entry(repository, file) for file in repository.files]
        self.reply(200, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def entry(self, repository: Repository, file: str) -> dict[str, Any]:
        data = repository.files[file]
        lfs = {"lfs": {"oid": repository.etag(file), "size": len(data), "pointerSize": 1}}
        own = {"type": "file", "path": file, "size": len(data), "oid": repository.etag(file)}
        return own | (lfs if repository.lfs(file) else {})

    def file(self, repository: Repository, rest: list[str]) -> None:
        known = {"main": repository.commit, repository.commit: repository.commit} | repository.revisions
        # A revision may have slashes, its file's name as well.
        splits = ("/".join(rest[:i]) for i in range(1, len(rest)))
        revision = next((split for split in splits if split in known), None)
        if revision is None:
            self.refuse(404, "RevisionNotFound")
            return
        name = "/".join(rest)[len(revision) + 1 :]
        if name not in repository.files:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        data, etag = repository.files[name], repository.etag(name)
        if self.command == "GET" and not repository.lfs(name) and self.fault(name, data):
            return
        headers: dict[str, Any] = {"X-Repo-Commit": known[revision], "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if not repository.lfs(name):
            headers |= self.hub.head_headers.get(name, {}) if self.command == "HEAD" else {}
            self.send_content(data, headers)
            return
        headers |= {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": len(data), "ETag": '"of the redirect"',
                    "Location": f"{self.hub.storage_url}/storage/{name}?of={etag}"}
        self.reply(302, headers | self.hub.head_headers.get(name, {}), b"Found. Redirecting to there")

    def storage(self, name: str) -> None:
        """The other host: it knows content by its sha256, and nothing of commits."""
        etag = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["of"][0]
        for repository in self.hub.repositories.values():
            for data in repository.files.values():
                if hashlib.sha256(data).hexdigest() == etag:
                    if not self.fault(name, data):
                        self.send_content(data, {"ETag": '"something else"', "X-Repo-Commit": "not yours to say"})
                    return
        self.reply(404)

    def fault(self, name: str, data: bytes) -> bool:
        faults = self.hub.faults.get(name)
        return bool(faults) and faults.pop(0)(self, data)

    def cut(self, data: bytes, count: int) -> bool:
        """The answer to the request, but the connection ends after some bytes."""
        first = int((self.headers.get("Range") or "bytes=0-")[6:].partition("-")[0])
        code, body = (206, data[first:]) if self.headers.get("Range") else (200, data)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(body[:count])
        self.close_connection = True
        return True


@contextmanager
def running() -> Iterator[Hub]:
    """The hub and its other host, until the end of the block."""
    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
