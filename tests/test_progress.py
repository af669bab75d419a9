"""What is shown while a tuning takes longer than a moment: on a terminal, in a log, and from workers."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.model import Device, Problem
from pytest_autotune.run.notes import WAITING_FOR_GPU, Progress, Stage
from pytest_autotune.session.progress import ProgressLine, file_of_worker, progress_line, stages_in
from tests.conftest import DISTRIBUTIONS, Suite

PROBLEM = Problem("toy", "lib.op", (), Device("GPU", "arch", 1))
INNER = Problem("toy", "lib.inner", (), Device("GPU", "arch", 1))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A line on a terminal of 60 columns, of which pytest has used 10."""

    def __init__(self, is_live: bool, *stages: Stage, used: int = 10) -> None:
        self.clock = Clock()
        self.stages = list(stages)
        self.reads, terminal = os.pipe()
        os.set_blocking(self.reads, False)
        writer = SimpleNamespace(fullwidth=60, width_of_current_line=used)
        config: Any = SimpleNamespace(get_terminal_writer=lambda: writer)
        self.line = ProgressLine(config, terminal, lambda: self.stages, is_live, self.clock)

    def written(self) -> str:
        try:
            return os.read(self.reads, 4096).decode()
        except BlockingIOError:
            return ""

    def after(self, seconds: float) -> str:
        """What is written after so many seconds of a tuning."""
        self.clock.now = 100.0 + seconds
        self.line.draw()
        return self.written()


STAGE = Stage("toy:lib.op", 100.0, "candidate 3 of 12")


def test_a_terminal_shows_kernel_candidate_and_seconds_in_the_rest_of_pytests_line_and_clears_it() -> None:
    screen = Screen(True, STAGE)

    assert screen.after(0.9) == ""
    assert screen.after(4) == "\x1b7\x1b[K toy:lib.op: candidate 3 of 12, 4s\x1b8"
    screen.line.clear()
    screen.line.clear()
    assert screen.written() == "\x1b[K"


def test_a_line_never_wraps() -> None:
    assert Screen(True, Stage("toy:" + "k" * 90, 100.0)).after(2).count("k") < 49
    assert Screen(True, STAGE, used=45).after(2) == ""


def test_what_several_workers_tune_is_one_line_with_the_longest() -> None:
    younger = Stage("toy:lib.other", 102.0, WAITING_FOR_GPU)

    assert "toy:lib.op: candidate 3 of 12, 9s (and 1 more)" in Screen(True, younger, STAGE).after(9)
    assert "toy:lib.other: waiting for the GPU, 7s" in Screen(True, younger).after(9)


def test_a_log_has_a_plain_line_now_and_then_and_never_an_escape_code() -> None:
    screen = Screen(False, STAGE)

    lines = {second: text for second in range(0, 200, 5) if (text := screen.after(second))}
    screen.line.clear()

    assert lines == {
        30: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 30s\n",
        90: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 90s\n",
        150: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 150s\n",
    }


@pytest.mark.parametrize(
    ("live", "capture", "environment"),
    [
        (True, "fd", {"TERM": "xterm", "CI": ""}),
        (False, "no", {"TERM": "xterm", "CI": ""}),
        (False, "fd", {"TERM": "dumb", "CI": ""}),
        (False, "fd", {"TERM": "xterm", "CI": "true"}),
    ],
)
def test_escape_codes_are_for_terminals_alone(
    live: bool, capture: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config: Any = SimpleNamespace(
        getoption=lambda name, default: capture,
        get_verbosity=lambda: 0,
        pluginmanager=SimpleNamespace(hasplugin=bool),
        add_cleanup=lambda close: close(),
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with open(pty.openpty()[1], "w") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", terminal)
        line = progress_line(config, list)

    assert line is not None
    assert line.is_live is live


def test_the_stages_of_a_tuning_are_told_and_an_inner_one_before_the_outer() -> None:
    told: list[str | None] = []
    clock = Clock()
    progress = Progress(lambda stage: told.append(stage and stage.text(clock.now)), clock)

    progress.begin(PROBLEM)
    progress.at(PROBLEM, "candidate 1 of 2")
    clock.now += 5
    progress.at(PROBLEM, WAITING_FOR_GPU)
    progress.at(PROBLEM, "9 of 12 candidates race")
    progress.at(INNER, "candidate 1 of 1")
    progress.begin(INNER)
    progress.end(INNER)
    progress.end(PROBLEM)
    progress.end(PROBLEM)

    assert told == [
        "toy:lib.op: 0s",
        "toy:lib.op: candidate 1 of 2, 0s",
        "toy:lib.op: waiting for the GPU, 5s",
        "toy:lib.op: 9 of 12 candidates race, 5s",
        "toy:lib.inner: 0s",
        "toy:lib.op: 9 of 12 candidates race, 5s",
        None,
    ]


def test_a_worker_tells_its_controller_by_a_file_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    progress = Progress(file_of_worker(tmp_path, "gw1"))

    progress.begin(PROBLEM)
    progress.at(PROBLEM, "candidate 2 of 3")
    (stage,) = stages_in(tmp_path)
    (tmp_path / "progress-gw0").write_text('{"torn')
    progress.end(PROBLEM)

    assert (stage.kernel, stage.doing) == ("toy:lib.op", "candidate 2 of 3")
    assert stages_in(tmp_path) == []


SLOW = """
import time
def test_slow(tune):
    print("captured")
    assert tune("lib.slow", during=lambda: time.sleep(1.6)) == "a"
"""


@pytest.mark.parametrize("workers", ["serial", *(["n2"] if "n2" in DISTRIBUTIONS else [])])
def test_on_a_real_terminal_the_line_comes_and_goes_and_capture_holds(serial_suite: Suite, workers: str) -> None:
    serial_suite.write(test_slow=SLOW)
    screen, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "TOY_LOG": str(serial_suite.log)}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ""}
    command = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "--autotune-dump=cache.textproto"]
    command += [part.replace("2", "1") for part in DISTRIBUTIONS[workers]]
    ran = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment, cwd=serial_suite.folder)
    os.close(terminal)
    shown = StringIO()
    try:
        while data := os.read(screen, 4096):
            shown.write(data.decode())
    except OSError:  # the other end is closed
        pass
    assert ran.wait(60) == 0

    before, _, after = shown.getvalue().partition("\x1b7\x1b[K toy:lib.slow: 1s\x1b8")
    assert workers != "serial" or "test_slow.py " in before
    assert "\x1b[K" in after, repr(shown.getvalue())
    assert "1 passed" in after
    assert "captured" not in shown.getvalue()
