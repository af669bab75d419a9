"""Watches the compilations of one process: gives XLA the loaded entries, and reads the choices that it made.

XLA keeps one memory of choices for the process. Before each compilation the watcher tells XLA the folder of the loaded
entries and the file into which XLA writes its memory (the dump). The entries that are new in this file afterwards are
the lookups of the compilation: XLA found each of them in the folder, or tuned it.

An ``XlaEntry`` is an entry as XLA reads and writes it. An ``Entry`` is an entry of a cache of this package.

The watcher sets XLA's flags in the options that JAX passes to a compilation, and not in the variable ``XLA_FLAGS``. The
variable would reach child processes. XLA reads it only once, perhaps before the plugin sets it, and ends the process if
the variable has an unknown flag.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
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
from pytest_autotune.tuners.shared.patches import CallHook, CallResult, HookedCall
from pytest_autotune.tuners.source.libraries import find_version
from pytest_autotune.tuners.xla import files, internals
from pytest_autotune.tuners.xla.entries import KERNELS, NAME, TuningLog, describe_hlo, read_log, to_entry
from pytest_autotune.tuners.xla.files import XlaEntry
from pytest_autotune.tuners.xla.outcomes import LoadedEntries

#: JAX's names of platforms on which XLA tunes.
_GPU_PLATFORMS = ("gpu", "cuda", "rocm")
#: XLA's flags for files: it writes its memory to the first, reads choices from the second, writes its measurements to
#: the third, and reads choices from the fourth, a folder. The mode says whether XLA may write into the folder.
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
    :param is_reported: whether the session gets the lookups. It does not get them while the plugin is paused. The
        watcher then only notes which choices XLA has in its memory, so that no later compilation reports them.
    """

    program: str
    dump: Path
    log: Path
    device: Device
    is_reported: bool


@dataclass(frozen=True)
class _ObservedFiles:
    """The content of the files that XLA wrote in one compilation.

    :param new_entries: the entries that XLA took into its memory in this compilation.
    :param versions: the versions of JAX and of XLA's backends.
    """

    new_entries: list[XlaEntry]
    log: TuningLog
    versions: Versions


