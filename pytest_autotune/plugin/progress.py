"""Says on the terminal what is tuned, now and then while that takes long.

Tests run meanwhile, and with them pytest's capture: what is written goes to a copy of the terminal's descriptor, which
was made before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import pytest

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.run.notes import Progress, Stage

#: The first line comes after so many seconds of a tuning,
AFTER_S = 10.0
#: and the next one not before so many more.
EVERY_S = 30.0


@dataclass(eq=False)
class ProgressLine:
    """Says what is tuned, by a thread; as a plugin of xdist's controller, for the whole session.

    :param config: has the writer that says whether pytest's own line has begun.
    :param terminal: a descriptor, written to whatever is captured.
    :param stages: what is tuned now, by this process or by others.
    """

    config: pytest.Config
    terminal: int
    stages: Callable[[], Sequence[Stage]]
    now: Callable[[], float] = time.time
    _last: float = float("-inf")
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._stop.clear()
            thread = threading.Thread(target=self._watch, name="autotune-progress", daemon=True)
            thread.start()
            self._thread = thread  # now: threads of a test tune at once, and one may end

    def stop(self) -> None:
        """No thread is left, which a test that forks would be warned of."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()

    pytest_sessionstart, pytest_sessionfinish = start, stop

    def _watch(self) -> None:
        while not self._stop.wait(AFTER_S / 10):
            self.write()

    def write(self) -> None:
        """Say what is tuned now, if it has taken a while and a line is due."""
        now = self.now()
        stages = sorted((one for one in self.stages() if now - one.since >= AFTER_S), key=lambda one: one.since)
        if stages and now - self._last >= EVERY_S:
            self._last = now
            more = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
            begin = "\n" if self.config.get_terminal_writer().width_of_current_line else ""
            with suppress(OSError):  # a terminal that is gone
                text = f"{begin}autotune: tuning {to_one_line(stages[0].text(now))}{more}\n"
                os.write(self.terminal, text.encode(errors="replace"))


def progress_line(config: pytest.Config, stages: Callable[[], Sequence[Stage]]) -> ProgressLine | None:
    """The line of this run; None where nothing is shown. To be called while nothing is captured."""
    if config.get_verbosity() < 0 or not config.pluginmanager.hasplugin("terminal"):
        return None
    try:
        # The terminal's reporter is made later, and writes to what is standard output now.
        terminal = os.dup(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # pytest's output goes to a buffer
        return None
    config.add_cleanup(partial(os.close, terminal))
    return ProgressLine(config, terminal, stages)


def progress_of_process(config: pytest.Config) -> Progress:
    """Says what this process tunes, which is the only one of its run; no thread is there but in a tuning."""
    tuned: list[Stage] = []
    line = progress_line(config, lambda: list(tuned))

    def tell(stage: Stage | None) -> None:
        tuned[:] = [stage] if stage is not None else []
        if line is not None:
            line.start() if tuned else line.stop()

    return Progress(tell)


def file_of_worker(folder: Path, worker: str) -> Callable[[Stage | None], None]:
    """Writes what a worker tunes into a file of the run's folder, for its controller on the same machine."""
    path, process = folder / f"progress-{worker}", os.getpid()

    def tell(stage: Stage | None) -> None:
        if os.getpid() == process:  # not a forked child of a test: its parent may be tuning, too
            with suppress(OSError):
                path.write_text(json.dumps(asdict(stage)) if stage is not None else "")

    return tell


def stages_in(folder: Path) -> list[Stage]:
    """What workers say that they tune."""
    found = []
    for path in folder.glob("progress-*"):
        with suppress(OSError, ValueError, TypeError):  # nothing now, or it writes just now
            found.append(Stage(**json.loads(path.read_text())))
    return found
