"""A suite that is struck by a fault in the midst, and what is left of its tunings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import TOY_TUNER

CRASHING = """
import os, pathlib, signal, time
import pytest

FAULT, PLACE = os.environ.get("FAULT"), os.environ.get("PLACE")

def fail_at(place):
    if place == PLACE and not os.path.exists("failed-once"):
        open("failed-once", "w").close()
        started = os.getpgrp()  # the process that was started
        if FAULT == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "exit":
            os._exit(3)
        if FAULT == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)
        if FAULT == "terminate the run":
            os.kill(started, signal.SIGTERM)
            time.sleep(1)
        if FAULT == "kill the run":
            os.kill(started, signal.SIGKILL)
            time.sleep(1)
        if FAULT == "kill all":
            os.killpg(started, signal.SIGKILL)
        if FAULT == "interrupt":
            os.kill(started, signal.SIGINT)
            time.sleep(1)
        if FAULT == "interrupt all":
            os.killpg(started, signal.SIGINT)
            time.sleep(1)
        if FAULT == "interrupt twice":
            os.kill(started, signal.SIGINT)
            time.sleep(0.2)
            os.kill(started, signal.SIGINT)
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
"""

PLACES = ["set-up", "call", "tuning", "tear-down"]


@dataclass(frozen=True)
class Fault:
    """What strikes a run.

    :param name: what the suite does, as its variable FAULT says it.
    :param args: further arguments of pytest.
    """

    label: str
    name: str
    args: tuple[str, ...] = ()


_TIMEOUT = ("-ppytest_timeout", "--timeout=2")
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
]


@dataclass(frozen=True)
class Left:
    """What is left of a run's tunings, in numbers.

    :param finished: tunings that had finished.
    :param written: those of them in the file when the run was over.
    :param recovered: those of them in the file after the next run.
    """

    finished: int
    written: int
    recovered: int


def strike(fault: Fault, place: str, workers: int) -> Left:
    """Run the suite until the fault strikes it, and the next run where something is missing in the file.

    :param workers: how many workers of xdist; 0 for none, without xdist.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(TOY_TUNER)
        suite = folder / "test_crashing.py"
        suite.write_text(textwrap.dedent(CRASHING))
        distribution = ["-pxdist", f"-n{workers}"] if workers else []
        # Only workers are started again.
        args = fault.args if workers else [arg for arg in fault.args if "worker" not in arg]
        _run(folder, [*distribution, *args], FAULT=fault.name, PLACE=place)
        finished = set((folder / "finished").read_text().split())
        written = recovered = finished & _kernels(folder)
        if written != finished:
            suite.write_text("def test_nothing(): pass")
            _run(folder, [])
            recovered = finished & _kernels(folder)
        return Left(len(finished), len(written), len(recovered))


def _run(folder: Path, args: Sequence[str], **environment: str) -> None:
    log = folder / "log"
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "TOY_LOG": str(log)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-ppytest_autotune.plugin", "--autotune-dump=cache.textproto", *args],
        cwd=folder,
        env={**os.environ, **own, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    process.wait(120)
    give_up_at = time.monotonic() + 30
    with suppress(ProcessLookupError):  # its workers may outlive it for a moment
        while time.monotonic() < give_up_at:
            os.killpg(process.pid, 0)
            time.sleep(0.02)


def _kernels(folder: Path) -> set[str]:
    cache = folder / "cache.textproto"
    return set(re.findall(r'kernel: "([^"]*)"', cache.read_text())) if cache.exists() else set()