class XlaCompileWatcher:
    """Watches the compilations of this process for one run."""

    def __init__(self, session: Session) -> None:
        self._session = session
        #: The reasons why compilations were bypassed, each once.
        self.bypassed: dict[str, None] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="pytest-autotune-xla-", ignore_cleanup_errors=True)
        self._temporary = Path(self._folder.name)
        #: The folder with the loaded entries, which XLA reads.
        self._entries_folder = self._temporary / "entries"
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
        """Report the lookups of a compilation that has ended."""
        lookups = self._read_lookups(compilation)
        if compilation.is_reported:
            self._session.report_observed(*lookups)

    def tunes_on(self, backend: Any) -> bool:
        """Whether XLA tunes programs for a backend, and the user has not left XLA out.

        :param backend: JAX's client of one platform, such as ``"cuda"``.
        """
        return not self._is_left_out() and backend.platform in _GPU_PLATFORMS

    def note_limits(self, backend: Any) -> None:
        """Tell the user if the backend, or JAX's own cache, limits this run. The summary has each line once."""
        if self._is_left_out():
            return
        jax = sys.modules["jax"]
        if backend.platform in _GPU_PLATFORMS:
            # CacheUseHook turns JAX's own cache off.
            if jax.config.jax_compilation_cache_dir and jax.config.jax_enable_compilation_cache:
                self._session.note(
                    "xla: JAX's persistent compilation cache is off in this run: "
                    "its programs were tuned without this cache"
                )
        # On a machine with a GPU, JAX also compiles small programs for the CPU. Only a run without a GPU gets the note.
        elif backend.platform == "cpu" and jax.default_backend() == "cpu":
            self._session.note("xla: JAX runs on the CPU here, where XLA tunes nothing; it tunes on GPUs")

    def _is_left_out(self) -> bool:
        """Whether XLA works without the plugin: the user has left it out, or the run has ended."""
        return self._session.ignores(NAME, KERNELS[files.XlaLayout.NEW])

    def prepare(self, backend: Any, devices: Any, options: Any, program: str) -> XlaCompilation | None:
        """Set the files that XLA reads and writes in a compilation.

        :param backend: JAX's client of one platform, such as ``"cuda"``.
        :param devices: the devices that will run the program; None or empty if JAX does not tell them.
        :param options: JAX's options of the compilation. This method changes them.
        :param program: JAX's name of the program.
        :returns: the compilation; None if it is bypassed, and its options are unchanged.
        """
        self.note_limits(backend)
        if not self.tunes_on(backend):
            return None
        all_devices = backend.devices()
        reason = _find_bypass_reason(all_devices, options)
        if reason:
            self.bypassed[reason] = None
            return None
        debug_options = options.executable_build_options.debug_options
        self._note_unused_settings(debug_options)
        # While the plugin is paused, XLA tunes without the loaded entries.
        is_reported = not self._session.is_paused
        entries_folder = ""
        with self._mutex:
            self._compilation_count += 1
            number = self._compilation_count
            if is_reported and self._loaded is not None:
                entries_folder = str(self._entries_folder)
        first_device = all_devices[0]
        if devices is not None:
            first_device = next(iter(devices), first_device)
        compilation = XlaCompilation(
            program=program,
            dump=self._temporary / f"{number}.pb",
            log=self._temporary / f"{number}.log.txt",
            device=jax_device(first_device),
            is_reported=is_reported,
        )
        _set_options(debug_options, compilation, entries_folder)
        return compilation

    def _note_unused_settings(self, debug_options: Any) -> None:
        """Tell the user which settings and caches have no effect in this run."""
        session = self._session
        if getattr(debug_options, _FOLDER):
            session.note(f"xla: XLA's flag --{_FOLDER} has no effect in this run, because the plugin sets it")
        # XLA keeps an entry in its memory to the end of the process, so a test's own cache would reach other tests.
        if any(NAME in index.list_tuners() for index in session.indexes if index is not session.index):
            session.note(
                "xla: the cache that a test loads for itself is not used, because XLA keeps its "
                "choices to the end of the run"
            )

    @cached_property
    def _loaded(self) -> LoadedEntries | None:
        """The loaded entries; None in a run that loads nothing.

        The first access writes the entries into the folder for XLA.
        """
        index = self._session.index
        if index is None:
            return None
        self._entries_folder.mkdir()
        cache_entries: list[Entry] = []
        for kernel in KERNELS.values():
            cache_entries += index.list_kernel_entries(NAME, kernel)
        try:
            loaded_entries = LoadedEntries(cache_entries)
        except CacheError as error:
            self._session.note(f"xla: no loaded entry is used: {error}")
            return LoadedEntries(())
        self._write_folder(loaded_entries)
        return loaded_entries

    def _write_folder(self, loaded_entries: LoadedEntries) -> None:
        """Write the loaded entries into the folder that XLA reads, which has a single entry for each fusion.

        XLA may refuse an entry of another version. If several entries are for one fusion, the folder gets the first, so
        the entries of the installed version come first.
        """
        installed = ("jaxlib", find_version("jaxlib"))
        same_version: list[XlaEntry] = []
        other_versions: list[XlaEntry] = []
        for loaded in loaded_entries.entries:
            if installed in loaded.cache_entry.versions.libraries:
                same_version.append(loaded.xla_entry)
            else:
                other_versions.append(loaded.xla_entry)
        left_out_count = files.write_folder(self._entries_folder, [*same_version, *other_versions])
        if left_out_count:
            self._session.note(
                f"xla: {left_out_count} of the loaded entries are not used, because XLA cannot read "
                f"their form (dump them anew)"
            )

    def _read_lookups(self, compilation: XlaCompilation) -> list[Lookup]:
        """Return a lookup for each entry that XLA took into its memory in a compilation.

        XLA makes no lookup for a fusion that is in its memory already.
        """
        observed = self._read_files(compilation)
        self._session.versions[NAME] = observed.versions
        return [self._build_lookup(entry, compilation, observed) for entry in observed.new_entries]

    def _read_files(self, compilation: XlaCompilation) -> _ObservedFiles:
        """Read and remove the files that XLA wrote in a compilation."""
        dump = _read_and_remove(compilation.dump)
        log_text = _read_and_remove(compilation.log).decode("utf-8", "replace")
        with self._mutex:
            new_entries = [entry for entry in files.read(dump, "XLA's dump") if entry.raw not in self._in_memory]
            self._in_memory.update(entry.raw for entry in new_entries)
        try:
            log = read_log(log_text)
        except ValueError as error:
            self._session.note(f"xla: {error}; the entries have neither times nor names of operations")
            log = TuningLog()
        # XLA writes no log if it measured nothing, so the versions of earlier logs are kept.
        self._backend_versions.update(log.backend_versions)
        libraries = [(name, find_version(name)) for name in ("jax", "jaxlib")]
        versions = Versions((*libraries, *sorted(self._backend_versions.items())))
        return _ObservedFiles(new_entries, log, versions)

    def _build_lookup(self, memory_entry: XlaEntry, compilation: XlaCompilation, observed: _ObservedFiles) -> Lookup:
        """Return the lookup for an entry that is new in XLA's memory: a hit, or a tuning with the reason for it.

        :param memory_entry: the entry.
        """
        # The run loads nothing, so the lookup has no outcome.
        if self._loaded is None:
            entry = _build_entry(memory_entry, compilation, observed, stale_entry=None)
            return Lookup(entry.identity, label=_build_label(entry, compilation), result=TunedEntry(entry))
        answer = self._loaded.judge(memory_entry, compilation.device, self._backend_versions)
        loaded_entry = answer.entry
        if answer.outcome is Outcome.HIT and loaded_entry is not None:
            used = UsedEntry(loaded_entry)
            return Lookup(loaded_entry.identity, answer.outcome, label=loaded_entry.label, result=used)
        entry = _build_entry(memory_entry, compilation, observed, stale_entry=loaded_entry)
        changed: tuple[str, ...] = ()
        if answer.outcome is Outcome.STALE and loaded_entry is not None:
            changed = tuple(list_changed_names(loaded_entry.fingerprint, entry.fingerprint))
        return Lookup(
            entry.identity,
            answer.outcome,
            answer.reason,
            label=_build_label(entry, compilation),
            result=TunedEntry(entry),
            changed=changed,
        )


