"""The progress line of a long tuning, in this process and in workers."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.model import Device, Problem
from pytest_autotune.plugin.progress import ProgressFile, ProgressLine, read_stages
from pytest_autotune.run.reporter import WAITING_FOR_GPU, Progress, Stage
from tests.conftest import DISTRIBUTIONS, Suite

PROBLEM = Problem("toy", "lib.op", (), Device("GPU", "arch", 1))
INNER = Problem("toy", "lib.inner", (), Device("GPU", "arch", 1))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Screen:
    """A terminal on which pytest has written dots."""

    def __init__(self, *stages: Stage) -> None:
        self.clock = Clock()
        self.reads, terminal = os.pipe()
        os.set_blocking(self.reads, False)
        config: Any = SimpleNamespace(get_terminal_writer=lambda: SimpleNamespace(width_of_current_line=10))
        self.line = ProgressLine(config, terminal, lambda: stages, self.clock)

    def after(self, seconds: float) -> str:
        """Return the text that is written after so many seconds of a tuning."""
        self.clock.now = 100.0 + seconds
        self.line.write()
        try:
            return os.read(self.reads, 4096).decode()
        except BlockingIOError:
            return ""


STAGE = Stage("toy:lib.op", 100.0, "candidate 3 of 12")


def test_a_long_tuning_prints_a_progress_line_every_30_seconds() -> None:
    screen = Screen(STAGE)

    assert {second: text for second in range(0, 75, 5) if (text := screen.after(second))} == {
        10: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 10s\n",
        40: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 40s\n",
        70: "\nautotune: tuning toy:lib.op: candidate 3 of 12, 70s\n",
    }


def test_the_progress_line_shows_the_longest_of_several_tunings() -> None:
    younger = Stage("toy:lib.other", 102.0, WAITING_FOR_GPU)

    assert "toy:lib.op: candidate 3 of 12, 19s (and 1 more)" in Screen(younger, STAGE).after(19)
    assert "toy:lib.other: waiting for the GPU, 17s" in Screen(younger).after(19)


def test_stopping_a_progress_line_as_it_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Screen(STAGE).line

    class Late(threading.Thread):
        def start(self) -> None:
            line.stop()
            super().start()

    monkeypatch.setattr(threading, "Thread", Late)
    line.start()
    line.stop()
    assert not any(isinstance(thread, Late) for thread in threading.enumerate())


def test_the_progress_line_shows_a_nested_tuning_until_it_ends() -> None:
    shown: list[str | None] = []
    clock = Clock()

    class Display:
        def show(self, stage: Stage | None) -> None:
            shown.append(stage and stage.describe(clock.now))

    progress = Progress(Display(), clock)

    progress.begin(PROBLEM)
    progress.update(PROBLEM, "candidate 1 of 2")
    clock.now += 5
    progress.update(PROBLEM, WAITING_FOR_GPU)
    progress.update(PROBLEM, "9 of 12 candidates race")
    progress.update(INNER, "candidate 1 of 1")
    progress.begin(INNER)
    progress.end(INNER)
    progress.end(PROBLEM)
    progress.end(PROBLEM)

    assert shown == [
        "toy:lib.op: 0s",
        "toy:lib.op: candidate 1 of 2, 0s",
        "toy:lib.op: waiting for the GPU, 5s",
        "toy:lib.op: 9 of 12 candidates race, 5s",
        "toy:lib.inner: 0s",
        "toy:lib.op: 9 of 12 candidates race, 5s",
        None,
    ]


def test_a_test_that_replaces_json_dumps_does_not_see_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(ProgressFile(tmp_path, "gw1"))
    monkeypatch.setattr("json.dumps", lambda *_: 1 / 0)

    progress.begin(PROBLEM)
    progress.end(PROBLEM)

    assert progress.open_tunings == []


def test_the_controller_reads_a_workers_progress_from_a_file(tmp_path: Path) -> None:
    progress = Progress(ProgressFile(tmp_path, "gw1"))

    progress.begin(PROBLEM)
    progress.update(PROBLEM, "candidate 2 of 3")
    (stage,) = read_stages(tmp_path)
    (tmp_path / "progress-gw0").write_text('{"torn')
    progress.end(PROBLEM)

    assert (stage.kernel, stage.activity) == ("toy:lib.op", "candidate 2 of 3")
    assert read_stages(tmp_path) == []


SLOW = """
import time
def test_slow(tune):
    print("captured")
    assert tune("lib.slow", during=lambda: time.sleep(0.6)) == "a"
"""


@pytest.mark.parametrize("workers", ["serial", *(["n2"] if "n2" in DISTRIBUTIONS else [])])
def test_the_progress_line_is_shown_despite_output_capture(
    serial_suite: Suite, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_LOG", str(serial_suite.log))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    serial_suite.write(test_slow=SLOW, soon="from pytest_autotune.plugin import progress; progress.AFTER_S = 0.2")

    options = ["-ppytest_autotune.plugin", "-psoon", "--autotune-dump=cache.textproto", *DISTRIBUTIONS[workers]]
    ran = serial_suite.pytester.runpytest_subprocess(*options)

    assert ran.ret == 0
    assert re.search(r"^autotune: tuning toy:lib.slow: \d+s$", ran.stdout.str(), re.MULTILINE)
    assert "captured" not in ran.stdout.str()
