"""Calls of Triton's that are under way, as their frames show them: nothing else says who asks, and with what."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from pytest_autotune.tuners.triton.internals.autotuners import PRUNE
from pytest_autotune.tuners.triton.internals.modules import AUTOTUNER_MODULE, JIT_MODULE, module

#: How a ``run`` calls the key of its memory: Triton's own and those made after it.
_KEYS = ("key", "config_key", "cache_key", "tuning_key")
#: What the code of a ``run`` uses that measures candidates as Triton's does.
_OF_SEARCH = {PRUNE, "_bench", "configs_timings"}


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("pytest_autotune.")


def launches_alone() -> bool:
    """Whether a kernel is launched now, rather than compiled in a pool or by another compiler."""
    return _launching_frame() is not None


def launched_function() -> tuple[Any, dict[str, Any]] | None:
    """The ``JITFunction`` that is launched now, and the keyword arguments of its caller, who is Triton's; else None."""
    frame = _launching_frame()
    caller = frame.f_back if frame is not None else None
    if frame is None or caller is None or caller.f_globals.get("__name__") not in (JIT_MODULE, AUTOTUNER_MODULE):
        return None
    kwargs = caller.f_locals.get("kwargs")
    return (frame.f_locals["self"], dict(kwargs)) if isinstance(kwargs, dict) else None


def _launching_frame() -> FrameType | None:
    run = getattr(module("runtime.jit"), "JITFunction", None)
    code = getattr(getattr(run, "run", None), "__code__", None)
    return _nearest(lambda frame: frame.f_code is code)


def is_wanted_at_once() -> bool:
    """Whether a kernel is compiled now because it is launched, or by a hook that asks for it by ``warmup()``."""
    frame = _nearest(lambda frame: frame.f_code.co_name == "_do_compile")
    if frame is None or frame.f_locals.get("warmup") is False:
        return frame is not None
    while frame is not None and not _is_ours(frame) and frame.f_code.co_name != "warmup":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "warmup"


def _nearest(is_it: Callable[[FrameType], bool]) -> FrameType | None:
    """The innermost call under way that is as asked for; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_it(frame):
        frame = frame.f_back
    return frame
