"""``pytest_autotune.use``: a library's shipped cache answers where its kernels are launched; nothing is tuned there.

It picks with the code of an exported module, :mod:`~pytest_autotune.production.picker`. Neither pytest nor what only
tests need is imported; the cache is read when the first kernel asks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pkgutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from pytest_autotune.cache.model import Cache, Candidate

#: What becomes of a problem that was not tuned, the default first.
ON_MISS = ("first", "nearest", "tune", "error")
#: name, architecture, multiprocessors
On = tuple[str, str, int]


@dataclass(frozen=True)
class Asked:
    """A problem that was asked for.

    :param key: as :func:`~pytest_autotune.production.choices.plain_key` has it.
    :param device: name, architecture, multiprocessors.
    """

    tuner: str
    kernel: str
    key: Mapping[str, Any]
    device: On

    def __str__(self) -> str:
        return f"{self.tuner}:{self.kernel} ({', '.join(f'{name}={value}' for name, value in self.key.items())})"


@dataclass(frozen=True)
class Miss(Asked):
    """One for which no exact choice is shipped.

    :param used: what it ran with: the ``"first"`` candidate, the ``"nearest"`` choice, or what it was to ``"tune"``.
    """

    used: str = ""


class MissError(LookupError):
    """A kernel was launched for which nothing is shipped, and that is to be an error."""


class Loaded:
    """A library's choices in this process.

    ``str()`` of it is one line with a digest of the cache's bytes: equal on all ranks that choose alike.

    :param data: of the cache; None where there is none.
    """

    def __init__(
        self,
        package: str,
        resource: str,
        data: bytes | None,
        on_miss: str = ON_MISS[0],
        nearest: Sequence[str] = (),
        other_devices: bool = False,
        aliases: Mapping[str, str] | None = None,
        report: str | os.PathLike[str] | None = None,
    ) -> None:
        self.package = package
        self.on_miss = on_miss
        self.digest = hashlib.sha256(data or b"").hexdigest()[:16]
        #: What was asked for, and was not tuned: each problem once.
        self.misses: list[Miss] = []
        self._resource = resource
        self._data = data
        self._nearest = tuple(nearest)
        self._other_devices = other_devices
        self._aliases = dict(aliases or {})
        self._report = report
        self._pickers: dict[tuple[str, On], Any] = {}
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"{self.package}: {self._resource}, digest {self.digest}"

    def holds(self, kernel: str) -> bool:
        """Whether a kernel, by its module and name, is one of this library."""
        return self._data is not None and f"{kernel}.".startswith(f"{self.package}.")

    @cached_property
    def _cache(self) -> Cache:
        from pytest_autotune.cache.codec import decode, format_of
        from pytest_autotune.cache.errors import CacheError

        try:
            return decode(self._data or b"", format_of(PurePath(self._resource)), self._resource)
        except CacheError as error:
            _warn(f"{self.package}: {error}; its kernels are tuned")
            self._data = None
            return Cache()

    def _picker(self, tuner: str, on: On) -> Any:
        """The code of an exported module, with the choices of a tuner, for a device."""
        with self._lock:
            if (tuner, on) not in self._pickers:
                self._pickers[tuner, on] = self._made_picker(tuner, on)
            return self._pickers[tuner, on]

    def _made_picker(self, tuner: str, on: On) -> Any:
        from pytest_autotune.cache.codec.mapping import device_ids
        from pytest_autotune.production.choices import chosen, plain_key, triton_versions

        entries, _ = chosen(entry for entry in self._cache.entries if entry.problem.tuner == tuner)
        ids = device_ids(entry.problem.device for entry in entries)
        picker = new_picker()
        path = os.path.join(*self.package.split("."), self._resource)  # as a library's folder usually has it
        picker.COMMAND = f"pytest --autotune-load={path} --autotune-update"
        picker.DEVICES = {id: (one.name, one.arch, one.multiprocessors) for one, id in ids.items()}
        of_devices = {id: [entry for entry in entries if entry.problem.device == one] for one, id in ids.items()}
        picker.VERSIONS = {id: triton_versions(some) for id, some in of_devices.items()}
        picker.ALIASES = self._aliases
        choices: dict[str, dict[str, list[Any]]] = {}
        for entry in entries:
            of_kernel = choices.setdefault(entry.problem.kernel, {})
            known = plain_key(entry.problem.key), entry.choice
            of_kernel.setdefault(ids[entry.problem.device], []).append(known)
        picker.CHOICES = choices
        picker.device = lambda: on
        return picker

    def choice(
        self,
        asked: Asked,
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
            found, used = self._found(asked, find, candidates, works)
        except Exception as error:
            _warn(f"{self.package}: no choice for {asked}, so it is tuned: {error!r}")
            return None
        if used:
            self._missed(Miss(asked.tuner, asked.kernel, asked.key, asked.device, used))
        if used == "error":
            raise MissError(f"{self}: nothing is tuned for {asked} on {asked.device[0]}")
        return found

    def _found(
        self,
        asked: Asked,
        find: Callable[[Candidate], Any],
        candidates: Iterable[Any],
        works: Callable[[Any], bool],
    ) -> tuple[Any, str]:
        """The candidate, and what it is used for where it was not tuned for this problem."""
        picker = self._picker(asked.tuner, asked.device)
        if self._data is None:
            return None, ""
        choices, _, remark = picker.choices_here(asked.kernel, self._other_devices)
        nearest = (self._nearest or _sizes(choices)) if self.on_miss == "nearest" else ()
        for choice, away in picker.ranked(choices, asked.key, nearest):
            found = find(choice)
            if found is not None and not (away or remark):
                return found, ""
            if found is not None and works(found):
                picker.warn(f"the choice{remark}{away} is used for {asked}")
                return found, "nearest"
        if self.on_miss in ("first", "nearest"):
            found = next(filter(works, candidates), None)
            if found is not None:
                picker.warn(f"nothing is tuned for {asked}: its first candidate that works is used")
                return found, "first"
        return None, "error" if self.on_miss == "error" else "tune"

    def _missed(self, miss: Miss) -> None:
        if miss in self.misses:
            return
        self.misses.append(miss)
        if self._report is not None:
            try:
                with open(self._report, "a", encoding="utf-8") as file:
                    file.write(json.dumps(vars(miss), default=str) + "\n")
            except OSError as error:
                _warn(f"{self._report}: {error.strerror}")


_loaded: list[Loaded] = []
_is_hooked = False


def use(
    package: str,
    resource: str | os.PathLike[str],
    on_miss: str = ON_MISS[0],
    *,
    nearest: Sequence[str] = (),
    other_devices: bool = False,
    aliases: Mapping[str, str] | None = None,
    report: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Let a cache that a library ships answer for its kernels, those of Triton and of :func:`pytest_autotune.tune`.

    To be called in the library's ``__init__``. In a run of pytest with the plugin it does nothing.

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
    if on_miss not in ON_MISS:
        raise ValueError(f"use(): on_miss takes {', '.join(ON_MISS)}, not {on_miss!r}")
    resource, data = os.fspath(resource), None
    try:
        if os.path.isabs(resource):
            with open(resource, "rb") as file:
                data = file.read()
        else:
            data = pkgutil.get_data(package, resource)
            if data is None:
                raise ImportError(f"{package} is no package with files")
    except (OSError, ImportError, ValueError) as error:  # the last one for a script, __main__
        _warn(f"{package}: {resource} cannot be read, so its kernels are tuned (is it in package-data?): {error}")
    loaded = Loaded(package, resource, data, on_miss, nearest, other_devices, aliases, report)
    # A package that says it twice means the last one.
    _loaded[:] = [loaded, *(other for other in _loaded if other.package != package)]
    _hook()
    return loaded


def loaded_for(kernel: str) -> Loaded | None:
    """The choices that are to answer for a kernel; None in a run of pytest, which sees all candidates."""
    if getattr(sys.modules.get("pytest_autotune.tuners.hooks"), "active_runs", 0):
        return None
    found = [one for one in _loaded if one.holds(kernel)]
    return max(found, key=lambda one: len(one.package), default=None)


def _hook() -> None:
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        import wrapt

        from pytest_autotune.production import answering

        wrapt.register_post_import_hook(answering.hook_triton, "triton.runtime.autotuner")
        wrapt.register_post_import_hook(answering.hook_function, "pytest_autotune.tuners.function.tuner")


def new_picker() -> Any:
    """The code of an exported module, without its data."""
    spec = importlib.util.find_spec("pytest_autotune.production.picker")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _sizes(choices: Mapping[Any, Any]) -> set[str]:
    """The names of numbers in keys that are no flags."""
    return {name for key in choices for name, value in key if isinstance(value, (int, float)) and value > 1}


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
