"""The log of a run: each process writes its events to a file, one line for each event.

Each process appends to its own file in the run's folder, and hands every line to the operating system at once. The
files of a killed run are therefore complete, and the next run can read them. A worker reads the tunings of the other
workers from their files. At its end, a process also hands over all its lines, because a test may have removed its file.
A worker hands them over through xdist. At the end of the run, the controller reads all files and all these lines.

Processes of a run exchange nothing else. :mod:`pytest_autotune.run.collected` gives the events their meaning.

Words: a claim is a worker's right to tune a problem, so that each problem is tuned once in a run. A problem with its
fingerprint (digests of the kernel's source and the like) is an identity. An entry is the result of a search.
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
from os import getpid  # a test may mock os.getpid
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.codec.mapping import for_json, to_compact_json, to_mapping
from pytest_autotune.cache.codec.reading import from_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Entry, Identity

if TYPE_CHECKING:
    from filelock import FileLock

_SUFFIX = ".jsonl"
#: The beginning of each line that has a claim; see :meth:`Event.encode`.
_CLAIM = b'{"claim":"'
_LOCK = "lock"
#: The name of a run's folder: the process id, and random digits.
_RUN_FOLDER_NAME = re.compile(r"\d+-[0-9a-f]{8}")
#: How long a run waits for another run that creates or removes its folder, in seconds.
_FOLDERS_LOCK_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Event:
    """An event in a process of the run.

    :param kind: names the code that writes and reads such events: a lookup, a mode, the end of a process.
    :param identity: the problem that was looked up; None if the event belongs to no problem, and so has no entry.
    :param entry: the entry that was used, or the result of a search.
    :param test: the node id of the test that ran; empty outside tests.
    :param data: all other data of the event, as values of JSON.
    :param claim: the name of the claim that the event answers; empty if no other worker waits for it.
    """

    kind: str
    identity: Identity | None = None
    entry: Entry | None = None
    test: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    claim: str = ""

    def encode(self) -> str:
        """Return the event as a line of JSON, without the line's end.

        Example: ``{"kind":"asked","identity":{...},"test":"test_op.py::test","data":{"outcome":"miss"}}``.

        :raises TypeError: if an adapter has put an object into the event that a cache cannot hold.
        """
        encoded_identity, encoded_entry = None, None
        if self.entry is not None:
            encoded_entry = _encode_entry(self.entry)
        if self.identity is not None and not _has_identity(self.entry, self.identity):
            # An entry without a result stands for its identity.
            encoded_identity = _encode_entry(Entry(*self.identity))
        fields = {
            # The claim comes first, so that waiting workers need not parse every line.
            "claim": self.claim,
            "kind": self.kind,
            "identity": encoded_identity,
            "entry": encoded_entry,
            "test": self.test,
            "data": self.data,
        }
        return to_compact_json({name: value for name, value in fields.items() if value})

    @staticmethod
    def decode(line: str | bytes) -> Event:
        """Return the event in a line that :meth:`encode` has written.

        :raises ValueError: if the line is not a whole event, for example because a kill cut it off.
        """
        try:
            fields = json.loads(line)
            if "entry" in fields:
                fields["entry"] = _decode_entry(fields["entry"])
            if "identity" in fields:
                fields["identity"] = _decode_entry(fields["identity"]).identity
            elif "entry" in fields:
                # The line does not repeat the identity of the entry.
                fields["identity"] = fields["entry"].identity
            return Event(**fields)
        except (TypeError, AttributeError, RecursionError, CacheError) as error:
            raise ValueError(f"not an event: {error!r}") from None


def _has_identity(entry: Entry | None, identity: Identity) -> bool:
    """Whether an entry is an entry of this identity, with the parts of the key in the same order."""
    if entry is None:
        return False
    return entry.identity == identity and entry.problem.key == identity.problem.key


def _encode_entry(entry: Entry) -> object:
    """Return an entry as values of JSON: as the only entry of a cache."""
    return for_json(to_mapping([entry]))


def _decode_entry(plain: object) -> Entry:
    """Return the only entry of a cache.

    :raises CacheError, ValueError: if the plain data is no such cache.
    """
    (entry,) = from_mapping(plain, "the log").entries
    return entry


#: The name of a process, and an event of this process.
ProcessEvent = tuple[str, Event]
#: The name of a log, and a line of this log.
LogLine = tuple[str, bytes]


def decode_events(lines: Iterable[tuple[str, str | bytes]]) -> tuple[list[ProcessEvent], int]:
    """Return the events in the lines of logs, and the number of lines that are damaged.

    :param lines: the name of the log and the line.
    """
    process_events: list[ProcessEvent] = []
    damaged_count = 0
    for log_name, line in lines:
        try:
            event = Event.decode(line)
        except ValueError:
            damaged_count += 1
        else:
            process_events.append((_process_of_log(log_name), event))
    return process_events, damaged_count


def _process_of_log(log_name: str) -> str:
    """Return the process that wrote a log: ``gw0`` for ``gw0-4711``."""
    return log_name.rpartition("-")[0]


class Log:
    """The events of one process. A forked child writes its own file.

    A line is in ``lines`` when :meth:`append` returns. Lines are in the order of the calls. The event of :meth:`close`
    is the last line, even if other threads append later.

    Attributes: ``lines``, all lines of this process; ``error``, the first reason why a line is missing in the file;
    empty if the file has all lines.

    :param folder: the folder of the run; None if this process has none.
    :param process: the name of the process in the run, such as ``gw0``.
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
        """The name of the file, without its suffix."""
        return f"{self._process}-{self._owner}"

    def append(self, event: Event) -> bool:
        """Write an event, unless the log is closed.

        :returns: whether the event is in the file.
        :raises TypeError: if the event cannot be encoded; see :meth:`Event.encode`.
        """
        line = event.encode()
        self._renew_after_fork()
        with self._mutex:
            return self._append_line(line)

    def close(self, last: Event) -> None:
        """Write the last event. Events that threads append later are dropped, also for the next run.

        :raises TypeError: if the event cannot be encoded. The log is then still open.
        """
        line = last.encode()
        self._renew_after_fork()
        with self._mutex:
            self._append_line(line)
            self._is_closed = True

    def _renew_after_fork(self) -> None:
        """In a forked child, begin a log of its own. A thread of the parent may hold the parent's mutex for ever."""
        if getpid() != self._owner:
            self._mutex = threading.Lock()
            self._owner = getpid()
            self.lines = []

    def _append_line(self, line: str) -> bool:
        """Write a line, unless the log is closed; return whether the line is in the file. Needs the mutex."""
        if self._is_closed:
            return False
        self.lines.append(line)
        if self.folder is None:
            return False
        try:
            self._write(self.folder, line)
        except OSError as error:
            if not self.error:
                self.error = f"{error.strerror or error}"
            return False
        return True

    def _write(self, folder: Path, line: str) -> None:
        # The file is opened for each line: a test, or another run, may clear pytest's cache at any time.
        path = folder / f"{self.name}{_SUFFIX}"
        # A test may mock open(), and the mock would receive the line.
        try:
            raw_file = FileIO(path, "ab")
        except FileNotFoundError:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            raw_file = FileIO(path, "ab")
        with BufferedWriter(raw_file) as file:
            # On a full disk, the line before may be written only in part. The first line end separates this line from
            # that part.
            file.write(f"\n{line}\n".encode())


