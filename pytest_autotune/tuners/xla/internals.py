"""JAX's internals: no other module here names a private module of JAX's."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from typing import Any

from pytest_autotune.tuners.shared.library import known

#: The module that a function of JAX is looked up in, its name, and the function.
Function = tuple[Any, str, Any]


def hooked_functions() -> tuple[Function, Function]:
    """What every compilation passes that JAX does not take from a cache of its own, and what is asked before that.

    :raises HookError: when one is not there, or takes other parameters.
    """
    parameters = ["backend", "module", "executable_devices", "options", "host_callbacks"]
    return (
        _function("jax._src.compiler", "backend_compile_and_load", parameters),
        _function("jax._src.compilation_cache", "is_cache_used", ["backend"]),
    )


def _function(module: str, name: str, parameters: list[str]) -> Function:
    owner = importlib.import_module(module)
    return owner, name, known(getattr(owner, name, None), name, "jax", parameters, needed="a newer jax is needed")


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
