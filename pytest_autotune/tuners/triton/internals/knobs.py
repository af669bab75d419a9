"""The settings of ``triton.knobs``: those that change what is compiled, and where that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from pytest_autotune.tuners.triton.internals.modules import module

#: Those of ``triton.knobs`` that change what a kernel is compiled to.
_SETTINGS = {
    "language": ("fp32_default", "default_fp_fusion"),
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "enable_asan", "override"),
    "nvidia": ("disable_ptxas_opt", "ptxas_options"),
    "amd": (
        "use_buffer_ops",
        "use_block_pingpong",
        "use_in_thread_transpose",
        "use_async_copy",
        "scalarize_packed_fops",
    ),
}


def changed_settings() -> Iterator[str]:
    """The settings that change what is compiled, where they are not at their defaults: ``group.name=value``."""
    knobs = module("knobs")
    for group_name, names in _SETTINGS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            default = getattr(vars(type(group)).get(name), "default", None)
            default = default() if callable(default) else default  # as in Triton 3.4
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"


def cache_folder() -> str:
    """Where Triton keeps what it compiled."""
    return str(getattr(module("knobs").cache, "dir", ""))


def reads_what_others_compile() -> bool:
    """Whether this process finds what another one compiles, in Triton's own cache on disk, and nothing listens here."""
    with suppress(Exception):
        knobs = module("knobs")
        manager = knobs.cache.manager_class or module("runtime.cache").FileCacheManager
        is_own = manager is module("runtime.cache").FileCacheManager and not knobs.compilation.always_compile
        return is_own and knobs.compilation.listener is None
    return False
