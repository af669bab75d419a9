"""Watches the compilations of one process: gives XLA the loaded entries, and reads the choices that it made.

XLA keeps one memory of choices for the process. Before each compilation the watcher tells XLA the folder of the loaded
entries and the file into which XLA writes its memory. The entries that are new in this file afterwards are the lookups
of the compilation.

The watcher sets XLA's flags in the options that JAX hands to a compilation. So the flags reach exactly the compilations
of this process: ``XLA_FLAGS`` stays as the user has it, child processes inherit nothing, a flag that the installed XLA
does not know cannot end the process, and a flag is never set too late.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_autotune.cache.digest_parts import list_changed_names
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Candidate, Device, Entry, Versions
from pytest_autotune.devices import jax_device
from pytest_autotune.run.lookup import Lookup, Outcome, TunedEntry, UsedEntry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import find_version
from pytest_autotune.tuners.shared.patches import CallHook, CallResult, HookedCall
from pytest_autotune.tuners.xla import files, internals, messages
from pytest_autotune.tuners.xla.entries import KERNELS, NAME, TuningLog, describe_hlo, read_log, to_entry
from pytest_autotune.tuners.xla.files import XlaEntry
from pytest_autotune.tuners.xla.outcomes import LoadedEntries

#: The name of the folder with the loaded entries, which XLA reads.
_ENTRIES_FOLDER = "entries"
#: JAX's names of platforms on which XLA tunes.
_GPU_PLATFORMS = ("gpu", "cuda", "rocm")
_DUMP = "xla_gpu_dump_autotune_results_to"
_LOAD = "xla_gpu_load_autotune_results_from"
_LOGS = "xla_gpu_dump_autotune_logs_to"
_FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
_MODE = "xla_gpu_experimental_autotune_cache_mode"


@dataclass(frozen=True)
class XlaCompilation:
    """A compilation that the watcher observes.

    :param program: JAX's name of the program.
    :param dump: the file into which XLA writes its memory of choices.
    :param log: the file into which XLA writes its measurements.
    :param is_reported: report the lookups. Else the watcher only reads the choices that XLA now has in its memory.
    """

    program: str
    dump: Path
    log: Path
    device: Device
    is_reported: bool


class XlaCompileWatcher:
    """Watches the compilations of this process for one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: The reasons why compilations were bypassed, each once.
        self.bypassed: dict[str, None] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-autotune-xla-", ignore_cleanup_errors=True)
        self._temporary = Path(self._folder.name)
        self._compilation_count = 0
        #: The bytes of the entries that XLA already had in its memory.
        self._in_memory: set[bytes] = set()
        #: XLA's names of its backends, with their versions.
        self._backend_versions: dict[str, str] = {}
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Remove the files that were written for XLA."""
        self._folder.cleanup()

    def report(self, compilation: XlaCompilation) -> None:
        """Report the lookups of a compilation that is over."""
        lookups = self._read_lookups(compilation)
        if compilation.is_reported:
            self._session.report_observed(*lookups)

    def tunes_on(self, backend: Any) -> bool:
        """Whether XLA tunes programs for a backend, and the user wants their choices in the cache."""
        if self._session.ignores(NAME, KERNELS[files.XlaLayout.NEW]):
            return False
        if backend.platform in _GPU_PLATFORMS:
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

    def prepare(self, backend: Any, devices: Any, options: Any, program: str) -> XlaCompilation | None:
        """Set the files that XLA reads and writes in a compilation; return None if the compilation is bypassed.

        :param program: JAX's name of the program.
        """
        if not self.tunes_on(backend):
            return None
        all_devices = backend.devices()
        debug_options = options.executable_build_options.debug_options
        if len({device.process_index for device in all_devices}) > 1:
            reason = "under jax.distributed XLA itself shares its tuning among the processes"
        else:
            reason = _find_conflict(options)
        if reason:
            self.bypassed[reason] = None
            return None
        session = self._session
        if getattr(debug_options, _FOLDER):
            session.note(f"xla: --{_FOLDER} is not used in this run")
        if any(NAME in index.list_tuners() for index in session.indexes if index is not session.index):
            session.note("xla: a cache that a test names for itself is not used: XLA keeps its choices to the end")
        is_reported = not session.is_paused
        with self._mutex:
            self._compilation_count += 1
            number = self._compilation_count
            loaded = self._loaded if is_reported else None
        dump, log = self._temporary / f"{number}.pb", self._temporary / f"{number}.log.txt"
        first_device = all_devices[0]
        if devices is not None:
            first_device = next(iter(devices), first_device)
        compilation = XlaCompilation(program, dump, log, jax_device(first_device), is_reported)
        read_mode = internals.read_mode()
        # The options are changed last: after an error of ours, XLA compiles with the user's own.
        setattr(debug_options, _DUMP, str(dump))
        # If the user has set a file for the log, XLA writes it there.
        if hasattr(debug_options, _LOGS) and not getattr(debug_options, _LOGS):
            setattr(debug_options, _LOGS, str(log))
        setattr(debug_options, _FOLDER, "" if loaded is None else str(self._temporary / _ENTRIES_FOLDER))
        setattr(debug_options, _MODE, read_mode)
        return compilation

    @cached_property
    def _loaded(self) -> LoadedEntries | None:
        """The loaded entries, which are written into the folder for XLA; None in a run that loads nothing."""
        index = self._session.index
        if index is None:
            return None
        folder = self._temporary / _ENTRIES_FOLDER
        folder.mkdir()
        cache_entries: list[Entry] = []
        for kernel in KERNELS.values():
            cache_entries += index.list_kernel_entries(NAME, kernel)
        try:
            loaded_entries = LoadedEntries(cache_entries)
        except CacheError as error:
            self._session.note(f"xla: nothing was loaded: {error}")
            return LoadedEntries(())
        # The folder holds one entry for each fusion. An entry that was tuned under this version goes first.
        this_version = "jaxlib", find_version("jaxlib")
        same_version: list[XlaEntry] = []
        other_versions: list[XlaEntry] = []
        for loaded in loaded_entries.entries:
            if this_version in loaded.cache_entry.versions.libraries:
                same_version.append(loaded.xla_entry)
            else:
                other_versions.append(loaded.xla_entry)
        left_out_count = files.write_folder(folder, [*same_version, *other_versions])
        if left_out_count:
            self._session.note(f"xla: {left_out_count} of the loaded entries have a form that XLA's folder cannot hold")
        return loaded_entries

    def _read_lookups(self, compilation: XlaCompilation) -> list[Lookup]:
        """Return the lookups of a compilation: the entries that are new in XLA's memory."""
        dump = _read_and_remove(compilation.dump)
        log_text = _read_and_remove(compilation.log).decode("utf-8", "replace")
        with self._mutex:
            new_entries = [entry for entry in files.read(dump, "XLA's dump") if entry.raw not in self._in_memory]
            self._in_memory.update(entry.raw for entry in new_entries)
        log = TuningLog()
        try:
            log = read_log(log_text)
        except ValueError as error:
            self._session.note(f"xla: {error}; what was tuned has neither times nor op names")
        self._backend_versions.update(log.backend_versions)
        libraries = [(name, find_version(name)) for name in ("jax", "jaxlib")]
        versions = Versions((*libraries, *sorted(self._backend_versions.items())))
        self._session.versions[NAME] = versions
        return [self._build_lookup(entry, compilation, log, versions) for entry in new_entries]

    def _build_lookup(
        self, chosen: XlaEntry, compilation: XlaCompilation, log: TuningLog, versions: Versions
    ) -> Lookup:
        """Return the lookup for an entry that is new in XLA's memory."""
        verdict = None
        if self._loaded is not None:
            verdict = self._loaded.judge(chosen, compilation.device, self._backend_versions)
        loaded_entry = None if verdict is None else verdict.entry
        if verdict is not None and verdict.outcome is Outcome.HIT and loaded_entry is not None:
            return Lookup(
                loaded_entry.identity, verdict.outcome, label=loaded_entry.label, result=UsedEntry(loaded_entry)
            )
        candidates: tuple[Candidate, ...] = ()
        label = ""
        profile = log.profiles.get((chosen.device, chosen.hlo))
        if profile is not None:
            candidates = profile.candidates
            label = describe_hlo(profile.hlo_text)
        elif loaded_entry is not None:
            # The log contains no fusions that XLA did not measure.
            label = loaded_entry.label
        entry = to_entry(chosen, compilation.device, candidates, label, versions)
        lookup_label = entry.label
        if not lookup_label and compilation.program:
            lookup_label = f"in {compilation.program}"
        if verdict is None:
            return Lookup(entry.identity, label=lookup_label, result=TunedEntry(entry))
        changed: tuple[str, ...] = ()
        if verdict.outcome is Outcome.STALE and loaded_entry is not None:
            changed = tuple(list_changed_names(loaded_entry.fingerprint, entry.fingerprint))
        return Lookup(
            entry.identity,
            verdict.outcome,
            verdict.reason,
            label=lookup_label,
            result=TunedEntry(entry),
            changed=changed,
        )


