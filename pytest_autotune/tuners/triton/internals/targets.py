"""What Triton compiles for: the target of its active driver, and of an architecture's name."""

from __future__ import annotations

from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.triton.internals.modules import module


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


def foreign_target() -> str:
    """The architecture that a driver compiles for which is not Triton's own; empty where there is none such.

    Triton's own is not asked: it would initialise CUDA.
    """
    driver = triton_driver()
    held = vars(driver) if driver is not None else {}
    active = held.get("_active", held.get("active"))  # Triton 3.4 has it under the latter
    if active is None or type(active).__module__.startswith("triton."):
        return ""
    return arch_of(active.get_current_target())


def target_of(arch: str) -> Any:
    """What a driver would compile for on a GPU of this architecture.

    :param arch: ``sm_90``, ``gfx942``.
    :raises HookError: where it is not known here.
    """
    backends = module("backends.compiler")
    kind, number = arch[:3], arch[3:]
    if kind == "sm_" and number.isdigit():
        return backends.GPUTarget("cuda", int(number), 32)
    if kind == "gfx":
        return backends.GPUTarget("hip", arch, 64 if number.startswith("9") else 32)
    raise HookError(f"{arch} is an architecture that is not known here")