class CompilationHook(CallHook):
    """The hook of JAX's function that compiles a program with XLA."""

    def __init__(self, watcher: XlaCompileWatcher) -> None:
        self._watcher = watcher
        self._process = os.getpid()

    def ask(self, call: HookedCall) -> None:
        """Set the files that XLA reads and writes."""
        # The hook takes no GPU lock, because XLA does not tell when it begins to measure. With the lock around whole
        # compilations, four workers took 1.6 times as long and chose no better (tests/benchmarks/jax_suite.py).
        #
        # A forked child cannot report lookups to the session of its parent.
        if os.getpid() != self._process:
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
    """Turns JAX's own cache off for programs that XLA tunes.

    JAX would not compile a program that it finds in this cache, so XLA would make no lookups for the program.
    """

    def __init__(self, watcher: XlaCompileWatcher) -> None:
        self._watcher = watcher

    def ask(self, call: HookedCall) -> CallResult | None:
        backend = call.arguments["backend"]
        self._watcher.note_limits(backend)
        if self._watcher.tunes_on(backend):
            return CallResult(False)
        return None


def _read_and_remove(path: Path) -> bytes:
    """Return the content of a file, and remove the file. XLA writes no file if it has nothing to write."""
    if not path.exists():
        return b""
    data = path.read_bytes()
    path.unlink(missing_ok=True)
    return data


def _build_entry(
    memory_entry: XlaEntry, compilation: XlaCompilation, observed: _ObservedFiles, stale_entry: Entry | None
) -> Entry:
    """Return the cache entry for an entry that XLA tuned, with the candidates and the label from XLA's log.

    :param memory_entry: the entry, as XLA has it in its memory.
    :param observed: the files that XLA wrote in the compilation, with the log.
    :param stale_entry: the loaded entry for the same HLO and device; None if there is no such entry.
    """
    candidates: tuple[Candidate, ...] = ()
    label = ""
    profile = observed.log.profiles.get((memory_entry.device, memory_entry.hlo))
    if profile is not None:
        candidates = profile.candidates
        label = describe_hlo(profile.hlo_text)
    elif stale_entry is not None:
        # XLA has measured nothing, so its log lacks this entry. The label describes the HLO, which has not changed.
        label = stale_entry.label
    return to_entry(memory_entry, compilation.device, candidates, label, observed.versions)


