"""JAX's internals: no other module here names a private module of JAX's."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

from pytest_autotune.tuners.shared.patches import CallHook, Patches

#: The parameters of the function that compiles a program.
COMPILE_PARAMETERS = ["backend", "module", "executable_devices", "options", "host_callbacks"]


def replace(patches: Patches, compilation: CallHook, cache_use: CallHook) -> None:
    """Hook two functions of JAX.

    For each program, JAX calls ``is_cache_used``. If JAX does not take the program from its own cache, it then calls
    ``backend_compile_and_load``.

    :param compilation: the hook of ``backend_compile_and_load``, which compiles a program with XLA.
    :param cache_use: the hook of ``is_cache_used``, which tells whether JAX looks for the program in its own cache.
    :raises HookError: if JAX has no such function, or it has other parameters.
    """
    compiler = importlib.import_module("jax._src.compiler")
    patches.replace(compiler, "backend_compile_and_load", COMPILE_PARAMETERS, compilation)
    cache = importlib.import_module("jax._src.compilation_cache")
    patches.replace(cache, "is_cache_used", ["backend"], cache_use)


def read_mode() -> Any:
    """Return ``AutotuneCacheMode.READ``. In this mode XLA reads the folder of entries and never writes into it."""
    return importlib.import_module("jax._src.lib").xla_client.AutotuneCacheMode.READ


def is_in_use() -> bool:
    """Whether JAX has initialised its backends."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    initialised = getattr(bridge, "backends_are_initialized", None)
    return bool(initialised and initialised())


def program_name(module: Any) -> str:
    """Return JAX's name of a program, such as ``jit_f``; empty if the program has no name.

    :param module: the program as an MLIR module.
    """
    with suppress(AttributeError, KeyError):
        return str(module.operation.attributes["sym_name"].value)
    return ""
