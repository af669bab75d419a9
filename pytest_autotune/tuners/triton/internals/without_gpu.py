"""Compiling for a GPU that is not asked for anything: what children do that compile ahead of the tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.versions import version_of
from pytest_autotune.tuners.triton.internals.compiled_kernels import kinds_of, source_of
from pytest_autotune.tuners.triton.internals.modules import module
from pytest_autotune.tuners.triton.internals.targets import current_target, target_of, triton_driver

#: What launches a kernel, its module, and what calls the GPU, by backend.
_OF_BACKEND = {
    "cuda": ("CudaLauncher", "backends.nvidia.driver", "CudaUtils"),
    "hip": ("HIPLauncher", "backends.amd.driver", "HIPUtils"),
}


def compile_only(arch: str, listener: Callable[..., object]) -> None:
    """Let this process compile for a type of GPU, and no longer launch anything; for children that tests never run in.

    :param arch: ``sm_90``, ``gfx942``.
    :param listener: called as ``triton.knobs.compilation.listener``, in the place of the tests' own.
    :raises HookError: where this Triton is not known to do so.
    """
    driver, knobs = triton_driver(), module("knobs")
    if module("backends.compiler") is None or knobs is None or not hasattr(driver, "set_active"):
        raise HookError(f"triton {version_of('triton')} has no driver that can be set")
    driver.set_active(_AbsentGpu(target_of(arch)))
    knobs.compilation.listener = listener
    for hook in ("jit_cache_hook", "jit_post_compile_hook"):
        setattr(knobs.runtime, hook, None)


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


def read_triton() -> None:
    """Have Triton read its own files, which it does once in a process, to know what is on disk: half a second and more.

    Forks of this process need not.
    """
    key = getattr(module("runtime.cache"), "triton_key", None) or module("compiler.compiler").triton_key
    key()


def read_compiler(arch: str) -> None:
    """Have Triton read its own files, and ask for the assembler's version, which it does once in a process, too.

    :param arch: ``sm_90``, ``gfx942``.
    """
    read_triton()
    module("compiler.compiler").make_backend(target_of(arch)).hash()


def compile_kernel(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Compile a kernel as a launch with these arguments would; for children that tests never run in.

    :param function: Triton's ``JITFunction``.
    :returns: Triton's compiled kernel.
    :raises HookError: where this Triton is not known to do so.
    """
    if not {"grid", "warmup"} <= inspect.signature(type(function).run).parameters.keys():
        raise HookError(f"JITFunction.run of triton {version_of('triton')} has another signature")
    function.pre_run_hooks = []  # they are for launches
    return function.run(grid=(1,), warmup=True, **arguments)


def launcher_of(kernel: Any) -> str:
    """What tells apart what launches kernels, which Triton before 3.7 has a C compiler build; else empty."""
    if not hasattr(module(_OF_BACKEND[current_target().backend][1]), "make_launcher") or _builds_otherwise():
        return ""
    kinds = ["*" if str(kind).startswith("*") else kind for kind in kinds_of(source_of(kernel)).values()]
    return repr(("launcher", kinds, getattr(kernel.metadata, "tensordesc_meta", None)))


def build_launcher(kernel: Any) -> None:
    """Build what launches a compiled kernel, as its first launch does; for children that tests never run in.

    Triton keeps it on disk. It is loaded here, and that asks no GPU for anything.
    """
    launcher, its_module, _ = _OF_BACKEND[current_target().backend]
    getattr(module(its_module), launcher)(source_of(kernel), kernel.metadata)


def build_driver() -> None:
    """Build what Triton's driver calls the GPU with, as the first launch does; for children that tests never run in.

    A C compiler makes it, and Triton keeps it on disk. It is loaded here, and that asks no GPU for anything.
    """
    _, its_module, utils = _OF_BACKEND[current_target().backend]
    cls = getattr(module(its_module), utils, None)
    if cls is not None and not hasattr(cls, "instance") and not _builds_otherwise():
        cls()


def _builds_otherwise() -> bool:
    """Whether something of the user's own builds in the place of a C compiler."""
    return getattr(getattr(module("knobs"), "build", None), "impl", None) is not None
