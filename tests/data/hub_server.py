"""A small Hugging Face Hub on this machine: the endpoints that the Hub's client calls, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Serves `files` (path -> bytes) as the dataset `dataset`. The `on_get` of a path may misbehave in its stead."""

    dataset: str
    files: dict[str, bytes]
    stated_sizes: dict[str, int] = field(default_factory=dict)  # where the listing is to say another size
    on_get: dict[str, Callable[[Answer, bytes], None]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range

    def __enter__(self) -> Hub:
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.server.hub = self  # type: ignore[attr-defined]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def downloads(self, name: str) -> list[str | None]:
        """The Range of each GET of a file."""
        return [bytes_ for method, path, bytes_ in self.requests if method == "GET" and path.endswith(f"/{name}")]

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "type": "file",
                "path": path,
                "rfilename": path,
                "size": self.stated_sizes.get(path, len(content)),
                "oid": hashlib.sha1(content).hexdigest(),
                "blobId": hashlib.sha1(content).hexdigest(),
                "lfs": {"oid": sha256(content), "sha256": sha256(content), "size": len(content), "pointerSize": 130},
            }
            for path, content in self.files.items()
        ]


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        hub: Hub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers["Range"]))
        api, resolve = f"/api/datasets/{hub.dataset}", f"/datasets/{hub.dataset}/resolve/{COMMIT}/"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            self.json({"id": hub.dataset, "sha": COMMIT, "siblings": hub.listing()})
        elif path == f"{api}/tree/{COMMIT}":
            self.json(hub.listing())
        elif path.removeprefix(resolve) in hub.files:
            name = path.removeprefix(resolve)
            handle = hub.on_get.get(name, Answer.file) if self.command == "GET" else Answer.file
            handle(self, hub.files[name])
        else:
            self.error(404, "RepoNotFound")

    def json(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status: int, code: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def file(self, content: bytes, send: int | None = None) -> None:
        """The file from the byte that is asked for on; only `send` bytes of it, and then silence, where given."""
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{sha256(self.server.hub.files[self.name()])}"')  # type: ignore[attr-defined]
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[start:] if send is None else content[start : start + send])
        if send is not None:
            self.wfile.flush()
            self.close_connection = True

    def name(self) -> str:
        return unquote(urlsplit(self.path).path).split(f"/resolve/{COMMIT}/")[1]

    def log_message(self, format: str, *args: Any) -> None:
        pass


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
