"""The compilations of one process: what XLA is offered, and what it looked up and chose.

XLA keeps one memory of choices for the process. Around each compilation it is given where the loaded entries are and
where to write that memory; what is new in it afterwards is what this compilation looked up.

XLA's flags are fields of the options that JAX hands to a compilation. Set there they reach exactly the compilations of
this process: ``XLA_FLAGS`` stays as the user has it, no child process inherits anything, a flag that the installed XLA
does not know cannot end the process, and it is never too late.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Versions
from pytest_autotune.devices import of_jax
from pytest_autotune.run.lookup import Lookup, Outcome, TunedEntry, UsedEntry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import find_version
from pytest_autotune.tuners.xla import files, internals, messages
from pytest_autotune.tuners.xla.entries import KERNELS, NAME, Profiles, hlo_summary, read_log, to_entry
from pytest_autotune.tuners.xla.files import XlaEntry
from pytest_autotune.tuners.xla.outcomes import LoadedEntries

#: The folder of what is loaded, which XLA reads.
_ENTRIES = "entries"
_GPUS = ("gpu", "cuda", "rocm")
_DUMP = "xla_gpu_dump_autotune_results_to"
_LOAD = "xla_gpu_load_autotune_results_from"
_LOGS = "xla_gpu_dump_autotune_logs_to"
_FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
_MODE = "xla_gpu_experimental_autotune_cache_mode"


@dataclass(frozen=True)
class _Compilation:
    """One compilation that is watched.

    :param dump: where XLA writes its memory of choices; ``log``: what it measured.
    :param reported: its lookups are the run's; else it is only noted what XLA has learned.
    """

    program: str
    dump: Path
    log: Path
    device: Device
    reported: bool


class XlaCompileWatcher:
    """Watches the compilations of this process for one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: Why compilations were bypassed, each reason once.
        self.bypassed: dict[str, None] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-autotune-xla-", ignore_cleanup_errors=True)
        self._temporary = Path(self._folder.name)
        self._number = 0
        self._in_memory: set[bytes] = set()
        self._versions: dict[str, str] = {}
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Remove what was written for XLA."""
        self._folder.cleanup()

    def watch(self, compile_it: Callable[[], Any], backend: Any, devices: Any, options: Any, program: str) -> Any:
        """Do one compilation, of what JAX calls ``program``, with its options changed; report what it looked up."""
        compilation = self._prepare(backend, devices, options, program)
        # XLA does not say when it begins to measure. Where each held the GPU for a whole compilation, four workers
        # took 1.6 times as long and chose no better (tests/benchmarks/jax_suite.py).
        compiled = compile_it()
        if compilation is None:
            return compiled
        try:
            lookups = self._lookups_of(compilation)
        except Exception as error:  # it is compiled: nobody needs to do so again
            self._session.report_unanswered_call(NAME, "what XLA wrote", error)
            return compiled
        if compilation.reported:
            self._session.report_observed(*lookups)
        return compiled

    def tunes_on(self, backend: Any) -> bool:
        """Whether XLA tunes what is compiled for a backend, and the user wants it to be kept."""
        if self._session.ignores(NAME, KERNELS[files.XlaLayout.NEW]):
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
            reason = _objection(options)
        if reason:
            self.bypassed[reason] = None
            return None
        session = self._session
        if getattr(debug_options, _FOLDER):
            session.note(f"xla: --{_FOLDER} is not used in this run")
        if any(NAME in index.list_tuners() for index in session.indexes if index is not session.index):
            session.note("xla: a cache that a test names for itself is not used: XLA keeps its choices to the end")
        reported = not session.is_paused
        with self._mutex:
            self._number += 1
            of_this = self._temporary / str(self._number)
            loaded = self._loaded if reported else None
        dump, log = of_this.with_suffix(".pb"), of_this.with_suffix(".log.txt")
        setattr(debug_options, _DUMP, str(dump))
        if hasattr(debug_options, _LOGS) and not getattr(debug_options, _LOGS):  # else where the user has it written
            setattr(debug_options, _LOGS, str(log))
        setattr(debug_options, _FOLDER, "" if loaded is None else str(self._temporary / _ENTRIES))
        setattr(debug_options, _MODE, internals.read_mode())
        on = next(iter(devices), all_devices[0]) if devices is not None else all_devices[0]
        return _Compilation(program, dump, log, of_jax(on), reported)

    @cached_property
    def _loaded(self) -> LoadedEntries | None:
        """What is loaded, which then lies where XLA can read it; None in a run that loads nothing."""
        index = self._session.index
        if index is None:
            return None
        folder = self._temporary / _ENTRIES
        folder.mkdir()
        try:
            entries = LoadedEntries(
                entry for kernel in KERNELS.values() for entry in index.list_kernel_entries(NAME, kernel)
            )
        except CacheError as error:
            self._session.note(f"xla: nothing was loaded: {error}")
            return LoadedEntries(())
        # The folder holds one entry for each fusion: one that was tuned under this version goes first.
        here = "jaxlib", find_version("jaxlib")
        ranked = sorted(entries.entries, key=lambda one: here not in one.ours.versions.libraries)
        if left_out := files.write_folder(folder, [one.xla for one in ranked]):
            self._session.note(f"xla: {left_out} of the loaded entries have a form that XLA's folder cannot hold")
        return entries

    def _lookups_of(self, compilation: _Compilation) -> list[Lookup]:
        """What a compilation looked up: what is new in XLA's memory."""
        dump = _taken(compilation.dump)
        log_text = _taken(compilation.log).decode("utf-8", "replace")
        with self._mutex:
            new = [entry for entry in files.read(dump, "XLA's dump") if entry.raw not in self._in_memory]
            self._in_memory.update(entry.raw for entry in new)
        profiles: Profiles = {}
        try:
            profiles, backends = read_log(log_text)
            self._versions.update(backends)
        except ValueError as error:
            self._session.note(f"xla: {error}; what was tuned has neither times nor op names")
        libraries = [(name, find_version(name)) for name in ("jax", "jaxlib")]
        versions = Versions((*libraries, *sorted(self._versions.items())))
        self._session.versions[NAME] = versions
        return [self._lookup(entry, compilation, profiles, versions) for entry in new]

    def _lookup(self, chosen: XlaEntry, compilation: _Compilation, profiles: Profiles, versions: Versions) -> Lookup:
        outcome, reason, ours = None, "", None
        if self._loaded is not None:
            outcome, reason, ours = self._loaded.judge(chosen, compilation.device, self._versions)
            if ours is not None and outcome is Outcome.HIT:
                return Lookup(ours.identity, outcome, label=ours.label, result=UsedEntry(ours))
        profile = profiles.get((chosen.device, chosen.hlo))
        # XLA's log says nothing of what it did not measure.
        label = hlo_summary(profile.hlo_text) if profile else ours.label if ours is not None else ""
        entry = to_entry(chosen, compilation.device, profile.candidates if profile else (), label, versions)
        # Where XLA measured nothing it reports nothing of the HLO; the program is known in any case.
        label = entry.label or (f"in {compilation.program}" if compilation.program else "")
        return Lookup(entry.identity, outcome, reason, label=label, result=TunedEntry(entry))