class CompilationHook(CallHook):
    """Watches the compilations that JAX asks XLA for."""

    def __init__(self, watcher: XlaCompileWatcher) -> None:
        self._watcher = watcher
        self._process = os.getpid()

    def ask(self, call: HookedCall) -> None:
        """Set the files that XLA reads and writes."""
        # No GPU lock: XLA does not tell when it begins to measure. With the lock around whole compilations four workers
        # took 1.6 times as long and chose no better (tests/benchmarks/jax_suite.py).
        if os.getpid() != self._process:  # a forked child has no way to report
            return
        arguments = call.arguments
        program = internals.program_name(arguments["module"])
        call.state = self._watcher.prepare(
            arguments["backend"], arguments["executable_devices"], arguments["options"], program
        )

    def note(self, call: HookedCall, result: Any) -> None:
        """Report the lookups that XLA made."""
        if call.state is not None:
            self._watcher.report(call.state)


class CacheUseHook(CallHook):
    """Has JAX compile every program that XLA tunes, in place of taking it from JAX's own cache."""

    def __init__(self, watcher: XlaCompileWatcher) -> None:
        self._watcher = watcher

    def ask(self, call: HookedCall) -> CallResult | None:
        if self._watcher.tunes_on(call.arguments["backend"]):
            return CallResult(False)
        return None


