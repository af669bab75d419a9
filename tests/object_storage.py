"""Object storage for tests: moto's S3, a proxy that makes requests fail, and a stub of Google's XML API."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

KEYS = {"AWS_ACCESS_KEY_ID": "a" * 8, "AWS_SECRET_ACCESS_KEY": "b" * 8}
BUCKET = "bucket"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@contextlib.contextmanager
def served(command: list[str], port: int) -> Iterator[int]:
    """Run a server until it is not needed any more."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield port
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def moto() -> Iterator[int]:
    """moto's server, with an empty bucket."""
    port = free_port()
    with served([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port):
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")).close()
        yield port


class Proxy:
    """Stands before a server, counts requests, and makes some of them fail.

    ``faults`` is by operation (LIST, GET, PUT, DELETE): what happens to it, or a list with that for the next ones: a
    status, ``slow`` (503 after a while), ``reset``, ``hang``, ``truncated``, ``lost`` (it is done, and the answer does
    not come), ``taken`` (a PUT that is acknowledged and not done), ``repeated`` and ``left out`` (of a LIST, its first
    object), ``endless`` and ``empty`` (each page of a LIST says that there is another, and holds its objects or none),
    or a function that is called when it is done. ``faults_below`` is the
    same for the requests that name what its key is a part of.
    """

    def __init__(self, server: int) -> None:
        self.faults: dict[str, str | list[str] | Callable[[], object]] = {}
        self.faults_below: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []
        self.heads: list[str] = []
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that lead S3 to this server."""
        port = self._listening.getsockname()[1]
        return KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_REGION": "us-east-1"}

    def close(self) -> None:
        self._ended.set()
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            request = _message(client)
            head = request.partition(b"\r\n\r\n")[0].decode()
            method = head.partition(" ")[0]
            operation = "LIST" if "list-type" in head else "DELETE" if method == "POST" else method
            self.requests.append(operation)
            self.heads.append(head)
            below = [faults for part, faults in list(self.faults_below.items()) if part.encode() in request]
            fault = (below[0] if below else self.faults).get(operation, "")
            if isinstance(fault, list):
                fault = fault.pop(0) if fault else ""
            if fault == "reset":
                _reset(client)
            elif fault == "hang":
                self._ended.wait(30)
            elif fault == "slow":
                self._ended.wait(2.6)
                client.sendall(b"HTTP/1.1 503 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            elif fault == "taken":
                client.sendall(b'HTTP/1.1 200 X\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
            elif isinstance(fault, str) and fault.isdecimal():
                client.sendall(f"HTTP/1.1 {fault} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            else:
                if fault in ("endless", "empty"):
                    request = re.sub(rb"continuation-token=[^& ]*&?", b"", request)
                answer = self._answer(request)
                if callable(fault):
                    fault()
                if fault == "lost":
                    _reset(client)
                elif fault == "truncated":
                    client.sendall(answer[:-10])
                else:
                    client.sendall(_listed(answer, fault) if fault in _LISTS else answer)

    def _answer(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._server)) as server:
            server.sendall(request)
            answer = _message(server)
        return answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def _message(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (more := connection.recv(65536)):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    missing = int(length[1]) - len(body) if length else 0
    while missing > 0 and (more := connection.recv(65536)):
        data, missing = data + more, missing - len(more)
    return data


def _reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


_LISTS = ("repeated", "left out", "endless", "empty")
_OBJECT = re.compile(rb"(<Contents>.*?</Contents>)", re.DOTALL)


def _listed(answer: bytes, fault: object) -> bytes:
    head, _, body = answer.partition(b"\r\n\r\n")
    if fault in ("repeated", "left out"):
        body = _OBJECT.sub(rb"\1\1" if fault == "repeated" else b"", body, count=1)
    else:
        next_page = b"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
        body = body.replace(b"<IsTruncated>false</IsTruncated>", next_page)
        if fault == "empty":
            body = _OBJECT.sub(b"", body)
    head = re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % len(body), head)
    return head + b"\r\n\r\n" + body


class _Google(BaseHTTPRequestHandler):
    """Of Google's XML API what a store needs: objects with generations; ``/bucket/name`` and ``/bucket?prefix=``."""

    protocol_version = "HTTP/1.1"
    # The head and the body of an answer are sent one after the other. TCP would keep the body back for 40 ms.
    disable_nagle_algorithm = True
    objects: ClassVar[dict[str, bytes]]

    def log_message(self, format: str, *args: object) -> None: ...

    def _reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (("Content-Length", len(body)), ("ETag", '"1"'), ("x-goog-generation", 1)):
            self.send_header(name, str(value))
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 22:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).partition(f"/{BUCKET}/")[2]

    def do_PUT(self) -> None:
        self.objects[self._name] = self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(200)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "prefix" in query:
            names = sorted(name for name in self.objects if name.startswith(query["prefix"][0]))
            rows = "".join(
                f"<Contents><Key>{name}</Key><LastModified>2026-11-22T22:00:00.000Z</LastModified><ETag>1</ETag>"
                f"<Size>{len(self.objects[name])}</Size></Contents>"
                for name in names
            )
            self._reply(200, f"<ListBucketResult>{rows}</ListBucketResult>".encode())
        elif self._name in self.objects:
            self._reply(200, self.objects[self._name])
        else:
            self._reply(404)

    def do_DELETE(self) -> None:
        self._reply(204 if self.objects.pop(self._name, None) is not None else 404)


@contextlib.contextmanager
def google() -> Iterator[dict[str, str]]:
    """The stub, and the environment in which Google's storage is there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Google", (_Google,), {"objects": {}}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    key = '"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""'
    try:
        yield {"GOOGLE_SERVICE_ACCOUNT_KEY": f'{{"gcs_base_url": "http://127.0.0.1:{server.server_port}", {key}}}'}
    finally:
        server.shutdown()
        server.server_close()