def _taken(path: Path) -> bytes:
    """What a file holds, which is then removed; nothing where there is none."""
    data = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    return data


def _objection(options: Any) -> str:
    """Why the user's own settings of a compilation rule a cache out; empty where nothing does."""
    debug_options = options.executable_build_options.debug_options
    overrides = dict(options.env_option_overrides)
    for name, instead in ((_DUMP, "--autotune-dump"), (_LOAD, "--autotune-load")):
        if getattr(debug_options, name, "") or overrides.get(name):
            return f"--{name} is set: remove it, {instead} does the same"
    for name in (_FOLDER, _MODE):
        if overrides.get(name):
            return f"the compiler option {name} is set: remove it, or leave XLA out with --autotune-tuners"
    # XLA's flags as it will see them; only some of them have a name in Python.
    parsed = messages.parsed("xla.CompileOptionsProto", options.SerializeAsString())
    found = parsed.executable_build_options.debug_options
    settings = {field.name: int(getattr(found, field.name)) for field in found.DESCRIPTOR.fields}
    settings.update((name, _number(overrides[name])) for name in settings if name in overrides)
    level = settings.pop("xla_gpu_autotune_level")
    ruled_out = ["xla_gpu_autotune_level=0"] * (level == 0) + [name for name, is_set in settings.items() if is_set]
    return f"--{ruled_out[0]} is set: XLA tunes nothing then and does not tell what it lacks" if ruled_out else ""


def _number(value: object) -> int:
    text = str(value).lower()
    return int(text) if text.lstrip("-").isdigit() else int(text == "true")