def _build_label(entry: Entry, compilation: XlaCompilation) -> str:
    """Return the label of a lookup: the entry's own, else the program in which XLA looked it up (``in jit_f``)."""
    if not entry.label and compilation.program:
        return f"in {compilation.program}"
    return entry.label


def _set_options(debug_options: Any, compilation: XlaCompilation, entries_folder: str) -> None:
    """Set XLA's files in the options of a compilation.

    :param entries_folder: the folder of the loaded entries; empty if XLA is to tune without them.
    """
    # This line can fail, so it stands first: after an error, XLA compiles with the user's own options.
    read_mode = internals.read_mode()
    setattr(debug_options, _DUMP, str(compilation.dump))
    # If the user has set a file for the log, XLA writes the log there, and candidates and labels are missing here.
    if hasattr(debug_options, _LOGS) and not getattr(debug_options, _LOGS):
        setattr(debug_options, _LOGS, str(compilation.log))
    setattr(debug_options, _FOLDER, entries_folder)
    setattr(debug_options, _MODE, read_mode)


def _find_bypass_reason(all_devices: Sequence[Any], options: Any) -> str:
    """Return the reason why XLA must compile a program without the plugin; empty if there is no reason."""
    if len({device.process_index for device in all_devices}) > 1:
        return "under jax.distributed XLA itself shares its tuning among the processes"
    return _find_conflict(options)


def _find_conflict(options: Any) -> str:
    """Return the user's setting with which the plugin cannot work, in one line; empty if there is no such setting.

    The user sets XLA's flags in ``XLA_FLAGS``, which arrive in ``debug_options``, or as compiler options of
    ``jax.jit``, which arrive in ``env_option_overrides``.
    """
    debug_options = options.executable_build_options.debug_options
    overrides = dict(options.env_option_overrides)
    # These flags do the work of the plugin's own options.
    for name, own_option in ((_DUMP, "--autotune-dump"), (_LOAD, "--autotune-load")):
        if getattr(debug_options, name, "") or overrides.get(name):
            return f"XLA's flag --{name} is set, and {own_option} does the same: remove the flag"
    # These compiler options would replace the values that the plugin sets.
    for name in (_FOLDER, _MODE):
        if overrides.get(name):
            return f"the compiler option {name} is set: remove it, or leave XLA out with --autotune-tuners"
    flag = _find_flag_against_tuning(options, overrides)
    if flag:
        return f"with --{flag}, XLA tunes nothing and does not report which entries it lacks: remove the flag"
    return ""


def _find_flag_against_tuning(options: Any, overrides: Mapping[str, object]) -> str:
    """Return the flag that turns XLA's tuning off, such as ``xla_gpu_deterministic_ops``; empty if none does.

    :param overrides: the compiler options of ``jax.jit``, by the name of the flag.
    """
    # Python names only some of XLA's flags, so the flags are read from the serialized options. The message in
    # descriptors.textproto has only the flags that matter here: the level, and switches that turn tuning off.
    message = files.parse_message("xla.CompileOptionsProto", options.SerializeAsString())
    flags = message.executable_build_options.debug_options
    setting_by_flag: dict[str, int] = {}
    for field in flags.DESCRIPTOR.fields:
        setting_by_flag[field.name] = int(getattr(flags, field.name))
        if field.name in overrides:
            setting_by_flag[field.name] = _parse_setting(overrides[field.name])
    level = setting_by_flag.pop("xla_gpu_autotune_level")
    if level == 0:
        return "xla_gpu_autotune_level=0"
    for switch, setting in setting_by_flag.items():
        if setting:
            return switch
    return ""


def _parse_setting(value: object) -> int:
    """Return the value of a flag as a number: ``2`` for ``"2"``, 1 for ``"true"``, 0 for any other text."""
    text = str(value).lower()
    if text.lstrip("-").isdigit():
        return int(text)
    return int(text == "true")
