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

    :param compilation: is asked about each program that JAX takes from no cache of its own.
    :param cache_use: is asked before, whether JAX looks into its own cache.
    :raises HookError: if JAX has no such function, or it has other parameters.
    """
    compiler = importlib.import_module("jax._src.compiler")
    patches.replace(compiler, "backend_compile_and_load", COMPILE_PARAMETERS, compilation)
    cache = importlib.import_module("jax._src.compilation_cache")
    patches.replace(cache, "is_cache_used", ["backend"], cache_use)


def read_mode() -> Any:
    """``AutotuneCacheMode.READ``: XLA never writes into the folder that it is given."""
    return importlib.import_module("jax._src.lib").xla_client.AutotuneCacheMode.READ


def is_in_use() -> bool:
    """Whether JAX has initialised its backends."""
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    initialised = getattr(bridge, "backends_are_initialized", None)
    return bool(initialised and initialised())


def program_name(module: Any) -> str:
    """What JAX calls a program: ``jit_f``; empty where that is unknown."""
    with suppress(AttributeError, KeyError):
        return str(module.operation.attributes["sym_name"].value)
    return ""
