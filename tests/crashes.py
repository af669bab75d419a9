"""Strike a running suite with a fault, and count the tunings that survive.

``tests/acceptance/test_crashes.py`` and ``tests/benchmarks/crash_matrix.py`` use this module.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pytest_autotune.workers.locks import find_shared_folder
from tests.conftest import REPOSITORY, TOY_TUNER
from tests.forked_workers import ForkedPytest

CRASHING = """
import os, pathlib, signal, subprocess, sys, time
import pytest

FAULT, PLACE = os.environ.get("FAULT"), os.environ.get("PLACE")
# Fault -> the signal, and its receiver: this process, the pytest process of the run, or all processes of the run.
SIGNALS = {
    "kill": ("SIGKILL", "this"),
    "another run": ("SIGKILL", "this"),
    "terminate": ("SIGTERM", "this"),
    "terminate the run": ("SIGTERM", "run"),
    "kill the run": ("SIGKILL", "run"),
    "kill all": ("SIGKILL", "all"),
    "interrupt": ("SIGINT", "run"),
    "interrupt all": ("SIGINT", "all"),
    "interrupt twice": ("SIGINT", "run"),
}

def fill_the_disk():
    with open(os.path.join(os.environ["DISK"], "ballast"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass

def run_another_two_days_later():
    for folder in pathlib.Path(os.environ["SHARED"]).glob("run-*"):
        os.utime(folder, (0, time.time() - 2 * 24 * 3600))
    os.mkdir("another")
    pathlib.Path("another/test_another.py").write_text("def test_another(): pass")
    another = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "--rootdir=another", "another"]
    subprocess.run([*another, "--autotune-dump=another/cache.textproto"], check=True, stdout=subprocess.DEVNULL)

def fail_at(place):
    if place == PLACE and not os.path.exists("failed-once"):
        open("failed-once", "w").close()
        run = os.getpgrp()  # the pytest process of the run: a worker is in its process group
        if "DISK" in os.environ:
            fill_the_disk()
        if FAULT == "another run":
            run_another_two_days_later()
        if FAULT == "stop":
            subprocess.Popen(["sh", "-c", f"sleep 3; kill -9 {os.getpid()}"], start_new_session=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        if FAULT == "exit":
            os._exit(3)
        if FAULT == "interrupt twice":
            os.kill(run, signal.SIGINT)
            time.sleep(0.2)
        if FAULT in SIGNALS:
            name, receiver = SIGNALS[FAULT]
            os.kill({"this": os.getpid(), "run": run, "all": -run}[receiver], getattr(signal, name))
            time.sleep(1)
        if FAULT == "error":
            raise RuntimeError("a device-side assert was triggered")
        if FAULT == "hang":
            time.sleep(60)

def finish(tune, name, **options):
    tune(f"lib.{name}", **options)
    with open("finished", "a") as file:
        file.write(f"lib.{name}\\n")

@pytest.fixture
def place(tune, request):
    i = request.node.callspec.params["i"]
    finish(tune, f"setup{i}")
    if i == 3:
        fail_at("set-up")
    yield
    finish(tune, f"teardown{i}")
    if i == 3:
        fail_at("tear-down")

@pytest.mark.parametrize("i", range(6))
def test_some(tune, place, i):
    finish(tune, f"call{i}")
    if i == 3:
        fail_at("call")
        tune("lib.unfinished", during=lambda: fail_at("tuning"))
    elif FAULT == "stop" and i > 3:  # another worker's claim
        deadline = time.monotonic() + 10
        while not os.path.exists("failed-once") and time.monotonic() < deadline:
            time.sleep(0.02)
        tune("lib.unfinished")
"""

PLACES = ["set-up", "call", "tuning", "tear-down"]


@dataclass(frozen=True)
class Fault:
    """A fault that strikes a run, with the surroundings of the run.

    :param name: the fault as the suite's environment variable FAULT names it.
    :param args: further arguments of pytest.
    :param shared: shell commands that put something in the place of ``$SHARED``, the folder that the processes of this
        user share. The run then has a /dev/shm of its own.
    :param disk: a folder of the suite that is a small disk. The disk is full when the fault strikes.
    :param planted: before the next run, another user puts a link and a journal beside those of this run.
    :param owner: a stopped process has the lock of the GPU.
    """

    label: str
    name: str
    args: tuple[str, ...] = ()
    shared: str = ""
    disk: str = ""
    planted: bool = False
    owner: bool = False

    @property
    def missing_right(self) -> str:
        """The right that this process lacks to cause the fault, in words; empty if it can cause the fault."""
        if (self.shared or self.disk) and not may_mount():
            return "needs the right to mount a small file system"
        return ""


_TIMEOUT = ("-ppytest_timeout", "--timeout=1")
_WAIT = ("-oautotune_wait_timeout=1",)
FAULTS = [
    Fault("kill -9 of a process that tests", "kill"),
    Fault("the same, `--max-worker-restart=0`", "kill", ("--max-worker-restart=0",)),
    Fault("os._exit of a process that tests", "exit"),
    Fault("SIGTERM of a process that tests", "terminate"),
    Fault("SIGTERM of pytest", "terminate the run"),
    Fault("kill -9 of pytest", "kill the run"),
    Fault("kill -9 of everything", "kill all"),
    Fault("pytest-timeout, by signal", "hang", (*_TIMEOUT, "--timeout-method=signal")),
    Fault("pytest-timeout, by thread", "hang", (*_TIMEOUT, "--timeout-method=thread")),
    Fault("Ctrl-C of pytest", "interrupt"),
    Fault("Ctrl-C of everything", "interrupt all"),
    Fault("Ctrl-C twice", "interrupt twice"),
    Fault("error, `-x`", "error", ("-x",)),
    Fault("SIGSTOP of a process that tests, kill -9 3 s later", "stop", _WAIT),
    Fault("a stopped process holds the GPU; kill -9", "kill", _WAIT, owner=True),
    Fault("another user's shared folder; kill -9", "kill", shared='mkdir -m 700 "$SHARED"; chown 12345 "$SHARED"'),
    Fault("a file in its place; kill -9", "kill", shared='echo mine > "$SHARED"'),
    Fault("a dangling link in its place; kill -9", "kill", shared='ln -s nowhere "$SHARED"'),
    Fault("a link to a folder in its place; kill -9", "kill", shared='mkdir -m 700 /dev/shm/x; ln -s x "$SHARED"'),
    Fault("/dev/shm without an inode; kill -9", "kill", shared="mount -o remount,nr_inodes=1 /dev/shm"),
    Fault("/dev/shm is read-only; kill -9", "kill", shared="mount -o remount,ro /dev/shm"),
    Fault("another run two days later; kill -9", "another run", shared="true"),
    Fault("another user's link and journal; kill -9 of pytest", "kill the run", planted=True),
    Fault("the dump's disk is full; kill -9", "kill", disk="disk"),
    Fault("the journals' disk is full; error", "error", disk=".pytest_cache"),
    Fault("the disk of both is full; error", "error", disk="."),
]


@dataclass(frozen=True)
class StrikeResult:
    """The number of a run's tunings that survived a fault.

    :param finished: the tunings that had finished when the fault struck.
    :param written: the finished tunings that were in the file at the end of the run.
    :param recovered: the finished tunings that were in the file after the next run.
    :param reported_lost: the number of tunings that the summary reported as lost.
    :param is_foreign_unchanged: the files of other users are unchanged, and the file has none of their entries.
    """

    finished: int
    written: int
    recovered: int
    reported_lost: int = 0
    is_foreign_unchanged: bool = True

    @property
    def lost(self) -> int:
        """The number of finished tunings that are lost, but that the summary did not report as lost."""
        return max(self.finished - self.recovered - self.reported_lost, 0)


def strike(fault: Fault, place: str, workers: int, is_forked: bool = False) -> StrikeResult:
    """Run the suite until the fault strikes. If tunings are missing in the file, run a second suite to recover them.

    :param workers: the number of xdist workers; 0 for a run without xdist.
    :param is_forked: whether pytest and its workers are forked from a process that has imported pytest.
    """
    with tempfile.TemporaryDirectory() as name, _small_disk(fault, Path(name)) as disk, _owner(fault) as gpu:
        folder = Path(name)
        suite = folder / "test_crashing.py"
        dump = folder / ("disk/cache.textproto" if fault.disk == "disk" else "cache.textproto")
        (folder / "conftest.py").write_text(TOY_TUNER)
        suite.write_text(textwrap.dedent(CRASHING))
        distribution = ["-pxdist", f"-n{workers}"] if workers else []
        # A serial run knows no option about restarting workers.
        args = fault.args if workers else [arg for arg in fault.args if "worker" not in arg]
        environment = {"FAULT": fault.name, "PLACE": place, "TOY_GPU": gpu, **disk}
        output = _run(folder, dump, fault, [*distribution, *args], environment, is_forked)
        (folder / "finished").touch()
        finished = set((folder / "finished").read_text().split())
        written = recovered = finished & _kernels(dump)
        (folder / (fault.disk or ".") / "ballast").unlink(missing_ok=True)
        foreign_files = _plant(folder) if fault.planted else {}
        if written != finished or fault.planted:
            suite.write_text("def test_nothing(): pass")
            _run(folder, dump, fault, [], {}, is_forked)
            recovered = finished & _kernels(dump)
        is_foreign_unchanged = "lib.planted" not in _kernels(dump)
        for path, data in foreign_files.items():
            if not path.exists() or path.read_bytes() != data:
                is_foreign_unchanged = False
        reported_lost = _find_reported_lost(output)
        return StrikeResult(len(finished), len(written), len(recovered), reported_lost, is_foreign_unchanged)


def _run(
    folder: Path, dump: Path, fault: Fault, args: Sequence[str], environment: dict[str, str], is_forked: bool
) -> str:
    """Run a dump, wait until all its processes have ended, and return the output."""
    variables = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "TOY_LOG": str(folder / "log"),
        "SHARED": f"/dev/shm/pytest-autotune-{os.getuid()}",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(REPOSITORY)])),
    }
    options = ["-q", "-ppytest_autotune.plugin", f"--autotune-dump={dump}", *args]
    # The output is outside the suite's disk, which may be full.
    with tempfile.TemporaryFile() as output:
        # A forked process could not have a /dev/shm of its own.
        if is_forked and not fault.shared:
            forked = ForkedPytest(options, folder, {**os.environ, **variables, **environment}, output.fileno())
            forked.wait(300)
            group = forked.pid
        else:
            command = [sys.executable, "-m", "pytest", *options]
            if fault.shared:
                shell = f'set -e; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; {fault.shared}; exec "$@"'
                command = ["unshare", "--mount", "sh", "-c", shell, "sh", *command]
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **variables, **environment},
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            process.wait(300)
            group = process.pid
        give_up_at = time.monotonic() + 60
        # Workers may live a moment longer than pytest.
        with suppress(ProcessLookupError):
            while time.monotonic() < give_up_at:
                os.killpg(group, 0)
                time.sleep(0.02)
        output.seek(0)
        return output.read().decode(errors="replace")


def _kernels(dump: Path) -> set[str]:
    return set(re.findall(r'kernel: "([^"]*)"', dump.read_text())) if dump.exists() else set()


def _find_reported_lost(output: str) -> int:
    """Return the number of tunings that a run's summary reports as lost."""
    match = re.search(r"(\d+) of \d+ tunings are lost", output)
    return int(match[1]) if match else 0


@cache
def may_mount() -> bool:
    """Whether this process may mount a small file system that only its children see."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        return os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@contextmanager
def _small_disk(fault: Fault, folder: Path) -> Iterator[dict[str, str]]:
    """Mount a small disk at the fault's folder, if the fault has one. Yield environment variables for the suite."""
    if not fault.disk:
        yield {}
        return
    disk = folder / fault.disk
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], check=True)
    try:
        yield {"DISK": str(disk)}
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@contextmanager
def _owner(fault: Fault) -> Iterator[str]:
    """Yield the name of a GPU that no other suite uses. If the fault asks for it, a stopped process has its lock."""
    gpu = f"crash-{uuid.uuid4().hex}"
    lock = find_shared_folder().path / f"gpu-{hashlib.sha256(gpu.encode()).hexdigest()[:16]}.lock"
    try:
        if not fault.owner:
            yield gpu
            return
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, str(lock)], cwd=REPOSITORY, stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdout is not None
            # The process prints a line when it has the lock.
            owner.stdout.readline()
            try:
                yield gpu
            finally:
                owner.kill()
    finally:
        lock.unlink(missing_ok=True)


OWNER = """
import os, signal, sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def _plant(folder: Path) -> dict[Path, bytes]:
    """Put a link to files of another user, and a journal of another user, beside the journals of a run.

    :returns: the content of each file that must not change, by its path.
    """
    precious = folder / "precious"
    precious.mkdir()
    planted = [precious / name for name in ("module.py", "gw0-1.jsonl", "lock")]
    for path in planted:
        path.write_text("precious")
    for runs in filter(Path.is_dir, (folder / ".pytest_cache/d/autotune").iterdir()):
        (runs / "1-deadbeef").symlink_to("../../../../precious")
        journals = list(runs.glob("*-*/*.jsonl"))
        if os.geteuid() == 0 and journals:
            theirs = runs / "2-deadbeef" / "gw0-1.jsonl"
            theirs.parent.mkdir()
            theirs.write_text(re.sub(r"lib\.\w+", "lib.planted", journals[0].read_text()))
            for path in (theirs, theirs.parent):
                os.chown(path, 12345, 12345)
            planted.append(theirs)
    return {path: path.read_bytes() for path in planted}
