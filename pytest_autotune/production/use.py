"""``pytest_autotune.use``: a library's shipped cache answers where its kernels are launched; nothing is tuned there.

It picks with the code of an exported module, :mod:`~pytest_autotune.production.picker`. Neither pytest nor what only
tests need is imported; the cache is read when the first kernel asks.
"""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from pathlib import PurePath
from typing import Any

from pytest_autotune.cache.model import Cache, Candidate
from pytest_autotune.production.shipped import AskedProblem, MissError, add_shipped_cache

#: What becomes of a problem that was not tuned, the default first.
ON_MISS = ("first", "nearest", "tune", "error")


@dataclass(eq=False)
class ShippedCache:
    """A cache that a library ships, which answers for its kernels: of Triton, and of :func:`pytest_autotune.tune`.

    To be made in the library's ``__init__``, as ``pytest_autotune.use(…)``. In a run of pytest with the plugin it does
    nothing. ``str()`` of it is one line with a digest of the cache's bytes: equal on all ranks that choose alike.

    :param package: the library's; those of others are bypassed.
    :param resource: the cache, a file in the package, or an absolute path.
    :param on_miss: for what was not tuned. ``"first"``: the tuner's first candidate that works. ``"nearest"``: the
        choice of the nearest problem, else the first. ``"tune"``: as without this. ``"error"``: LookupError.
    :param nearest: numbers of keys that may differ from those of the nearest problem; left out, those that are sizes.
    :param other_devices: the choices of the GPU of the same architecture that is the nearest in size may be taken.
    :param aliases: name of a device -> name of one whose choices it takes, of the same architecture.
    :param report: a file to which each miss is added, as a line of JSON, for ``pytest --autotune-problems``.
    :raises ValueError: for another ``on_miss``.
    """

    package: str
    resource: str | os.PathLike[str]
    on_miss: str = ON_MISS[0]
    _: KW_ONLY
    nearest: Sequence[str] = ()
    other_devices: bool = False
    aliases: Mapping[str, str] | None = None
    report: str | os.PathLike[str] | None = None
    #: What was asked for, and was not tuned: each problem once.
    misses: list[AskedProblem] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.on_miss not in ON_MISS:
            raise ValueError(f"use(): on_miss takes {', '.join(ON_MISS)}, not {self.on_miss!r}")
        self._data = self._bytes()
        self._path = os.path.join(*self.package.split("."), self.resource)  # as a library's folder usually has it
        self.digest = hashlib.sha256(self._data or b"").hexdigest()[:16]
        self._pickers: dict[tuple[str, tuple[str, str, int]], dict[str, Any]] = {}
        self._cached: Cache | None = None
        self._reported: set[str] = set()
        #: (tuner, kernel, key, architecture) of problems with several choices, of which a launch cannot tell its own.
        self._ambiguous: set[tuple[object, ...]] = set()
        add_shipped_cache(self)
        _hook()

    def __str__(self) -> str:
        return f"{self.package}: {os.fspath(self.resource)}, digest {self.digest}"

    def holds(self, kernel: str) -> bool:
        """Whether a kernel, by its module and name, is one of this library."""
        return self._data is not None and f"{kernel}.".startswith(f"{self.package}.")

    def _bytes(self) -> bytes | None:
        resource = os.fspath(self.resource)
        try:
            if os.path.isabs(resource):
                with open(resource, "rb") as file:
                    return file.read()
            data = pkgutil.get_data(self.package, resource)
            if data is None:
                raise ImportError(f"{self.package} is no package with files")
            return data
        except (OSError, ImportError, ValueError) as error:  # the last one for a script, __main__
            what = f"{resource} cannot be read, so its kernels are tuned (is it in package-data?): {error}"
            _warn(f"{self.package}: {what}")
            return None

    def _cache(self) -> Cache:
        """The cache, which is read where the first kernel asks. The caller holds the lock."""
        if self._cached is None:
            self._cached = self._decoded()
        return self._cached

    def _decoded(self) -> Cache:
        from pytest_autotune.cache.codec import decode, find_format
        from pytest_autotune.cache.errors import CacheError

        try:
            return decode(self._data or b"", find_format(PurePath(self.resource)), os.fspath(self.resource))
        except CacheError as error:
            _warn(f"{self.package}: {error}; its kernels are tuned")
            self._data = None
            return Cache()

    def _picker(self, tuner: str, on: tuple[str, str, int]) -> dict[str, Any]:
        """The code of an exported module, with the choices of a tuner, for a device."""
        with _lock:
            from pytest_autotune.cache.codec.mapping import sort_entries
            from pytest_autotune.cache.distance import launch_key
            from pytest_autotune.production.choices import PICKER, aliased, chosen, identity

            if (tuner, on) not in self._pickers:
                # Of two entries that are equally near, the first in a file's order is used, as in runs and exports.
                of_tuner = [entry for entry in self._cache().entries if entry.problem.tuner == tuner]
                entries, ambiguous = chosen(sort_entries(of_tuner))
                for problem in (entry.problem for entry in ambiguous):
                    key = tuple(sorted(launch_key(problem.key).items()))
                    self._ambiguous.add((tuner, problem.kernel, key, problem.device.arch))
                choices: Any = defaultdict(lambda: defaultdict(list))
                for entry in entries:
                    device = *identity(entry.problem.device), ""  # of which Triton, each choice says itself
                    choices[entry.problem.kernel][device].append((launch_key(entry.problem.key), entry))
                taken = aliased({entry.problem.device for entry in entries}, self.aliases or {}).get(on[:2], on)
                for here in choices.values():
                    if theirs := here.get((*taken, "")):
                        here.setdefault((*on, ""), theirs)  # its own go before those of an alias
                command = f"pytest --autotune-load={self._path} --autotune-update"
                picker: dict[str, Any] = {}
                exec(compile(PICKER.read_bytes(), PICKER, "exec"), picker)
                picker.update(COMMAND=command, CHOICES=choices, KEYS=defaultdict(tuple), device=lambda: (*on, ""))
                self._pickers[tuner, on] = picker
            return self._pickers[tuner, on]

    def choice(
        self,
        asked: AskedProblem,
        find: Callable[[Candidate], Any],
        candidates: Iterable[Any],
        works: Callable[[Any], bool],
    ) -> Any:
        """The candidate to launch; None where the tuner is to tune.

        :param find: the live candidate that an entry chose; None where there is none.
        :param candidates: all of them, in the tuner's order.
        :param works: whether one that was not tuned for this problem can be launched.
        :raises MissError: where nothing was tuned, and that is to be an error.
        """
        try:
            found, is_exact = self._shipped(asked, find, works)
            if is_exact or self._data is None:
                return found
            used = "nearest" if found is not None else self.on_miss
            if found is None and self.on_miss in ("first", "nearest"):
                found = next(filter(works, candidates), None)
                used = "first" if found is not None else "tune"
        except Exception as error:
            _warn(f"{self.package}: no choice for {asked}, so it is tuned: {error!r}")
            return None
        is_ambiguous = (asked.tuner, asked.kernel, tuple(sorted(asked.key.items())), asked.device[1]) in self._ambiguous
        what = f"{'several choices are shipped' if is_ambiguous else 'nothing is tuned'} for {asked}"
        warn = self._picker(asked.tuner, asked.device)["warn"]
        if used == "first":
            warn(f"{self.package}: {what}: its first candidate that works is used")
        elif used == "tune" and is_ambiguous:
            warn(f"{self.package}: {what}, so it is tuned", "several")
        self._missed(replace(asked, used=used))
        if used == "error":
            raise MissError(f"{self}: {what} on {asked.device[0]}")
        return found

    def _shipped(
        self, asked: AskedProblem, find: Callable[[Candidate], Any], works: Callable[[Any], bool]
    ) -> tuple[Any, bool]:
        """The candidate that was tuned for a problem, or for the nearest, and whether it was for this one, here."""
        picker = self._picker(asked.tuner, asked.device)
        _, choices, remark = picker["choices_here"](asked.kernel, self.other_devices)
        here = known = tuple(sorted(asked.key.items()))
        if here not in choices and self.on_miss == "nearest":
            sizes = {name for key in choices for name, value in key if isinstance(value, (int, float)) and value > 1}
            known = picker["find_nearest_key"](choices, here, self.nearest or sizes)
        entry = choices.get(known)
        found = None if entry is None else find(entry.choice)
        if found is None:
            return None, False
        library, version = entry.versions.tuner_minor_version
        running = getattr(sys.modules.get(library), "__version__", version)
        if not running.startswith(version):
            what = f"{asked.kernel} was tuned with {library} {version}, and this is {running}"
            if vars(picker["warn"]).setdefault("version", what) is what:  # which an update leaves as it is
                _warn(f"{what} (retune where you can: pytest --autotune-load= --autotune-dump={self._path})")
        if known == here and not remark:
            return found, True
        if not works(found):
            return None, False
        what = f"{self.package}: what was tuned for {entry.problem} on {entry.problem.device.name} is used for {asked}"
        picker["warn"](what, remark if known == here else "nearest")
        return found, False

    def _missed(self, miss: AskedProblem) -> None:
        line = json.dumps(vars(miss), default=str)
        with _lock:
            if line in self._reported:
                return
            self._reported.add(line)
        self.misses.append(miss)
        if self.report is not None:
            try:
                _append(self.report, line)
            except OSError as error:
                _warn(f"{self.report}: {error.strerror}")


def _append(path: str | os.PathLike[str], line: str) -> None:
    """Add a line to a file by one write, and not to a line that a killed process or a full disk has cut off."""
    with open(path, "ab+", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - 1, 0))
        if file.read(1) not in (b"", b"\n"):
            line = "\n" + line
        file.write(f"{line}\n".encode())


#: Held while a cache is read, and imported what that needs. A fork waits for it: a child has none of the threads of its
#: parent, and what these hold, modules that are being imported too, nobody would ever release.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # libraries run on systems without fork, too
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


#: As libraries call it.
use = ShippedCache


@cache
def _hook() -> None:
    import wrapt

    from pytest_autotune.production import answering

    wrapt.register_post_import_hook(answering.hook_triton, "triton.runtime.autotuner")
    wrapt.register_post_import_hook(answering.hook_function, "pytest_autotune.tuners.function.tuner")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
