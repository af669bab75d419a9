"""The adapter for XLA under JAX.

It replaces one function of JAX: ``jax._src.compiler.backend_compile_and_load``, which
every compilation passes that JAX does not take from a cache of its own.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_autotune.run.tuning_run import TuningRun
from pytest_autotune.tuners.guard import guarded
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.versions import version_of

if TYPE_CHECKING:
    from pytest_autotune.tuners.xla.compilations import Compilations

_HOOKED = "backend_compile_and_load"
_HOOKED_PARAMETERS = ["backend", "module", "executable_devices", "options", "host_callbacks"]
#: Before this version XLA's folder missed a part of what it tunes (openxla/xla#37902).
_FIRST_WITH_WHOLE_FOLDER = (0, 9, 1)


class Adapter:
    """Hooks the compilations of JAX."""

    module = "jax"
    acts_without_entries = False

    def __init__(self) -> None:
        self._compiler: Any = None
        self._original: Any = None
        self._compilations: Compilations | None = None
        self._cache_switch: _CompilationCacheSwitch | None = None

    def hook(self, module: ModuleType, run: TuningRun) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        # Most runs never import JAX: until then nothing of this package is needed but this module.
        from pytest_autotune.tuners.xla.compilations import Compilations

        compiler: Any = importlib.import_module("jax._src.compiler")
        original = getattr(compiler, _HOOKED, None)
        if original is None:
            raise HookError(f"jax {version_of('jax')} has no {_HOOKED}; a newer jax is needed")
        if list(inspect.signature(original).parameters) != _HOOKED_PARAMETERS:
            raise HookError(f"{_HOOKED} of jax {version_of('jax')} has another signature")
        jaxlib = version_of("jaxlib")
        if run.index is not None and _numbers(jaxlib) < _FIRST_WITH_WHOLE_FOLDER:
            raise HookError(f"jaxlib {jaxlib} finds only a part of what is loaded; 0.9.1 or later is needed")
        compilations = Compilations(run)
        process = os.getpid()

        def backend_compile_and_load(
            backend: Any, module: Any, executable_devices: Any, options: Any, host_callbacks: Any
        ) -> Any:
            def compile() -> Any:
                return original(backend, module, executable_devices, options, host_callbacks)

            if os.getpid() != process:  # a forked child has no way to report
                return compile()
            return compilations.watch(compile, backend, executable_devices, options, _name(module))

        self._compiler, self._original, self._compilations = compiler, original, compilations
        setattr(compiler, _HOOKED, guarded(backend_compile_and_load, original, run, "xla"))
        self._cache_switch = _CompilationCacheSwitch(module)
        if _in_use():
            run.note(
                "xla: JAX was in use before the tests ran (by a conftest.py or a plugin): what was compiled by then "
                "took nothing from the cache; use JAX in tests and fixtures, not while modules are imported"
            )

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        if self._compiler is not None:
            setattr(self._compiler, _HOOKED, self._original)
            self._compiler = None
        if self._cache_switch is not None:
            self._cache_switch.restore()
        if self._compilations is not None:
            self._compilations.close()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Do nothing: XLA's memory of choices belongs to the process and cannot be swapped."""
        yield

    def unseen(self) -> list[str]:
        """Why compilations that may have tuned were left alone."""
        left_alone = self._compilations.left_alone if self._compilations is not None else ()
        return [f"JAX programs ({reason})" for reason in left_alone]


class _CompilationCacheSwitch:
    """Keeps JAX's persistent compilation cache off: it hides lookups and holds programs that were tuned otherwise."""

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._was_on: bool | None = None
        with suppress(AttributeError):
            self._was_on = bool(jax.config.jax_enable_compilation_cache)
            jax.config.update("jax_enable_compilation_cache", False)
            self._forget_decision()

    def restore(self) -> None:
        if self._was_on is not None:
            self._jax.config.update("jax_enable_compilation_cache", self._was_on)
            self._forget_decision()

    def _forget_decision(self) -> None:
        # JAX decides once in a process, at its first compilation, whether it uses the cache.
        if _in_use():
            importlib.import_module("jax.experimental.compilation_cache.compilation_cache").reset_cache()


def _name(module: Any) -> str:
    """What JAX calls a program: ``jit_f``; empty where that is unknown."""
    with suppress(Exception):
        return str(module.operation.attributes["sym_name"].value)
    return ""


def _in_use() -> bool:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    initialised = getattr(bridge, "backends_are_initialized", None)
    return bool(initialised and initialised())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
