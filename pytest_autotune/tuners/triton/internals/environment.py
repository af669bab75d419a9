"""What Triton is set to in this process: its modules, as far as they are imported, its target and its settings."""

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
#: Of the variables in Triton's key, those by which it only tells more of what it does.
_TELLING = re.compile("DUMP|TIMING|DEBUG|LINE_INFO|IR_LOC|DI_LOCAL")
#: Those of ``triton.knobs`` that change what a kernel is compiled to, and are no variables of that key.
_KNOBS = {
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "override"),
    "nvidia": ("ptxas_options", "mock_ptx_version"),
    "amd": ("scalarize_packed_fops", "buffer_ops_analyze_small_tensor_range"),
}


def module(name: str) -> Any:
    """A module of Triton's by its name without ``triton.``; None where it is not imported."""
    return sys.modules.get(f"triton.{name}")


def triton_driver() -> Any:
    """What holds Triton's active driver, and makes one when it is asked for; None before Triton has one."""
    return getattr(module("runtime.driver"), "driver", None)


def current_target() -> Any:
    """What the active driver compiles for: ``backend`` and ``arch``.

    :raises RuntimeError: where there is no GPU.
    """
    return triton_driver().active.get_current_target()


def arch_of(target: Any) -> str:
    """The architecture of what a driver of Triton compiles for, as a device has it: without settings of a machine."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":")[0]


def target_of(arch: str) -> Any:
    """What a driver would compile for on an NVIDIA GPU of this architecture.

    :param arch: ``sm_90``.
    """
    return module("backends.compiler").GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def changed_settings() -> Iterator[str]:
    """The settings that change what is compiled, where they are not at their defaults: ``name=value``.

    Those that Triton itself keeps compiled kernels apart by: environment variables, of which a file has the names of
    files without their folders, and what its hook for the stages of the compiler says.
    """
    for name, value in sorted(module("_C.libtriton").get_cache_invalidating_env_vars().items()):
        if not _TELLING.search(name):
            yield f"{name}={value.rpartition('/')[2]}"
    knobs = module("knobs")
    for group_name, names in _KNOBS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            default = getattr(vars(type(group)).get(name), "default", None)
            default = default() if callable(default) else default  # as in Triton 3.4
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"
    hook = getattr(knobs.runtime, "add_stages_inspection_hook", None)
    if hook is not None:
        yield f"add_stages_inspection_hook={digest(str(hook()[0]))}"


def cache_folder() -> str:
    """Where Triton keeps what it compiled."""
    return str(getattr(module("knobs").cache, "dir", ""))


def reads_what_others_compile() -> bool:
    """Whether this process finds what another one compiles, in Triton's own cache on disk, and nothing listens here."""
    with suppress(AttributeError):  # of a Triton that has them otherwise
        knobs = module("knobs")
        manager = knobs.cache.manager_class or module("runtime.cache").FileCacheManager
        is_own = manager is module("runtime.cache").FileCacheManager and not knobs.compilation.always_compile
        return is_own and knobs.compilation.listener is None
    return False
