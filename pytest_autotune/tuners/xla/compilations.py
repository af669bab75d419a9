"""The compilations of one process: what XLA is offered, and what it looked up and chose.

XLA keeps one memory of choices for the process. Around each compilation it is given
where the loaded entries are and where to write that memory; what is new in it
afterwards is what this compilation looked up.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Versions
from pytest_autotune.devices import of_jax
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.tuners.shared.versions import version_of
from pytest_autotune.tuners.xla import files, flags, hlo, internals
from pytest_autotune.tuners.xla.entries import KERNELS, NAME, to_entry
from pytest_autotune.tuners.xla.files import XlaEntry
from pytest_autotune.tuners.xla.log import TuningLog
from pytest_autotune.tuners.xla.log import read as read_log
from pytest_autotune.tuners.xla.outcomes import LoadedEntries, all_versions, same_device

_GPUS = ("gpu", "cuda", "rocm")


@dataclass(frozen=True)
class _Compilation:
    """One compilation that is watched.

    :param program: what JAX calls it: ``jit_f``.
    :param reported: its lookups are the run's; else it is only noted what XLA has learned.
    """

    program: str
    paths: flags.Paths
    device: Device
    reported: bool


@dataclass(frozen=True)
class _Offer:
    """What is loaded, as XLA can read it; the folder is None in a run that loads nothing."""

    entries: LoadedEntries
    folder: Path | None


class Compilations:
    """Watches the compilations of this process for one run."""

    def __init__(self, run: TuningRun) -> None:
        self._run = run
        #: Why compilations were left alone, each reason once.
        self.left_alone: dict[str, None] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._number = 0
        self._last_dump = b""
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
        try:
            compilation = self._prepare(backend, devices, options, program)
        except Exception as error:  # an error of ours must not fail a test
            self._leave_alone(f"{type(error).__name__}: {error}")
        if compilation is None:
            return compile()
        # XLA does not say when it begins to measure. Where each held the GPU for a whole compilation, four workers
        # took 1.6 times as long and chose no better (tests/benchmarks/jax_suite.py).
        compiled = compile()
        lookups: Sequence[Lookup] = ()
        try:
            lookups = self._lookups_of(compilation)
        except Exception as error:
            self._leave_alone(f"{type(error).__name__}: {error}")
        if compilation.reported:
            self._run.observed(*lookups)
        return compiled

    def tunes_on(self, backend: Any) -> bool:
        """Whether XLA tunes what is compiled for a backend, and the user wants it to be kept."""
        if self._run.ignores(NAME, KERNELS[files.Layout.NEW]):
            return False
        if backend.platform in _GPUS:
            if _caches_programs():
                self._run.note(
                    "xla: JAX's persistent compilation cache is off in this run: "
                    "its programs were tuned without this cache"
                )
            return True
        if backend.platform == "cpu" and sys.modules["jax"].default_backend() == "cpu":
            self._run.note("xla: JAX runs on the CPU here, where XLA tunes nothing; it tunes on GPUs")
        return False

    def _leave_alone(self, reason: str) -> None:
        self.left_alone[reason] = None

    def _prepare(self, backend: Any, devices: Any, options: Any, program: str) -> _Compilation | None:
        """Set what XLA reads and writes in this compilation; None where it is left alone."""
        run = self._run
        if not self.tunes_on(backend):
            return None
        all_devices = backend.devices()
        if len({one.process_index for one in all_devices}) > 1:
            self._leave_alone("under jax.distributed XLA itself shares its tuning among the processes")
            return None
        debug_options = options.executable_build_options.debug_options
        if lacking := flags.missing(debug_options):
            self._leave_alone(f"jaxlib {version_of('jaxlib')} cannot set {', '.join(lacking)}; a newer one is needed")
            return None
        if objection := flags.objection(options):
            self._leave_alone(objection)
            return None
        self._note_other_caches(debug_options)
        on = next(iter(devices), all_devices[0]) if devices is not None else all_devices[0]
        reported = not run.paused
        with self._mutex:
            self._number += 1
            of_this = self._temporary / str(self._number)
            folder = self._offer.folder if reported else None
        paths = flags.Paths(of_this.with_suffix(".pb"), of_this.with_suffix(".log.txt"), folder)
        flags.set_paths(options, paths, internals.read_mode())
        return _Compilation(program, paths, of_jax(on), reported)

    def _note_other_caches(self, debug_options: Any) -> None:
        run = self._run
        if getattr(debug_options, flags.FOLDER):
            run.note(f"xla: --{flags.FOLDER} is not used in this run")
        if any(NAME in index.tuners() for index in run.indexes if index is not run.index):
            run.note("xla: a cache that a test names for itself is not used: XLA keeps its choices to the end")

    @cached_property
    def _temporary(self) -> Path:
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-autotune-xla-", ignore_cleanup_errors=True)
        return Path(self._folder.name)

    @cached_property
    def _offer(self) -> _Offer:
        index = self._run.index
        if index is None:
            return _Offer(LoadedEntries(()), None)
        folder = self._temporary / "entries"
        folder.mkdir()
        try:
            entries = LoadedEntries(entry for kernel in KERNELS.values() for entry in index.of_kernel(NAME, kernel))
        except CacheError as error:
            self._run.note(f"xla: nothing was loaded: {error}")
            return _Offer(LoadedEntries(()), folder)
        # The folder holds one entry for each fusion: one that was tuned under this version goes first.
        here = "jaxlib", version_of("jaxlib")
        ranked = sorted(entries.entries, key=lambda one: here not in one.ours.versions.each)
        if left_out := files.write_folder(folder, [one.xla for one in ranked]):
            self._run.note(f"xla: {len(left_out)} of the loaded entries have a form that XLA's folder cannot hold")
        return _Offer(entries, folder)

    def _lookups_of(self, compilation: _Compilation) -> list[Lookup]:
        """What a compilation looked up: what is new in XLA's memory."""
        dump = _taken(compilation.paths.dump)
        log_text = _taken(compilation.paths.log).decode("utf-8", "replace")
        with self._mutex:
            if dump == self._last_dump:
                return []
            self._last_dump = dump
            new = [entry for entry in files.read(dump, False, "XLA's dump") if entry.raw not in self._in_memory]
            self._in_memory.update(entry.raw for entry in new)
        log = TuningLog()
        try:
            log = read_log(log_text)
        except ValueError as error:
            self._run.note(f"xla: {error}; what was tuned has neither times nor op names")
        self._versions.update(log.versions)
        versions = all_versions(version_of("jax"), version_of("jaxlib"), self._versions)
        self._run.versions[NAME] = versions
        return [self._lookup(entry, compilation, log, versions) for entry in new]

    def _lookup(self, chosen: XlaEntry, compilation: _Compilation, log: TuningLog, versions: Versions) -> Lookup:
        loaded = self._offer
        verdict = None
        if loaded.folder is not None:
            verdict = loaded.entries.judge(chosen, compilation.device, self._versions)
            if verdict.entry is not None:
                ours = verdict.entry
                return Lookup(ours.problem, ours.fingerprint, Outcome.HIT, label=ours.label, entry=ours)
        profile = log.profiles.get((chosen.device, chosen.hlo))
        label = hlo.summary(profile.hlo_text) if profile else self._label_of_loaded(chosen)
        candidates = profile.candidates if profile else ()
        entry = to_entry(chosen, compilation.device, candidates, label, versions)
        # Where XLA measured nothing it reports nothing of the HLO; the program is known in any case.
        label = entry.label or (f"in {compilation.program}" if compilation.program else "")
        lookup = Lookup(entry.problem, entry.fingerprint, label=label, entry=entry, tuned=True)
        return lookup if verdict is None else replace(lookup, outcome=verdict.outcome, reason=verdict.reason)

    def _label_of_loaded(self, chosen: XlaEntry) -> str:
        """What a loaded entry says of the same HLO, where XLA's log says nothing."""
        same = (one for one in self._offer.entries.entries if one.xla.hlo == chosen.hlo)
        return next((one.ours.label for one in same if same_device(one.xla, chosen)), "")


def _caches_programs() -> bool:
    config = sys.modules["jax"].config
    return bool(
        getattr(config, "jax_compilation_cache_dir", None) and getattr(config, "jax_enable_compilation_cache", True)
    )


def _taken(path: Path) -> bytes:
    """What a file holds, which is then removed; nothing where there is none."""
    try:
        data = path.read_bytes()
        path.unlink()
    except FileNotFoundError:
        return b""
    return data
