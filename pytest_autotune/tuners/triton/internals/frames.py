"""Calls of Triton's that are under way, as their frames show them: nothing else says who asks, and with what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from pytest_autotune.tuners.shared.source.functions import layers, names_in
from pytest_autotune.tuners.triton.internals.autotuners import DISK_CACHE, PRUNE
from pytest_autotune.tuners.triton.internals.kernel_layers import is_heuristics
from pytest_autotune.tuners.triton.internals.modules import AUTOTUNER_MODULE, JIT_MODULE, module

#: How a ``run`` calls the key of its memory: Triton's own and those made after it.
_KEYS = ("key", "config_key", "cache_key", "tuning_key")
#: What the code of a ``run`` uses that measures candidates as Triton's does.
_OF_SEARCH = {PRUNE, "_bench", "configs_timings"}


def heuristics_over(autotuner: Any) -> Iterator[Any]:
    """The ``triton.heuristics`` over an autotuner that is called: only the calls that are under way know them."""
    return (caller for caller in callers_of(autotuner) if is_heuristics(caller))


def callers_of(autotuner: Any) -> Iterator[Any]:
    """What has an autotuner inside and launches it now by a ``run`` of its own, from the inside out."""
    frame = sys._getframe()
    while frame.f_back is not None and not _runs(frame, autotuner):
        frame = frame.f_back
    while frame.f_back is not None and (frame.f_back.f_code.co_name == "run" or _wraps_run(frame.f_back, autotuner)):
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if caller is not autotuner and hasattr(caller, "fn") and any(layer is autotuner for layer in layers(caller)):
            yield caller


def _wraps_run(frame: FrameType, autotuner: Any) -> bool:
    """Whether this is what a library has put around ``run``, such as a lock, whatever its name."""
    return any(value is autotuner for value in frame.f_locals.values())


def _runs(frame: FrameType, autotuner: Any) -> bool:
    return frame.f_code.co_name == "run" and frame.f_locals.get("self") is autotuner


def launching_autotuner(autotuner_class: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """The autotuner that launches a kernel now, its key and the call's keyword arguments; None where none does."""
    frame = _nearest(lambda frame: _is_run_of(frame, autotuner_class))
    key = _key_in(frame) if frame is not None else None
    if frame is None or key is None or "kwargs" not in frame.f_locals:
        return None
    return frame.f_locals["self"], key, frame.f_locals["kwargs"]


def _is_run_of(frame: FrameType, autotuner_class: Any) -> bool:
    return frame.f_code.co_name == "run" and issubclass(type(frame.f_locals.get("self")), autotuner_class)


def _key_in(run: FrameType) -> Any:
    """The key of a ``run`` that is under way; None before it has made one."""
    held = run.f_locals
    return next(
        (held[name] for name in _KEYS if isinstance(held.get(name), Hashable) and held.get(name) is not None), None
    )


@dataclass(frozen=True)
class OwnSearch:
    """A search that a subclass of Triton's autotuner makes in a ``run`` of its own.

    :param key: of its memory; None where that is not known.
    :param takes_the_fastest: it does as Triton's: it measures all candidates and takes the fastest.
    :param asks_policy: it leaves that to a policy.
    """

    key: Any
    takes_the_fastest: bool
    asks_policy: bool


def own_search(autotuner: Any) -> OwnSearch | None:
    """The search that prunes its candidates now, where a subclass makes it and Triton will not be asked."""
    frame = _caller_of_pruning()
    if frame is None or not _runs(frame, autotuner):
        return None
    uses = set(names_in(frame.f_code))
    if DISK_CACHE in uses:
        return None
    return OwnSearch(_key_in(frame), uses >= {*_OF_SEARCH, "min"}, uses >= {*_OF_SEARCH, "policy"})


def key_of_tritons_run(autotuner: Any) -> Any:
    """The key of a call that prunes its candidates now in Triton's own ``run``; None where it is another one."""
    frame = _caller_of_pruning()
    is_tritons = frame is not None and frame.f_globals.get("__name__") == AUTOTUNER_MODULE
    return _key_in(frame) if frame is not None and is_tritons and _runs(frame, autotuner) else None


def _caller_of_pruning() -> FrameType | None:
    return _nearest(lambda frame: not _is_ours(frame) and frame.f_code.co_name != PRUNE)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("pytest_autotune.")


def is_under_way(code: CodeType, autotuner_class: Any) -> Any:
    """The autotuner whose ``run`` has this code and is under way; None where there is none."""
    frame = _nearest(lambda frame: frame.f_code is code)
    held = frame.f_locals.get("self") if frame is not None else None
    return held if isinstance(held, autotuner_class) else None


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
