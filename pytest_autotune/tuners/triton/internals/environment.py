"""Triton's state in this process: its imported modules, its target and its settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pytest_autotune.tuners.source.source_digest import digest

AUTOTUNER_MODULE = "triton.runtime.autotuner"
JIT_MODULE = "triton.runtime.jit"
LANGUAGE_MODULE = "triton.language.core"
#: Environment variables in Triton's hash that do not change the compiled code: Triton only prints more.
_PRINTING = re.compile("DUMP|TIMING|DEBUG|LINE_INFO|IR_LOC|DI_LOCAL")
#: Settings in ``triton.knobs`` that change the compiled code, but are no environment variables in Triton's hash.
_KNOBS = {
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "override"),
    "nvidia": ("ptxas_options", "mock_ptx_version"),
    "amd": ("scalarize_packed_fops", "buffer_ops_analyze_small_tensor_range"),
}


def find_module(name: str) -> Any:
    """Return a module of Triton; None if it is not imported.

    :param name: the module's name without ``triton.``.
    """
    return sys.modules.get(f"triton.{name}")


def find_driver() -> Any:
    """Return Triton's driver configuration; None if Triton has not imported it yet.

    The attribute ``active`` is the active driver. Triton makes the driver when code first reads the attribute.
    """
    return getattr(find_module("runtime.driver"), "driver", None)


def find_target() -> Any:
    """Return the target of the active driver: an object with ``backend`` and ``arch``.

    :raises RuntimeError: if there is no GPU.
    """
    return find_driver().active.get_current_target()


def describe_arch(target: Any) -> str:
    """Return the architecture of a target as a device names it: ``sm_90``, ``gfx942``.

    AMD's names end with settings of the machine, which are left out: ``gfx942:sramecc+:xnack-``.
    """
    if target.backend == "cuda":
        return f"sm_{target.arch}"
    return str(target.arch).split(":")[0]


def build_target(arch: str) -> Any:
    """Return the target of a driver on an NVIDIA GPU of this architecture.

    :param arch: for example ``sm_90``.
    """
    return find_module("backends.compiler").GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def list_changed_settings() -> Iterator[str]:
    """Yield the settings that change the compiled code and differ from their defaults, as ``name=value``.

    There are three kinds of such settings:

    - the environment variables in Triton's hash. A path counts only by the name of its file;
    - the settings of ``triton.knobs`` in ``_KNOBS``;
    - a hook that changes the stages of the compiler. The hook returns a key, whose digest counts.
    """
    for name, value in sorted(find_module("_C.libtriton").get_cache_invalidating_env_vars().items()):
        if not _PRINTING.search(name):
            yield f"{name}={value.rpartition('/')[2]}"
    knobs = find_module("knobs")
    for group_name, names in _KNOBS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            default = getattr(vars(type(group)).get(name), "default", None)
            if callable(default):  # Triton 3.4 has a function that returns the default
                default = default()
            # None, False and an empty text all mean that the setting is off.
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    if hook is not None:
        yield f"add_stages_inspection_hook={digest(str(hook()[0]))}"


def find_cache_folder() -> str:
    """Return the folder in which Triton keeps compiled kernels; empty if it is not known."""
    return str(getattr(find_module("knobs").cache, "dir", ""))


def uses_disk_cache() -> bool:
    """Whether Triton reads kernels from its usual cache on disk, where other threads and processes write them.

    Triton does not read it if user code has set another cache manager or ``always_compile``. A listener of compilations
    counts as well: it would observe a kernel from disk in place of a compilation.
    """
    # A Triton that has these settings in another place raises AttributeError.
    with suppress(AttributeError):
        knobs = find_module("knobs")
        file_cache_manager = find_module("runtime.cache").FileCacheManager
        cache_manager = knobs.cache.manager_class or file_cache_manager
        if cache_manager is file_cache_manager and not knobs.compilation.always_compile:
            return knobs.compilation.listener is None
    return False