def _read_and_remove(path: Path) -> bytes:
    """Return the content of a file, and remove the file; return nothing if there is no file."""
    data = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    return data


def _find_conflict(options: Any) -> str:
    """Return why the user's own settings of a compilation exclude a cache; empty if they do not."""
    debug_options = options.executable_build_options.debug_options
    overrides = dict(options.env_option_overrides)
    for name, instead in ((_DUMP, "--autotune-dump"), (_LOAD, "--autotune-load")):
        if getattr(debug_options, name, "") or overrides.get(name):
            return f"--{name} is set: remove it, {instead} does the same"
    for name in (_FOLDER, _MODE):
        if overrides.get(name):
            return f"the compiler option {name} is set: remove it, or leave XLA out with --autotune-tuners"
    # Only some of XLA's flags have a name in Python, so the flags are read from the serialized options.
    serialized = messages.parse("xla.CompileOptionsProto", options.SerializeAsString())
    flags = serialized.executable_build_options.debug_options
    settings = {field.name: int(getattr(flags, field.name)) for field in flags.DESCRIPTOR.fields}
    for name in settings:
        if name in overrides:
            settings[name] = _parse_setting(overrides[name])
    conflicts = []
    if settings.pop("xla_gpu_autotune_level") == 0:
        conflicts.append("xla_gpu_autotune_level=0")
    conflicts += [name for name, is_set in settings.items() if is_set]
    if not conflicts:
        return ""
    return f"--{conflicts[0]} is set: XLA tunes nothing then and does not tell what it lacks"


def _parse_setting(value: object) -> int:
    """Return an option's value, which may be text such as ``"true"``, as a number."""
    text = str(value).lower()
    return int(text) if text.lstrip("-").isdigit() else int(text == "true")