class LogReader:
    """Reads the logs in a folder, each line once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: The number of bytes that were read from each file; always whole lines.
        self._offsets: dict[Path, int] = {}

    def list_files(self) -> list[Path]:
        """Return the files of the logs. The name of a log is the stem of its file."""
        return sorted(self.folder.glob(f"*{_SUFFIX}"))

    def read_new_lines(self) -> Iterator[LogLine]:
        """Yield the lines that were not yet read."""
        for path in self.list_files():
            for line in self._read_new_bytes(path).split(b"\n"):
                if line:
                    yield path.stem, line

    def _read_new_bytes(self, path: Path) -> bytes:
        """Return the new whole lines of a file; empty if the file cannot be read."""
        offset = self._offsets.get(path, 0)
        try:
            with FileIO(path) as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return b""
        whole_lines = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole_lines)
        return whole_lines


class OtherWorkers:
    """Finds the events with which the other workers of a run answered their claims.

    :param process: the name of this worker.
    """

    def __init__(self, folder: Path, process: str) -> None:
        self._reader = LogReader(folder)
        self._process = process
        #: Name of a claim -> the first line that answered it.
        self._line_by_claim: dict[str, bytes] = {}

    def find(self, claim: str) -> Event | None:
        """Return the event of the first worker that answered a claim; None if no worker has answered it.

        Only the line of the wanted claim is decoded, because waiting workers call this method many times a second.
        """
        for log_name, line in self._reader.read_new_lines():
            if _process_of_log(log_name) == self._process or not line.startswith(_CLAIM):
                continue
            # Such a line begins {"claim":"NAME", so the name ends at the next quotation mark.
            name, _, _ = line.removeprefix(_CLAIM).partition(b'"')
            self._line_by_claim.setdefault(name.decode(errors="replace"), line)
        if claim not in self._line_by_claim:
            return None
        try:
            return Event.decode(self._line_by_claim[claim])
        except ValueError:
            return None


@dataclass(frozen=True)
class _LockedFolder:
    """The folder of a run whose lock this process holds.

    :param reader: reads the logs in the folder.
    """

    reader: LogReader
    lock: FileLock

    @property
    def path(self) -> Path:
        """The path of the folder."""
        return self.reader.folder

    def clear(self, *, removes_logs: bool) -> None:
        """Remove the folder if it has no logs any more.

        :param removes_logs: remove the logs first. A log with lines that this process has not read stays: the next run
            needs them.
        :raises OSError: if a file cannot be removed.
        """
        logs_with_new_lines = {log_name for log_name, _ in self.reader.read_new_lines()}
        if removes_logs:
            for file in self.reader.list_files():
                if file.stem not in logs_with_new_lines:
                    file.unlink()
        if not self.reader.list_files():
            (self.path / _LOCK).unlink()
            self.path.rmdir()


class RunFolder:
    """The folder with the logs of one run. The run holds a lock in it as long as it lives.

    A folder without a lock holder belongs to a run that was killed, or that could not write its dump. If both runs
    have the same dump path, this run takes that folder, too, and recovers its tunings.

    :param bases: the folders in which a folder for this run can be made. The run uses the first folder that works: a
        disk may be full. It looks for folders of earlier runs in all of them. If no folder works, the run has no logs.
    :param purpose: is equal for runs that recover each other's tunings, such as the absolute dump path.
    """

    def __init__(self, bases: Iterable[Path], purpose: str = "") -> None:
        #: The folder of this run; None if no folder can be made.
        self.path: Path | None = None
        self._own_folder: _LockedFolder | None = None
        #: The folders of killed runs, and of runs that could not write their dump.
        self._abandoned_folders: list[_LockedFolder] = []
        #: The events that processes handed over and that are in no file.
        self._unwritten: list[ProcessEvent] = []
        purpose_digest = hashlib.sha256(purpose.encode()).hexdigest()[:16]
        for base in bases:
            runs = base / purpose_digest
            if self.path is None or runs.is_dir():
                # The time-out of a lock is an OSError, too.
                with suppress(OSError):
                    self._use_folder_of_runs(runs)

    def _use_folder_of_runs(self, runs: Path) -> None:
        """Take the folders that earlier runs left there, and create a folder for this run unless it has one.

        :param runs: the folder of all runs with this purpose; each run has a folder in it.
        :raises OSError: if a folder cannot be created, or another process keeps the lock for too long.
        """
        if runs.is_symlink():
            # The folders behind a link may belong to another program, and this run would remove them.
            return
        runs.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without this lock, another run could take a new folder before its owner has locked it.
        with _folders_lock(runs):
            if runs.is_dir():
                self._take_abandoned_folders(runs)
            if self.path is None:
                path = runs / f"{getpid()}-{os.urandom(4).hex()}"
                runs.mkdir(mode=0o700, exist_ok=True)
                path.mkdir(mode=0o700)
                self._own_folder = _lock_folder(path)
                self.path = path

    def _take_abandoned_folders(self, runs: Path) -> None:
        """Lock the folders of runs that were killed, or that could not write their dump."""
        for path in sorted(runs.iterdir()):
            # If a living run has locked the folder, or the folder was just removed, an error is raised. The loop then
            # goes on with the next folder.
            with suppress(OSError):
                status = path.lstat()
                is_folder_of_user = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
                if is_folder_of_user and _RUN_FOLDER_NAME.fullmatch(path.name):
                    self._abandoned_folders.append(_lock_folder(path))

    def log(self, process: str) -> Log:
        """Return the log of one process of this run."""
        return Log(self.path, process)

    def collect(
        self, lines_by_log: Mapping[str, Iterable[str]] = MappingProxyType({})
    ) -> tuple[list[ProcessEvent], int]:
        """Return the events of this run's processes, and the number of damaged lines.

        The lines of a process that has ended come from the process itself, because a test may have removed its file.
        The lines of a process that was killed come from its file. The method also remembers the lines that were handed
        over but are in no file; :meth:`keep` writes them.

        :param lines_by_log: name of a log -> all lines that its process handed over.
        """
        file_lines: list[LogLine] = []
        if self._own_folder is not None:
            file_lines += self._own_folder.reader.read_new_lines()
        handed_over_lines: list[LogLine] = []
        for log_name, lines in lines_by_log.items():
            for line in lines:
                handed_over_lines.append((log_name, line.encode()))
        self._unwritten = _list_unwritten_events(handed_over_lines, file_lines)
        # A process that was killed has handed over nothing.
        lines_of_killed = [(log_name, line) for log_name, line in file_lines if log_name not in lines_by_log]
        return decode_events([*lines_of_killed, *handed_over_lines])

    def keep(self) -> tuple[list[Event], str]:
        """Write the events that a process handed over and that are in no file. The next run recovers them.

        :returns: the events that could not be written, and the reason.
        """
        log = self.log("controller")
        lost_events = [event for _, event in self._unwritten if not log.append(event)]
        return lost_events, log.error

    @cached_property
    def recovered(self) -> tuple[list[ProcessEvent], int]:
        """The events of killed runs with the same purpose, and the number of their damaged lines."""
        lines: list[LogLine] = []
        for folder in self._abandoned_folders:
            lines += folder.reader.read_new_lines()
        return decode_events(lines)

    def close(self, *, written: bool) -> None:
        """Release the folders, and remove the folders that have no logs any more.

        :param written: the events are in a cache now, or are not wanted. Their files are removed, unless a worker that
            outlives its controller has appended to them.
        """
        folders = list(self._abandoned_folders)
        if self._own_folder is not None:
            folders.append(self._own_folder)
        for folder in folders:
            # A folder that cannot be removed stays for the next run.
            with suppress(OSError):
                folder.clear(removes_logs=written)
            # A test may have closed the descriptor of the lock.
            with suppress(OSError):
                folder.lock.release()
        for runs in {folder.path.parent for folder in folders}:
            # The removal fails while another run has a folder there.
            with suppress(OSError), _folders_lock(runs):
                runs.rmdir()
        self._own_folder = None
        self._abandoned_folders.clear()


def _list_unwritten_events(handed_over_lines: Iterable[LogLine], file_lines: Iterable[LogLine]) -> list[ProcessEvent]:
    """Return the events that processes handed over and that are in no file."""
    lines_in_files = set(file_lines)
    unwritten_lines = [log_line for log_line in handed_over_lines if log_line not in lines_in_files]
    events, _ = decode_events(unwritten_lines)
    return events


def _lock_folder(path: Path) -> _LockedFolder:
    """Take the lock of a run's folder.

    :raises OSError: if another run holds the lock.
    """
    from filelock import FileLock

    lock = FileLock(path / _LOCK, timeout=0, thread_local=False)
    lock.acquire()
    return _LockedFolder(LogReader(path), lock)


def _folders_lock(runs: Path) -> FileLock:
    """Return the lock under which runs create and remove their folders."""
    from filelock import FileLock

    return FileLock(runs.parent / _LOCK, timeout=_FOLDERS_LOCK_TIMEOUT_S)
