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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import pytest

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.run.progress import Progress, Stage

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


def is_live(config: pytest.Config, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether progress is shown in the rest of pytest's own line and cleared again, not in lines that stay."""
    is_captured = config.getoption("capture", "fd") != "no"  # else tests move the cursor
    is_terminal = stream.isatty() and environ.get("TERM", "") not in ("", "dumb") and not environ.get("CI")
    return is_terminal and is_captured


class ProgressLine:
    """Shows stages on a terminal.

    :param write: to the terminal, whatever is captured.
    :param place: how many columns pytest's own line has left, and whether it has begun.
    :param stages: what is tuned now, by this process or by others.
    :param is_live: as :func:`is_live` says.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        place: Callable[[], tuple[int, bool]],
        stages: Callable[[], Sequence[Stage]],
        is_live: bool,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._place = place
        self._stages = stages
        self._is_live = is_live
        self._now = now
        self._lock = threading.Lock()
        #: What stands in pytest's line now.
        self._drawn = ""
        self._last_plain = float("-inf")
        self._stop: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Show what there is every second, until :meth:`stop`."""
        if self._thread is not None:
            return
        stop = self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_drawing, args=(stop,), name="autotune-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show nothing any more; no thread is left, which a test that forks would be warned of."""
        thread, self._thread = self._thread, None
        if self._stop is not None and thread is not None:
            self._stop.set()
            thread.join()
        self.clear()

    def _keep_drawing(self, stop: threading.Event) -> None:
        while not stop.wait(EVERY_S):
            with suppress(OSError, ValueError):  # a terminal that is gone
                self.draw()

    def draw(self) -> None:
        """Show what is tuned now, if it has taken a while."""
        now = self._now()
        after = AFTER_S if self._is_live else PLAIN_AFTER_S
        stages = sorted((one for one in self._stages() if now - one.since >= after), key=lambda one: one.since)
        if not stages:
            self.clear()
            return
        more = f" (and {len(stages) - 1} more)" if len(stages) > 1 else ""
        text = one_line(f"{stages[0].text(now)}{more}")
        with self._lock:
            if self._is_live:
                self._draw_live(text)
            elif now - self._last_plain >= PLAIN_EVERY_S:
                self._last_plain = now
                _, has_begun = self._place()
                self._write(f"{chr(10) if has_begun else ''}autotune: tuning {text}\n")

    def _draw_live(self, text: str) -> None:
        left, _ = self._place()
        if left < _NARROW:
            return
        shown = f" {text}"
        shown = shown if len(shown) < left else f"{shown[: left - 2]}…"
        if shown != self._drawn:
            # One write, so that what pytest writes meanwhile comes before or after it.
            self._write(f"{_SAVE}{_CLEAR}{shown}{_RESTORE}")
            self._drawn = shown

    def clear(self) -> None:
        """Leave pytest's line as it was."""
        with self._lock:
            if self._drawn:
                self._drawn = ""
                with suppress(OSError, ValueError):
                    self._write(_CLEAR)


def progress_line(config: pytest.Config, stages: Callable[[], Sequence[Stage]]) -> ProgressLine | None:
    """The line of this run; None where nothing is shown. To be called while nothing is captured."""
    # The terminal's reporter is made later, and writes to what is standard output now.
    stream = sys.stdout
    if config.get_verbosity() < 0 or not config.pluginmanager.hasplugin("terminal"):
        return None
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # pytest's output goes to a buffer
        return None
    config.add_cleanup(lambda: os.close(descriptor))
    encoding = getattr(stream, "encoding", None) or "utf-8"

    def write(text: str) -> None:
        os.write(descriptor, text.encode(encoding, "replace"))

    def place() -> tuple[int, bool]:
        writer: Any = config.get_terminal_writer()
        used = int(writer.width_of_current_line)
        return int(writer.fullwidth) - used - 1, used > 0

    return ProgressLine(write, place, stages, is_live(config, stream, os.environ))


class ProgressFile:
    """Where a worker says what it tunes, for its controller on the same machine.

    :param folder: of the run.
    :param worker: its name.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / f"progress-{worker}"
        self._process = os.getpid()

    def __call__(self, stage: Stage | None) -> None:
        if os.getpid() != self._process:  # a forked child of a test: its parent may be tuning, too
            return
        with suppress(OSError):
            if stage is None:
                self._path.unlink(missing_ok=True)
            else:
                self._path.write_text(json.dumps(asdict(stage)))


def stages_in(folder: Path, workers: Sequence[str]) -> list[Stage]:
    """What workers say that they tune."""
    found = []
    for worker in workers:
        with suppress(OSError, ValueError, TypeError):  # it has ended, or writes just now
            found.append(Stage(**json.loads((folder / f"progress-{worker}").read_text())))
    return found


def progress_of_process(config: pytest.Config) -> Progress:
    """Shows what this process tunes, which is the only one of its run; no thread is there but in a tuning."""
    tuned: list[Stage] = []
    line = progress_line(config, lambda: list(tuned))
    if line is None:
        return Progress()

    def tell(stage: Stage | None) -> None:
        tuned[:] = [stage] if stage is not None else []
        if tuned:
            line.start()
        else:
            line.stop()

    return Progress(tell)


class ProgressOfWorkers:
    """Shows what the workers of this controller tune, as hooks.

    :param folder: of the run.
    """

    def __init__(self, config: pytest.Config, folder: Path) -> None:
        self._workers: list[str] = []
        self._line = progress_line(config, lambda: stages_in(folder, list(self._workers)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._workers.append(node.gateway.id)
        if self._line is not None:
            self._line.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        with suppress(ValueError):
            self._workers.remove(node.gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self._clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self) -> None:
        self._clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._line is not None:
            self._line.stop()

    def _clear(self) -> None:
        if self._line is not None:
            self._line.clear()
