"""Fork xdist workers, and runs of pytest, from a process that has imported pytest and this package.

A worker in a new interpreter needs half a second of a core for these imports, and the tests start hundreds of workers.
A forked worker is a process, too, and speaks xdist's protocol on pipes. Runs inside the tests' process use forked
workers, and so does :class:`ForkedPytest`. A run in a new interpreter, or with ``python=`` for its workers, starts new
interpreters as users' runs do.
"""

from __future__ import annotations

import ast
import atexit
import gc
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import pluggy._manager as plugin_manager_module
import pytest
from _pytest import fixtures
from _pytest._code import code as code_module
from _pytest.assertion import rewrite as assertion_rewrite
from _pytest.config import PytestPluginManager, builtin_plugins


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


def import_libraries() -> None:
    """Import the large libraries that are installed of those that test files import."""
    for name in ("hypothesis", "numpy", "torch", "triton.runtime.interpreter"):
        with suppress(ImportError):
            importlib.import_module(name)


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
    _find_installed_tuners_once()


def _find_installed_tuners_once() -> None:
    """Look for tuners of other packages in the folders that a test may change, and in site-packages only once."""
    tuners: Any = importlib.import_module("pytest_autotune.tuners")
    #: The folders of installed packages -> whether a package in them brings a tuner.
    has_tuner: dict[tuple[str, ...], bool] = {}

    def entry_points(*, group: str) -> Any:
        installed = tuple(folder for folder in sys.path if folder.endswith("site-packages"))
        if installed not in has_tuner:
            has_tuner[installed] = bool(_list_entry_points(installed, group))
        if has_tuner[installed]:
            return metadata.entry_points(group=group)
        return _list_entry_points([folder for folder in sys.path if folder not in installed], group)

    tuners.entry_points = entry_points


def _list_entry_points(folders: Sequence[str], group: str) -> list[metadata.EntryPoint]:
    entry_points = []
    for distribution in metadata.distributions(path=list(folders)):
        for entry_point in distribution.entry_points:
            if entry_point.group == group:
                entry_points.append(entry_point)
    return entry_points


def read_plugins_once() -> None:
    """Have the runs in this process remember the hooks and fixtures of the plugins of pytest, xdist and this package.

    A run looks at each name of each plugin, for hooks and then for fixtures. A quarter of its time went into that.
    """
    _remember_hooks()
    # Now, so that a process that is forked later has them.
    for module in list(sys.modules.values()):
        if _find_permanent_source(module) is not None:
            _list_hook_names(module)
            _list_fixture_names(module)
    # Both modules call dir() only to find the hooks or the fixtures of a plugin, and to find hook specifications.
    vars(plugin_manager_module)["dir"] = _list_hook_names
    vars(fixtures)["dir"] = _list_fixture_names


def _remember_hooks() -> None:
    plugin_manager: Any = PytestPluginManager
    parse = plugin_manager.parse_hookimpl_opts
    options_by_hook: dict[tuple[ModuleType | type, str], dict[str, Any] | None] = {}

    def parse_once(self: Any, plugin: object, name: str) -> Any:
        if not name.startswith("pytest_"):
            return None
        source = _find_permanent_source(plugin)
        if source is None:
            return parse(self, plugin, name)
        if (source, name) not in options_by_hook:
            options_by_hook[source, name] = parse(self, plugin, name)
        options = options_by_hook[source, name]
        # The caller changes the options.
        return None if options is None else dict(options)

    plugin_manager.parse_hookimpl_opts = parse_once


#: The names of the hooks, and of the fixtures, of each plugin whose source is permanent.
_hook_names: dict[ModuleType | type, list[str]] = {}
_fixture_names: dict[ModuleType | type, list[str]] = {}


def _list_hook_names(plugin: object) -> list[str]:
    source = _find_permanent_source(plugin)
    if source is None:
        return dir(plugin)
    if source not in _hook_names:
        _hook_names[source] = [name for name in dir(plugin) if name.startswith("pytest_")]
    return _hook_names[source]


