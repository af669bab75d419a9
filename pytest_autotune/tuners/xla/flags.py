"""What XLA is given for one compilation, through the options that JAX hands it.

XLA's flags are fields of these options. Set here they reach exactly the
compilations of this process: ``XLA_FLAGS`` stays as the user has it, no child
process inherits anything, a flag that the installed XLA does not know cannot end
the process, and it is never too late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_autotune.tuners.xla import wire

DUMP = "xla_gpu_dump_autotune_results_to"
LOAD = "xla_gpu_load_autotune_results_from"
LOGS = "xla_gpu_dump_autotune_logs_to"
FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
MODE = "xla_gpu_experimental_autotune_cache_mode"
NEEDED = (DUMP, FOLDER, MODE)

# Numbers of fields: CompileOptionsProto.executable_build_options, its debug_options, and in those:
_BUILD_OPTIONS, _DEBUG_OPTIONS = 3, 3
_LEVEL, _DETERMINISTIC, _EXCLUDE_NONDETERMINISTIC = 123, 148, 297


@dataclass(frozen=True)
class Paths:
    """The files of one compilation.

    :param dump: where XLA writes its memory of choices.
    :param log: where it writes what it measured.
    :param folder: the entries that it may use; None where nothing is loaded.
    """

    dump: Path
    log: Path
    folder: Path | None


def missing(debug_options: Any) -> list[str]:
    """The flags that are needed and that this JAX cannot set."""
    return [name for name in NEEDED if not hasattr(debug_options, name)]


def set_paths(options: Any, paths: Paths, read_mode: Any) -> None:
    """Have XLA use and write these files in the compilation with these options.

    :param options: JAX's ``CompileOptions``, changed in place.
    :param read_mode: ``AutotuneCacheMode.READ``: XLA never writes into the folder.
    """
    debug_options = options.executable_build_options.debug_options
    setattr(debug_options, DUMP, str(paths.dump))
    if hasattr(debug_options, LOGS) and not getattr(debug_options, LOGS):
        setattr(debug_options, LOGS, str(paths.log))
    setattr(debug_options, FOLDER, str(paths.folder or ""))
    setattr(debug_options, MODE, read_mode)


def objection(options: Any) -> str:
    """Why the user's own settings of a compilation rule a cache out; empty where nothing does."""
    debug_options = options.executable_build_options.debug_options
    overrides = dict(options.env_option_overrides)
    for name, instead in ((DUMP, "--autotune-dump"), (LOAD, "--autotune-load")):
        if getattr(debug_options, name, "") or overrides.get(name):
            return f"--{name} is set: remove it, {instead} does the same"
    for name in (FOLDER, MODE):
        if overrides.get(name):
            return f"the compiler option {name} is set: remove it, or leave XLA out with --autotune-tuners"
    found = _fields(options)
    settings = {
        "xla_gpu_autotune_level": found.get(_LEVEL, 4),
        "xla_gpu_deterministic_ops": found.get(_DETERMINISTIC, 0),
        "xla_gpu_exclude_nondeterministic_ops": found.get(_EXCLUDE_NONDETERMINISTIC, 0),
    }
    settings.update((name, _number(overrides[name])) for name in settings if name in overrides)
    if settings["xla_gpu_autotune_level"] == 0:
        return "--xla_gpu_autotune_level=0 is set: XLA tunes nothing and does not tell what it lacks"
    for name in ("xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops"):
        if settings[name]:
            return f"--{name} is set: XLA tunes nothing then and does not tell what it lacks"
    return ""


def _fields(options: Any) -> dict[int, int | bytes]:
    """XLA's flags as it will see them, by number; only some of them have a name in Python."""
    try:
        build_options = dict(wire.fields(options.SerializeAsString()))[_BUILD_OPTIONS]
        assert isinstance(build_options, bytes)
        debug_options = dict(wire.fields(build_options))[_DEBUG_OPTIONS]
        assert isinstance(debug_options, bytes)
        return dict(wire.fields(debug_options))
    except (AssertionError, KeyError, ValueError):
        return {}


def _number(value: object) -> int:
    text = str(value).lower()
    return int(text) if text.lstrip("-").isdigit() else int(text == "true")
