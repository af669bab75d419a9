"""What XLA is given for one compilation, through the options that JAX hands it.

XLA's flags are fields of these options. Set here they reach exactly the
compilations of this process: ``XLA_FLAGS`` stays as the user has it, no child
process inherits anything, a flag that the installed XLA does not know cannot end
the process, and it is never too late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_autotune.tuners.xla import messages

DUMP = "xla_gpu_dump_autotune_results_to"
LOAD = "xla_gpu_load_autotune_results_from"
LOGS = "xla_gpu_dump_autotune_logs_to"
FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
MODE = "xla_gpu_experimental_autotune_cache_mode"


def set_paths(options: Any, dump: Path, log: Path, folder: Path | None, read_mode: Any) -> None:
    """Have XLA use and write these files in the compilation with these options.

    :param options: JAX's ``CompileOptions``, changed in place.
    :param dump: where XLA writes its memory of choices.
    :param log: where it writes what it measured, unless the user has it written elsewhere.
    :param folder: the entries that it may use; None where nothing is loaded.
    :param read_mode: ``AutotuneCacheMode.READ``: XLA never writes into the folder.
    """
    debug_options = options.executable_build_options.debug_options
    setattr(debug_options, DUMP, str(dump))
    if hasattr(debug_options, LOGS) and not getattr(debug_options, LOGS):
        setattr(debug_options, LOGS, str(log))
    setattr(debug_options, FOLDER, str(folder or ""))
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
    # XLA's flags as it will see them; only some of them have a name in Python.
    told = messages.parsed("xla.CompileOptionsProto", options.SerializeAsString())
    found = told.executable_build_options.debug_options
    settings = {field.name: int(getattr(found, field.name)) for field in found.DESCRIPTOR.fields}
    settings.update((name, _number(overrides[name])) for name in settings if name in overrides)
    level = settings.pop("xla_gpu_autotune_level")
    ruled_out = ["xla_gpu_autotune_level=0"] * (level == 0) + [name for name, is_set in settings.items() if is_set]
    return f"--{ruled_out[0]} is set: XLA tunes nothing then and does not tell what it lacks" if ruled_out else ""


def _number(value: object) -> int:
    text = str(value).lower()
    return int(text) if text.lstrip("-").isdigit() else int(text == "true")
