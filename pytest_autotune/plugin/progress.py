"""Shows on the terminal which problem is being tuned, if a tuning takes long.

Pytest captures standard output while tests run. So the lines go to a copy of the terminal's file descriptor, which is
made before pytest captures anything.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from pytest_autotune.cache.wording import to_one_line
from pytest_autotune.run.reporter import Stage

#: The first line appears after this many seconds of one tuning.
AFTER_S = 10.0
#: The number of seconds between two lines.
EVERY_S = 30.0


class ProgressLine:
    """A thread that shows the current tunings; under xdist a plugin of the controller, for the whole session.

    :param config: its terminal writer tells whether pytest's own line has begun.
    :param terminal: a file descriptor of the terminal, which pytest does not capture.
    :param list_stages: returns the tunings of all processes.
    :param now: a clock, in seconds.
    """

    def __init__(
        self,
        config: pytest.Config,
        terminal: int,
        list_stages: Callable[[], Sequence[Stage]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._terminal = terminal
        self._list_stages = list_stages
        self._now = now
        #: The time of the last line; before all times if there is none yet.
        self._last_line_s = float("-inf")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None:
            self._stop.clear()
            thread = threading.Thread(target=self._watch, name="autotune-progress", daemon=True)
            thread.start()
            # Set after the start: several threads of a test may tune at once, and one of them may call stop().
            self._thread = thread

    def stop(self) -> None:
        """End the thread. A test that forks would be warned of a thread that is left."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()

    # Pytest calls these names, if the line is registered as a plugin.
    pytest_sessionstart, pytest_sessionfinish = start, stop

    def _watch(self) -> None:
        """Write lines until the thread is to end. ``wait`` returns whether it is."""
        while not self._stop.wait(AFTER_S / 10):
            self.write()

    def write(self) -> None:
        """Write a line if a tuning has taken long and the last line is old enough."""
        now_s = self._now()
        long_stages = [stage for stage in self._list_stages() if now_s - stage.started_s >= AFTER_S]
        if not long_stages or now_s - self._last_line_s < EVERY_S:
            return
        self._last_line_s = now_s
        longest_stage = min(long_stages, key=lambda stage: stage.started_s)
        text = f"autotune: tuning {to_one_line(longest_stage.describe(now_s))}"
        if len(long_stages) > 1:
            text += f" (and {len(long_stages) - 1} more)"
        # The terminal's line may have the dots of tests that passed.
        if self._config.get_terminal_writer().width_of_current_line:
            text = f"\n{text}"
        # The terminal may be gone.
        with suppress(OSError):
            os.write(self._terminal, f"{text}\n".encode(errors="replace"))


def make_progress_line(config: pytest.Config, list_stages: Callable[[], Sequence[Stage]]) -> ProgressLine | None:
    """Return the progress line of this run; None if pytest shows nothing. Call it before pytest captures anything."""
    if config.get_verbosity() < 0 or not config.pluginmanager.hasplugin("terminal"):
        return None
    try:
        # Pytest makes its terminal reporter later, and that one writes to today's standard output.
        terminal = os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        # Pytest's output goes to a buffer.
        return None
    config.add_cleanup(partial(os.close, terminal))
    return ProgressLine(config, terminal, list_stages)


class ProcessProgress:
    """Shows the tuning of the only process of a run. The thread that redraws the line runs only during a tuning."""

    def __init__(self, config: pytest.Config) -> None:
        self._stages: list[Stage] = []
        self._line = make_progress_line(config, self._list_stages)

    def _list_stages(self) -> list[Stage]:
        return list(self._stages)

    def show(self, stage: Stage | None) -> None:
        """Show a tuning, or that none is open any more."""
        self._stages.clear()
        if stage is not None:
            self._stages.append(stage)
        if self._line is None:
            return
        if stage is None:
            self._line.stop()
        else:
            self._line.start()


class ProgressFile:
    """Writes the tuning of a worker into a file of the run's folder, which the controller on this machine reads."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / f"progress-{worker}"
        self._process_id = os.getpid()

    def show(self, stage: Stage | None) -> None:
        """Write a tuning, or that none is open any more."""
        # A forked child of a test must not replace the stage of its parent.
        if os.getpid() != self._process_id:
            return
        text = ""
        if stage is not None:
            text = json.dumps(asdict(stage))
        with suppress(OSError):
            self._path.write_text(text)


def read_stages(folder: Path) -> list[Stage]:
    """Return the tunings that the workers wrote into a run's folder."""
    stages = []
    for path in folder.glob("progress-*"):
        # The file is empty without a tuning, and may be half written.
        with suppress(OSError, ValueError, TypeError):
            stages.append(Stage(**json.loads(path.read_text())))
    return stages
