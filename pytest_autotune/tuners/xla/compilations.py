"""The compilations of one process: what XLA is offered, and what it looked up and chose.

XLA keeps one memory of choices for the process. Around each compilation it is given
where the loaded entries are and where to write that memory; what is new in it
afterwards is what this compilation looked up.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Versions
from pytest_autotune.devices import of_jax
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import version_of
from pytest_autotune.tuners.xla import files, flags, internals
from pytest_autotune.tuners.xla.entries import KERNELS, NAME, hlo_summary, to_entry
from pytest_autotune.tuners.xla.files import XlaEntry
from pytest_autotune.tuners.xla.log import TuningLog
from pytest_autotune.tuners.xla.log import read as read_log
from pytest_autotune.tuners.xla.outcomes import LoadedEntries

_GPUS = ("gpu", "cuda", "rocm")


@dataclass(frozen=True)
class _Compilation:
    """One compilation that is watched.

    :param program: what JAX calls it: ``jit_f``.
    :param dump: where XLA writes its memory of choices; ``log``: what it measured.
    :param reported: its lookups are the run's; else it is only noted what XLA has learned.
    """

    program: str
    dump: Path
    log: Path
    device: Device
    reported: bool


class Compilations:
    """Watches the compilations of this process for one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: Why compilations were bypassed, each reason once.
        self.bypassed: dict[str, None] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._number = 0
        self._in_memory: set[bytes] = set()
        self._versions: dict[str, str] = {}
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Remove what was written for XLA."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def watch(self, compile: Callable[[], Any], backend: Any, devices: Any, options: Any, program: str) -> Any:
        """Do one compilation, and report what it looked up.

        :param options: JAX's ``CompileOptions``; changed in place.
        :param program: what JAX calls what is compiled.
        :returns: what ``compile`` returns.
        """
        compilation: _Compilation | None = None
        with self._bypassed_on_error():
            compilation = self._prepare(backend, devices, options, program)
        # XLA does not say when it begins to measure. Where each held the GPU for a whole compilation, four workers
        # took 1.6 times as long and chose no better (tests/benchmarks/jax_suite.py).
        compiled = compile()
        if compilation is not None:
            lookups: Sequence[Lookup] = ()
            with self._bypassed_on_error():
                lookups = self._lookups_of(compilation)
            if compilation.reported:
                self._session.observed(*lookups)
        return compiled

    @contextmanager
    def _bypassed_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # an error of ours must not fail a test
            self.bypassed[f"{type(error).__name__}: {error}"] = None

    def tunes_on(self, backend: Any) -> bool:
        """Whether XLA tunes what is compiled for a backend, and the user wants it to be kept."""
        if self._session.ignores(NAME, KERNELS[files.Layout.NEW]):
            return False
        if backend.platform in _GPUS:
            config = sys.modules["jax"].config
            if config.jax_compilation_cache_dir and config.jax_enable_compilation_cache:
                self._session.note(
                    "xla: JAX's persistent compilation cache is off in this run: "
                    "its programs were tuned without this cache"
                )
            return True
        if backend.platform == "cpu" and sys.modules["jax"].default_backend() == "cpu":
            self._session.note("xla: JAX runs on the CPU here, where XLA tunes nothing; it tunes on GPUs")
        return False

    def _prepare(self, backend: Any, devices: Any, options: Any, program: str) -> _Compilation | None:
        """Set what XLA reads and writes in this compilation; None where it is bypassed."""
        if not self.tunes_on(backend):
            return None
        all_devices = backend.devices()
        debug_options = options.executable_build_options.debug_options
        if len({one.process_index for one in all_devices}) > 1:
            reason = "under jax.distributed XLA itself shares its tuning among the processes"
        else:
            reason = flags.objection(options)
        if reason:
            self.bypassed[reason] = None
            return None
        session = self._session
        if getattr(debug_options, flags.FOLDER):
            session.note(f"xla: --{flags.FOLDER} is not used in this run")
        if any(NAME in index.tuners() for index in session.indexes if index is not session.index):
            session.note("xla: a cache that a test names for itself is not used: XLA keeps its choices to the end")
        reported = not session.paused
        with self._mutex:
            self._number += 1
            of_this = self._temporary / str(self._number)
            loaded = self._loaded if reported else None
        folder = None if loaded is None else self._folder_of_loaded
        dump, log = of_this.with_suffix(".pb"), of_this.with_suffix(".log.txt")
        flags.set_paths(options, dump, log, folder, internals.read_mode())
        on = next(iter(devices), all_devices[0]) if devices is not None else all_devices[0]
        return _Compilation(program, dump, log, of_jax(on), reported)

    @cached_property
    def _temporary(self) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-autotune-xla-", ignore_cleanup_errors=True)
        return Path(self._folder.name)

    @property
    def _folder_of_loaded(self) -> Path:
        return self._temporary / "entries"

    @cached_property
    def _loaded(self) -> LoadedEntries | None:
        """What is loaded, which then lies where XLA can read it; None in a run that loads nothing."""
        index = self._session.index
        if index is None:
            return None
        self._folder_of_loaded.mkdir()
        try:
            entries = LoadedEntries(entry for kernel in KERNELS.values() for entry in index.of_kernel(NAME, kernel))
        except CacheError as error:
            self._session.note(f"xla: nothing was loaded: {error}")
            return LoadedEntries(())
        # The folder holds one entry for each fusion: one that was tuned under this version goes first.
        here = "jaxlib", version_of("jaxlib")
        ranked = sorted(entries.entries, key=lambda one: here not in one.ours.versions.each)
        if left_out := files.write_folder(self._folder_of_loaded, [one.xla for one in ranked]):
            self._session.note(f"xla: {left_out} of the loaded entries have a form that XLA's folder cannot hold")
        return entries

    def _lookups_of(self, compilation: _Compilation) -> list[Lookup]:
        """What a compilation looked up: what is new in XLA's memory."""
        dump = _taken(compilation.dump)
        log_text = _taken(compilation.log).decode("utf-8", "replace")
        with self._mutex:
            new = [entry for entry in files.read(dump, False, "XLA's dump") if entry.raw not in self._in_memory]
            self._in_memory.update(entry.raw for entry in new)
        log = TuningLog()
        try:
            log = read_log(log_text)
        except ValueError as error:
            self._session.note(f"xla: {error}; what was tuned has neither times nor op names")
        self._versions.update(log.versions)
        libraries = [(name, version_of(name)) for name in ("jax", "jaxlib")]
        versions = Versions((*libraries, *sorted(self._versions.items())))
        self._session.versions[NAME] = versions
        return [self._lookup(entry, compilation, log, versions) for entry in new]

    def _lookup(self, chosen: XlaEntry, compilation: _Compilation, log: TuningLog, versions: Versions) -> Lookup:
        judgement = None
        if self._loaded is not None:
            judgement = self._loaded.judge(chosen, compilation.device, self._versions)
            if (ours := judgement.entry) is not None:
                return Lookup(ours.problem, ours.fingerprint, Outcome.HIT, label=ours.label, entry=ours)
        profile = log.profiles.get((chosen.device, chosen.hlo))
        label = hlo_summary(profile.hlo_text) if profile else self._loaded.label_of(chosen) if self._loaded else ""
        entry = to_entry(chosen, compilation.device, profile.candidates if profile else (), label, versions)
        # Where XLA measured nothing it reports nothing of the HLO; the program is known in any case.
        label = entry.label or (f"in {compilation.program}" if compilation.program else "")
        lookup = Lookup(entry.problem, entry.fingerprint, label=label, entry=entry, tuned=True)
        return lookup if judgement is None else replace(lookup, outcome=judgement.outcome, reason=judgement.reason)


def _taken(path: Path) -> bytes:
    """What a file holds, which is then removed; nothing where there is none."""
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return b""
    return data
