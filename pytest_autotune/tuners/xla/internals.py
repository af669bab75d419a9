"""JAX's internals: no other module here names a private module of JAX's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pytest_autotune.tuners.shared.library import Patches


def replace(patches: Patches, compiles: Callable[..., Any], is_cache_used: Callable[..., Any]) -> None:
    """Replace what every compilation passes that JAX takes from no cache of its own, and what is asked before, so
    that where XLA tunes no program comes from there; a HookError where one is not there, or takes other parameters.
    """
    parameters = ["backend", "module", "executable_devices", "options", "host_callbacks"]
    compiler = importlib.import_module("jax._src.compiler")
    patches.replace(compiler, "backend_compile_and_load", parameters, compiles)
    cache = importlib.import_module("jax._src.compilation_cache")
    patches.replace(cache, "is_cache_used", ["backend"], is_cache_used)


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