def _list_fixture_names(holder: object) -> list[str]:
    source = _find_permanent_source(holder)
    if source is None:
        return dir(holder)
    if source not in _fixture_names:
        _fixture_names[source] = [
            name for name in dir(source) if _is_fixture(inspect.getattr_static(source, name, None))
        ]
    return _fixture_names[source]


def _is_fixture(value: object) -> bool:
    # Before pytest 8.4, a fixture is a function with this attribute.
    return type(value).__name__ == "FixtureFunctionDefinition" or hasattr(value, "_pytestfixturefunction")


def _find_permanent_source(plugin: object) -> ModuleType | type | None:
    """Return the module or class that defines a plugin; None if it may be changed between runs, or is made anew."""
    if isinstance(plugin, ModuleType):
        source, module_name = plugin, plugin.__name__
    else:
        source = plugin if isinstance(plugin, type) else type(plugin)
        module_name = source.__module__
        if "<locals>" in source.__qualname__:
            return None
    if module_name.partition(".")[0] in ("_pytest", "pytest_autotune", "xdist"):
        return source
    return None


def parse_tracebacks_once() -> None:
    """Keep the lines of each statement that a traceback shows.

    Pytest parses the whole file of each frame. The frames of an interrupt are in the largest files of pytest.
    """
    find_statement: Any = code_module.getstatementrange_ast
    ranges: dict[tuple[int, str], tuple[int, int]] = {}

    def find_once(lineno: int, source: Any, assertion: bool = False, astnode: ast.AST | None = None) -> Any:
        key = lineno, hashlib.sha256(str(source).encode()).hexdigest()
        if key not in ranges:
            astnode, start, end = find_statement(lineno, source, assertion, astnode)
            ranges[key] = start, end
        return astnode, *ranges[key]

    vars(code_module)["getstatementrange_ast"] = find_once


def rewrite_equal_files_once() -> None:
    """Keep the code of each rewritten file, for files of the same text in other folders.

    The suites of most tests have the same conftest.py.
    """
    rewrite = assertion_rewrite._rewrite_test
    codes: dict[bytes, tuple[Any, CodeType]] = {}

    def rewrite_once(path: Path, config: pytest.Config) -> tuple[Any, CodeType]:
        text = path.read_bytes()
        if text not in codes:
            codes[text] = rewrite(path, config)
        # Pytest 9.2 has a hash of the text here, and earlier versions have the status of the file.
        version, code = codes[text]
        if isinstance(version, os.stat_result):
            version = path.stat()
        return version, _move_code(code, str(path))

    assertion_rewrite._rewrite_test = rewrite_once  # type: ignore[assignment]


def _move_code(code: CodeType, path: str) -> CodeType:
    """Return the code, and that of its functions, as of a file at another path."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            constant = _move_code(constant, path)
        constants.append(constant)
    return code.replace(co_filename=path, co_consts=tuple(constants))


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
    """A forked worker, with the attributes of ``subprocess.Popen`` that execnet uses."""

    def __init__(self) -> None:
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
        self.pid = _fork(Path.cwd(), os.environ, None, [theirs_in, theirs_out, 2])
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


class ForkedPytest:
    """A process that runs pytest in a session of its own, as ``subprocess.Popen`` with ``start_new_session`` does.

    The process is forked, and so are its xdist workers.
    """

    def __init__(self, args: Sequence[str], folder: Path, environment: Mapping[str, str], output: int) -> None:
        self._status, theirs = os.pipe()
        with open(os.devnull, "rb") as no_input:
            self.pid = _fork(folder, environment, ["pytest", *args], [no_input.fileno(), output, output, theirs])
        os.close(theirs)

    def wait(self, timeout_s: float) -> int:
        """Return the exit status, negative for a signal."""
        if not select.select([self._status], [], [], timeout_s)[0]:
            raise TimeoutError(f"pytest has not ended after {timeout_s} s")
        status = int(os.read(self._status, 100))
        os.close(self._status)
        return status


def _fork(folder: Path, environment: Mapping[str, str], command: list[str] | None, descriptors: list[int]) -> int:
    """Have a process forked, and return its number.

    :param command: ``pytest`` or ``pytest-autotune`` with its arguments; None for a worker.
    :param descriptors: input, output and errors of the process; for a command, a pipe for its status, too.
    """
    with _asking:  # each thread gets the answer to its own message
        server = _server()
        socket.send_fds(server, [json.dumps([str(folder), dict(environment), command]).encode()], descriptors)
        return int(server.recv(100))


#: A program that has a command forked by the server of the tests' process, and ends with the command's status.
_CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(fileno=int(os.environ.pop("FORK_SERVER")))
status, theirs = os.pipe()
message = json.dumps([os.getcwd(), dict(os.environ), [{command!r}, *sys.argv[1:]]]).encode()
socket.send_fds(server, [message], [0, 1, 2, theirs])
server.recv(100)
os.close(theirs)
status = int(os.read(status, 100))
os._exit(status if status >= 0 else 128 - status)
"""


