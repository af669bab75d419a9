"""The log of a run: what its processes did, an event a line. Nothing else crosses from one process to another.

Each process appends to a file of its own in the run's folder and hands every line to the operating system at once, so
a killed run is its files: whoever finds them reads them as the run itself would have. A worker takes from another one's
file what that has tuned. A process that ends hands on all its lines, by xdist from a worker, whatever became of its
file; at the end the controller reads the files for what else there is.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedWriter, FileIO
from itertools import chain
from os import getpid  # a test may mock that of os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.model import Entry, Identity
from pytest_autotune.cache.plain import read_entry, read_identity, to_json

if TYPE_CHECKING:
    from filelock import FileLock

_SUFFIX = ".jsonl"
#: How a line begins that another worker may wait for.
_CLAIM = b'{"claim":"'
_LOCK = "lock"
#: The name of a run's folder: the process, and something random.
_RUN = re.compile(r"\d+-[0-9a-f]{8}")
#: How long a run waits for another one that begins or ends beside it, in seconds.
_BESIDE_S = 10.0


@dataclass(frozen=True)
class Event:
    """One thing that happened in a process.

    :param kind: a word of who writes and reads such events: a lookup, a mode, the end of a process.
    :param identity: what was asked for; None where the event is of no problem.
    :param entry: what was used, or what a search came to.
    :param test: the node id of the test in which it happened; empty outside tests.
    :param data: whatever else is to be known of it, as values of JSON.
    :param claim: the name of the claim that it answers; empty where no other worker waits for it.
    """

    kind: str
    identity: Identity | None = None
    entry: Entry | None = None
    test: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""

    def encode(self) -> str:
        """The event as a line of JSON, without the line's end; a claim stands first.

        :raises TypeError: where an adapter has put something into it that is no value of a cache.
        """
        names = ("claim", "kind", "identity", "entry", "test", "data")
        line = {name: found for name in names if (found := getattr(self, name))}
        return to_json(line)

    @staticmethod
    def decode(line: str | bytes) -> Event:
        """The reverse of :meth:`encode`.

        :raises ValueError: for what is not one whole event, such as a torn line.
        """
        try:
            found = json.loads(line)
            for name, made in (("identity", read_identity), ("entry", read_entry)):
                if name in found:
                    found[name] = made(*found[name])
            return Event(**found)
        except (TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not an event: {error!r}") from None


#: An event, and the process in which it happened.
ProcessEvent = tuple[str, Event]


def decode_events(lines: Iterable[tuple[str, str | bytes]]) -> tuple[list[ProcessEvent], int]:
    """What lines of logs tell, given as (name of the log, line); and how many of them nobody can read."""
    found: list[ProcessEvent] = []
    damaged = 0
    for name, line in lines:
        try:
            found.append((_process(name), Event.decode(line)))
        except ValueError:
            damaged += 1
    return found, damaged


def _process(log: str) -> str:
    return log.rpartition("-")[0]


class Log:
    """The events of one process; a forked child writes a file of its own.

    Attributes: ``name``, that of its file, without the suffix; ``lines``, all of this process; ``error``, why one of
    them is not in the file.

    Invariants: a line is in ``lines`` when :meth:`append` returns. The order is that of the calls, and the event of
    :meth:`close` is the last one, whatever threads append after it.

    :param folder: the run's; None where this process knows none.
    :param process: its name in the run, ``gw0``.
    """

    def __init__(self, folder: Path | None, process: str) -> None:
        self.folder = folder
        self._process = process
        self._mutex = threading.Lock()
        self._owner = getpid()
        self._is_closed = False
        self.lines: list[str] = []
        self.error = ""

    @property
    def name(self) -> str:
        return f"{self._process}-{self._owner}"

    def append(self, event: Event) -> bool:
        """Write an event down; nothing, once the log is closed.

        :returns: whether it is in the file.
        :raises TypeError: for one that cannot be written, as :meth:`Event.encode` does.
        """
        line = event.encode()
        if getpid() != self._owner:  # what a thread of the parent held, no thread of this child lets go
            self._mutex, self._owner, self.lines = threading.Lock(), getpid(), []
        with self._mutex:
            if self._is_closed:
                return False
            self.lines.append(line)
            try:
                return self.folder is not None and self._write(self.folder, line)
            except OSError as error:
                self.error = self.error or f"{error.strerror or error}"
                return False

    def _write(self, folder: Path, line: str) -> bool:
        # Opened for each line: a test, or another run, may have cleared pytest's cache meanwhile.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not by open(), which a test may mock: it would swallow its log.
        with BufferedWriter(FileIO(folder / f"{self.name}{_SUFFIX}", "ab")) as file:
            # A full disk takes a part of a line, and that must not take the next one with it.
            file.write(f"\n{line}\n".encode())
        return True

    def close(self, last: Event) -> None:
        """Write the last event down: what a thread does after that is nobody's, not even the next run's."""
        self.append(last)
        self._is_closed = True


class LogReader:
    """Reads the logs in a folder, each line once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: File -> the bytes of whole lines that were read of it.
        self._read: dict[Path, int] = {}

    def logs(self) -> list[tuple[str, Path]]:
        """The files that are there: (name of the log, file)."""
        return [(file.stem, file) for file in sorted(self.folder.glob(f"*{_SUFFIX}"))]

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """What is new: (name of the log, line)."""
        for name, path in self.logs():
            with suppress(OSError), FileIO(path) as file:
                file.seek(self._read.get(path, 0))
                whole, end, _ = file.read().rpartition(b"\n")
                self._read[path] = self._read.get(path, 0) + len(whole + end)
                yield from ((name, line) for line in whole.split(b"\n") if line)


