"""Shows on the terminal what is tuned, while that takes longer than a moment.

Tests run meanwhile, and with them pytest's capture: what is written goes to a copy of the terminal's descriptor, which
was made before. On a terminal, the rest of pytest's own line is used and cleared again. Elsewhere, where escape codes
would stay in a file, a long tuning says so in a line of its own now and then.
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

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.run.notes import Progress, Stage

#: A tuning that is shorter is not shown; in seconds.
AFTER_S = 1.0
#: So often it is looked at what is tuned.
EVERY_S = 0.25
#: Where lines stay, the first one comes after so many seconds of a tuning,
PLAIN_AFTER_S = 30.0
#: and the next one not before so many more.
PLAIN_EVERY_S = 60.0
#: What is not worth a line.
_NARROW = 20
_SAVE, _RESTORE, _CLEAR = "\x1b7", "\x1b8", "\x1b[K"


@dataclass(eq=False)
class ProgressLine:
    """Shows stages on a terminal, by a thread; as a plugin of xdist's controller, for the whole session.

    :param config: has the writer that says how much of its line pytest has used.
    :param terminal: a descriptor, written to whatever is captured.
    :param stages: what is tuned now, by this process or by others.
    :param is_live: it is shown in the rest of pytest's own line and cleared again, not in lines that stay.
    """

    config: pytest.Config
    terminal: int
    stages: Callable[[], Sequence[Stage]]
    is_live: bool
    now: Callable[[], float] = time.time
    #: What stands in pytest's line now.
    _drawn: str = ""
    _last_plain: float = float("-inf")
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Show what there is until :meth:`stop`."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._keep_drawing, name="autotune-progress", daemon=True)
            self._thread.start()

    @pytest.hookimpl(tryfirst=True)
    def stop(self) -> None:
        """Show nothing any more; no thread is left, which a test that forks would be warned of."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
        self.clear()

    @pytest.hookimpl(tryfirst=True)
    def clear(self) -> None:
        """Leave pytest's line as it was."""
        if self._drawn:
            self._drawn = ""
            self._write(_CLEAR)

    pytest_sessionstart, pytest_sessionfinish = start, stop
    pytest_runtest_logstart = pytest_runtest_logreport = pytest_runtest_logfinish = clear

    def _write(self, text: str) -> None:
        with suppress(OSError):  # a terminal that is gone
            os.write(self.terminal, text.encode(errors="replace"))

    def _keep_drawing(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.draw()

    def draw(self) -> None:
        """Show what is tuned now, if it has taken a while."""
        now, after = self.now(), AFTER_S if self.is_live else PLAIN_AFTER_S
        stages = sorted((one for one in self.stages() if now - one.since >= after), key=lambda one: one.since)
        if not stages:
            self.clear()
            return
        more = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
        text = one_line(f"{stages[0].text(now)}{more}")
        writer = self.config.get_terminal_writer()
        used = writer.width_of_current_line
        left = writer.fullwidth - used - 2
        if not self.is_live and now - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = now
            self._write(f"{chr(10) if used else ''}autotune: tuning {text}\n")
        elif self.is_live and left > _NARROW and text != self._drawn:
            self._drawn = text
            shown = text if len(text) < left else f"{text[: left - 2]}…"
            # One write, so that what pytest writes meanwhile comes before or after it.
            self._write(f"{_SAVE}{_CLEAR} {shown}{_RESTORE}")


def progress_line(config: pytest.Config, stages: Callable[[], Sequence[Stage]]) -> ProgressLine | None:
    """The line of this run; None where nothing is shown. To be called while nothing is captured."""
    # The terminal's reporter is made later, and writes to what is standard output now.
    stream = sys.stdout
    if config.get_verbosity() < 0 or not config.pluginmanager.hasplugin("terminal"):
        return None
    try:
        terminal = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # pytest's output goes to a buffer
        return None
    config.add_cleanup(partial(os.close, terminal))
    is_captured = config.getoption("capture", "fd") != "no"  # else tests move the cursor
    is_dumb = os.environ.get("TERM", "") in ("", "dumb") or os.environ.get("CI")
    return ProgressLine(config, terminal, stages, is_captured and stream.isatty() and not is_dumb)


def progress_of_process(config: pytest.Config) -> Progress:
    """Shows what this process tunes, which is the only one of its run; no thread is there but in a tuning."""
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