def write_commands(folder: Path) -> int:
    """Write the programs ``pytest`` and ``pytest-autotune``, which run in forked processes, into a folder.

    :returns: the file descriptor of the server. The programs must inherit it, and need its number as ``FORK_SERVER``.
    """
    for command in ("pytest", "pytest-autotune"):
        program = folder / command
        program.write_text(_CLIENT.format(python=sys.executable, command=command))
        program.chmod(0o755)
    return _server().fileno()


_asking = threading.Lock()
#: The connection to the server of this process, once there is a server.
_connections: list[socket.socket] = []


def _server() -> socket.socket:
    if _connections:
        return _connections[0]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    atexit.register(server.kill)
    _connections.append(ours)
    return ours


def _fork_command(asked: socket.socket, descriptors: list[int]) -> None:
    """Fork a process for a command and send its number, and return in this process.

    The calling process, which the server has forked, waits for the command and writes its status.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(descriptors.pop())
        return
    asked.send(str(child).encode())
    asked.close()
    for descriptor in descriptors[:3]:
        os.close(descriptor)
    _, waited = os.waitpid(child, 0)
    os.write(descriptors[3], str(os.waitstatus_to_exitcode(waited)).encode())
    os._exit(0)


def _fork_own_workers() -> None:
    """Have the xdist workers of this process forked, by a server that ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _serve(theirs)
        # The server ends here, and so does each of its workers.
        sys.exit(0)
    theirs.close()
    _connections[:] = [ours]
    install(pytest.MonkeyPatch())


def _serve(asked: socket.socket) -> None:
    """Fork for each message until the socket is closed. A child returns when its work is done."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 4)
        if not message:
            return
        folder, environment, command = json.loads(message)
        child = os.fork()
        if child == 0:
            break
        if command is None:
            asked.send(str(child).encode())
        for descriptor in descriptors:
            os.close(descriptor)
    if command is not None:
        _fork_command(asked, descriptors)
    asked.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if command is not None:
        _run_command(*command)
    sys.argv = ["-c"]
    # As execnet begins in a new interpreter.
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def _run_command(name: str, *args: str) -> NoReturn:
    """Run ``python -m pytest`` or ``python -m pytest_autotune.cli`` in this process."""
    os.setsid()
    # The server's streams have the properties of the server's files.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if name == "pytest-autotune":
        sys.argv = [name, *args]
        sys.exit(importlib.import_module("pytest_autotune.cli.main").main())
    if "-pxdist" in args:
        # xdist gives its workers the path of the time when xdist was imported.
        importlib.import_module("xdist.workermanage")._sys_path = list(sys.path)
        _fork_own_workers()
    sys.argv = [name, "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning", *args]
    sys.exit(pytest.console_main())


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, as for "python -c"
    import_all()
    read_entry_points_once()
    read_plugins_once()
    parse_tracebacks_once()
    gc.freeze()  # pytest looks for garbage as it ends, and what is imported is none
    _serve(socket.socket(fileno=int(sys.argv[1])))
