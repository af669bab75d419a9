"""What this process has Triton compile: seen, and done in turns with other processes.

``triton.compiler.compile`` is what every kernel compiles itself with, from the first launch on. It is called for what
is in Triton's cache on disk, too, and not for what is in the kernel's memory. What it is given and what it returns
stays as it is; nothing is put into the slots that Triton has for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.versions import version_of

_PARAMETERS = ["src", "target", "options"]


class Compilations:
    """Watches ``triton.compiler.compile``.

    :param compiled: called with Triton's source and the kernel that was made of it.
    """

    def __init__(self, compiled: Callable[[Any, Any], object]) -> None:
        self._compiled = compiled
        #: Entered around each compilation, with its name: see :func:`name_of`. None where nobody else compiles.
        self.turns: Callable[[str], AbstractContextManager[object]] | None = None
        self._module: Any = None
        self._original: Any = None

    def hook(self, compiler: ModuleType) -> None:
        """Watch from now on.

        :param compiler: ``triton.compiler``.
        :raises HookError: when it does not compile as it is known here.
        """
        original = getattr(compiler, "compile", None)
        if original is None or list(inspect.signature(original).parameters)[: len(_PARAMETERS)] != _PARAMETERS:
            raise HookError(f"triton.compiler.compile of triton {version_of('triton')} has another signature")

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._module is None:  # a kernel keeps it for good
                return original(*args, **kwargs)
            given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
            with self._turn(given):
                kernel = original(*args, **kwargs)
            with suppress(Exception):  # an error of ours must not fail a launch
                self._compiled(given["src"], kernel)
            return kernel

        self._module, self._original = compiler, original
        self._module.compile = compile

    @property
    def is_hooked(self) -> bool:
        """Whether this process's compilations are seen."""
        return self._module is not None

    def unhook(self) -> None:
        """Watch no more."""
        if self._module is not None:
            self._module.compile = self._original
            self._module = None

    def _turn(self, given: Mapping[str, Any]) -> AbstractContextManager[object]:
        turns = self.turns
        if turns is not None:
            with suppress(Exception):
                return turns(name_of(given["src"], given.get("target"), given.get("options")))
        return nullcontext()


def name_of(source: Any, target: Any, options: Any) -> str:
    """What is compiled, and where to, as 32 hexadecimal digits: the same in every process that compiles it."""
    place = str(getattr(sys.modules["triton.knobs"].cache, "dir", ""))
    given = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (source.hash(), str(target), given, place)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def launching_autotuner(autotuner_class: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """The autotuner that launches a kernel now, its key and the call's keyword arguments; None where none does."""
    code = autotuner_class.run.__code__
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not {"self", "key", "kwargs"} <= frame.f_locals.keys():
        return None
    return frame.f_locals["self"], frame.f_locals["key"], frame.f_locals["kwargs"]


class _AbsentGpu:
    """Stands in for Triton's driver where nothing is loaded or launched."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return -1  # what kernels have in memory for real devices is not for this one

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(arch: str, listener: Callable[..., object]) -> None:
    """Let this process compile for a type of GPU, and no longer launch anything; for children that tests never run in.

    :param arch: ``sm_90``, ``gfx942``.
    :param listener: called as ``triton.knobs.compilation.listener``, in the place of the tests' own.
    :raises HookError: where this Triton is not known to do so.
    """
    backends: Any = sys.modules.get("triton.backends.compiler")
    driver: Any = getattr(sys.modules.get("triton.runtime.driver"), "driver", None)
    knobs: Any = sys.modules.get("triton.knobs")
    if backends is None or knobs is None or not hasattr(driver, "set_active"):
        raise HookError(f"triton {version_of('triton')} has no driver that can be set")
    driver.set_active(_AbsentGpu(_target(backends, arch)))
    knobs.compilation.listener = listener
    for hook in ("jit_cache_hook", "jit_post_compile_hook"):
        setattr(knobs.runtime, hook, None)


def _target(backends: Any, arch: str) -> Any:
    kind, number = arch[:3], arch[3:]
    if kind == "sm_" and number.isdigit():
        return backends.GPUTarget("cuda", int(number), 32)
    if kind == "gfx":
        return backends.GPUTarget("hip", arch, 64 if number.startswith("9") else 32)
    raise HookError(f"{arch} is an architecture that is not known here")


def compile_kernel(function: Any, arguments: Mapping[str, Any]) -> None:
    """Compile a kernel as a launch with these arguments would.

    :param function: Triton's ``JITFunction``.
    :raises HookError: where this Triton is not known to do so.
    """
    parameters = inspect.signature(type(function).run).parameters
    if not {"grid", "warmup"} <= parameters.keys():
        raise HookError(f"JITFunction.run of triton {version_of('triton')} has another signature")
    function.pre_run_hooks = []  # they are for launches
    function.run(grid=(1,), warmup=True, **arguments)


def foreign_target() -> str:
    """The architecture that a driver compiles for which is not Triton's own; empty where there is none such.

    Triton's own is not asked: it would initialise CUDA.
    """
    driver = getattr(sys.modules.get("triton.runtime.driver"), "driver", None)
    held = vars(driver) if driver is not None else {}
    active = held.get("_active", held.get("active"))
    if active is None or type(active).__module__.startswith("triton."):
        return ""
    return arch_of(active.get_current_target())


def arch_of(target: Any) -> str:
    """The architecture of what a driver of Triton compiles for, as a device has it: without settings of a machine."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":")[0]
