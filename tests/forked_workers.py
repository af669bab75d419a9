"""Fork xdist workers from a process that has imported pytest and this package.

A worker in a new interpreter needs half a second of a core for these imports, and the tests start hundreds of workers.
A forked worker is a process, too, and speaks xdist's protocol on pipes. Only runs inside the tests' process use forked
workers. A run in a new process, or with ``python=`` for its workers, starts new interpreters as users' runs do.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import builtin_plugins


def import_all() -> None:
    """Import the modules that each run would import again, some with rewritten assertions."""
    # wrapt imports asyncio; protobuf's extension module crashes where it is imported anew, and yaml's errors become
    # other classes. Suite.run gives each run its own import hooks in wrapt.
    names = ["asyncio", "email.parser", "filelock", "google.protobuf.text_format", "secrets", "wrapt", "yaml"]
    for name in (*names, *(f"_pytest.{name}" for name in builtin_plugins)):
        importlib.import_module(name)
    for package in ["pytest_autotune", *(["xdist"] if importlib.util.find_spec("xdist") else [])]:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def read_entry_points_once() -> None:
    """Keep the entry points of each installed distribution in this process until their file changes.

    A run asks for them several times, and a tenth of its time went into files of a hundred distributions.
    """
    read_file: Any = metadata.Distribution.entry_points.fget  # type: ignore[attr-defined]
    known: dict[tuple[str, int, int], Any] = {}

    def entry_points(distribution: metadata.Distribution) -> Any:
        folder = getattr(distribution, "_path", None)
        if not isinstance(folder, Path):
            return read_file(distribution)
        path = f"{folder}/entry_points.txt"
        try:
            status = os.stat(path)
        except OSError:
            if folder.suffix != ".dist-info":
                return read_file(distribution)
            key = path, 0, 0
        else:
            key = path, status.st_mtime_ns, status.st_size
        if key not in known:
            known[key] = read_file(distribution)
        return known[key]

    metadata.Distribution.entry_points = property(entry_points)  # type: ignore[assignment,method-assign]
    metadata.entry_points()  # now, so that a process that is forked later has them


def install(patch: pytest.MonkeyPatch) -> None:
    """Have execnet, which starts xdist's workers, fork them."""
    gateway_io: Any = pytest.importorskip("execnet.gateway_io")
    create_io = gateway_io.create_io

    class ForkedIO(gateway_io.Popen2IOMaster):  # type: ignore[misc]
        def __init__(self, execmodel: Any) -> None:
            self.popen = _Worker()
            gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel)

    def forked(spec: Any, execmodel: Any) -> Any:
        return ForkedIO(execmodel) if spec.popen and not spec.python else create_io(spec, execmodel)

    patch.setattr(gateway_io, "create_io", forked)


class _Worker:
    """What execnet needs of a ``subprocess.Popen``."""

    def __init__(self) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        server = _server()
        socket.send_fds(server, [json.dumps([os.getcwd(), dict(os.environ)]).encode()], [theirs_in, theirs_out, 2])
        self.pid = int(server.recv(100))
        os.close(theirs_in)
        os.close(theirs_out)

    def wait(self) -> None:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(self.pid)
            select.select([process], [], [])
            os.close(process)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    atexit.register(server.kill)
    return ours


def _serve(asked: socket.socket) -> None:
    """Fork for each message, until nobody can ask any more; a child returns when its work is done."""
    import_all()
    read_entry_points_once()
    gc.freeze()  # pytest looks for garbage as it ends, and what is imported is none
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        if not message:
            return
        child = os.fork()
        if child == 0:
            break
        asked.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder, environment = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["-c"]
    # As execnet begins in a new interpreter.
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, as for "python -c"
    _serve(socket.socket(fileno=int(sys.argv[1])))
