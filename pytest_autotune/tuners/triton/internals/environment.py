"""Triton's state in this process: its imported modules, its target and its settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pytest_autotune.tuners.shared.source_digest import digest

AUTOTUNER_MODULE = "triton.runtime.autotuner"
JIT_MODULE = "triton.runtime.jit"
LANGUAGE_MODULE = "triton.language.core"
#: Variables of the environment that are in Triton's key, and only make Triton print more.
_PRINTING = re.compile("DUMP|TIMING|DEBUG|LINE_INFO|IR_LOC|DI_LOCAL")
#: Settings in ``triton.knobs`` that change the compiled code, and are no variables in Triton's key.
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
    """Return the object whose ``active`` makes Triton's active driver at its first use; None before Triton has it."""
    return getattr(find_module("runtime.driver"), "driver", None)


def find_target() -> Any:
    """Return the target of the active driver: an object with ``backend`` and ``arch``.

    :raises RuntimeError: if there is no GPU.
    """
    return find_driver().active.get_current_target()


def describe_arch(target: Any) -> str:
    """Return the architecture of a target as a device has it, without the settings of a machine: ``sm_90``."""
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

    Triton itself tells compiled kernels apart by these settings. They are environment variables (a file in them is
    named without its folder), and the key that Triton's hook for the compiler's stages returns.
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
            if callable(default):  # as in Triton 3.4
                default = default()
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    if hook is not None:
        yield f"add_stages_inspection_hook={digest(str(hook()[0]))}"


def find_cache_folder() -> str:
    """Return the folder in which Triton keeps compiled kernels; empty if it is not known."""
    return str(getattr(find_module("knobs").cache, "dir", ""))


def uses_disk_cache() -> bool:
    """Whether Triton finds the kernels that other processes compile, in its cache on disk, and tells no listener."""
    with suppress(AttributeError):  # raised if a Triton has these settings in another place
        knobs = find_module("knobs")
        file_cache_manager = find_module("runtime.cache").FileCacheManager
        cache_manager = knobs.cache.manager_class or file_cache_manager
        if cache_manager is file_cache_manager and not knobs.compilation.always_compile:
            return knobs.compilation.listener is None
    return False