class OtherWorkers:
    """What the other workers of a run have made of what they claimed, as far as their files tell.

    :param process: the name of this one.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._reader = LogReader(folder)
        self._process = process
        self._found: dict[str, bytes] = {}

    def find(self, claim: str) -> Event | None:
        """What the first worker has made of a claim; None where none has yet."""
        for name, line in self._reader.lines():
            if _process(name) != self._process and line.startswith(_CLAIM):
                claimed, _, _ = line.removeprefix(_CLAIM).partition(b'"')
                self._found.setdefault(claimed.decode(errors="replace"), line)
        found, _ = decode_events([("", self._found[claim])] if claim in self._found else [])
        return found[0][1] if found else None


class RunFolder:
    """The folder of one run among those of its project, held while the run lives.

    A folder beside it that nobody holds is that of a run which was killed, or whose dump could not be written: where
    both have the same dump path, this run holds it, too, and has its tunings.

    :param bases: for the runs of this project: the first that takes a folder has this run's, as a full disk takes none;
        what earlier runs left is looked for in all of them. Where there is no place at all, nothing is kept.
    :param purpose: what is the same for runs that belong together, such as the absolute dump path.
    """

    def __init__(self, bases: Iterable[Path], purpose: str = "") -> None:
        self.path: Path | None = None
        self._held: list[tuple[LogReader, FileLock]] = []
        self._unwritten: list[ProcessEvent] = []
        name = hashlib.sha256(purpose.encode()).hexdigest()[:16]
        for runs in (base / name for base in bases):
            if self.path is None or runs.is_dir():
                with suppress(OSError):  # a time-out, too
                    self._open(runs)

    def _open(self, runs: Path) -> None:
        if runs.is_symlink():  # folders behind it may be another's, and would be removed
            return
        runs.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _beside(runs):  # nobody takes a folder for left that is being made
            for path in sorted(runs.iterdir()) if runs.is_dir() else ():
                with suppress(OSError):  # another run's, or gone
                    found = path.lstat()
                    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
                    if is_own and _RUN.fullmatch(path.name):
                        self._hold(path)
            if self.path is None:
                path = runs / f"{getpid()}-{os.urandom(4).hex()}"
                runs.mkdir(mode=0o700, exist_ok=True)
                path.mkdir(mode=0o700)
                self._hold(path)
                self.path = path

    def _hold(self, path: Path) -> None:
        from filelock import FileLock

        lock = FileLock(path / _LOCK, timeout=0, thread_local=False)
        lock.acquire()
        self._held.append((LogReader(path), lock))

    def log(self, process: str) -> Log:
        """The log of one process of this run."""
        return Log(self.path, process)

    def collect(self, handed_on: Mapping[str, Iterable[str]] = MappingProxyType({})) -> tuple[list[ProcessEvent], int]:
        """What the processes of this run did, and how many lines nobody can read.

        :param handed_on: log -> lines, of processes that have ended: what was in their files may be there no more.
        """
        written = list(chain.from_iterable(one.lines() for one, _ in self._held if one.folder == self.path))
        handed = [(name, line.encode()) for name, lines in handed_on.items() for line in lines]
        in_files = set(written)
        self._unwritten, _ = decode_events(one for one in handed if one not in in_files)
        return decode_events([*(one for one in written if one[0] not in handed_on), *handed])

    def keep(self) -> tuple[list[Event], str]:
        """Write down for the next run what was handed on and is in no file: what cannot be written, and why."""
        log = self.log("controller")
        return [event for _, event in self._unwritten if not log.append(event)], log.error

    @cached_property
    def recovered(self) -> tuple[list[ProcessEvent], int]:
        """What the processes of killed runs did, and how many of their lines nobody can read."""
        left = (reader.lines() for reader, _ in self._held if reader.folder != self.path)
        return decode_events(chain.from_iterable(left))

    def close(self, *, written: bool) -> None:
        """Let go of the folders.

        :param written: what was read of them is in a cache now, or not wanted: they are removed, but for files that
            have grown since, as a worker may outlive its controller.
        """
        for reader, lock in self._held:
            late = {name for name, _ in reader.lines()}
            with suppress(OSError):
                for name, file in reader.logs() if written else ():
                    if name not in late:
                        file.unlink()
                if not reader.logs():
                    (reader.folder / _LOCK).unlink()
                    reader.folder.rmdir()
            with suppress(OSError):  # a test has closed descriptors that it never opened
                lock.release()
        for runs in {reader.folder.parent for reader, _ in self._held}:
            with suppress(OSError), _beside(runs):
                runs.rmdir()  # where no other run has a folder there
        self._held.clear()


def _beside(runs: Path) -> FileLock:
    """Held while a run that begins or ends makes or removes folders."""
    from filelock import FileLock

    return FileLock(runs.parent / _LOCK, timeout=_BESIDE_S)
