"""Inductor's caches of compiled graphs, kept apart from what this run chooses.

A graph from a cache is not lowered again: its template choices, fusions and paddings would be hidden from a dump, and
one compiled with injected choices would be served to later runs without the plugin. So while the adapter acts these
caches are off, and everything else that Inductor caches by its tag has a tag of this process. The user's own cache
folder keeps what was in it.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session

_OFF = (
    "fx_graph_cache",
    "fx_graph_remote_cache",
    "autotune_remote_cache",
    "bundled_autotune_remote_cache",
)


class GraphCaches:
    """Changes torch's settings for this process, and changes them back."""

    def __init__(self) -> None:
        #: Settings of torch's configuration modules as they were: the module, the name, the value, the default.
        self._changed: list[tuple[Any, str, Any, Any]] = []

    def keep_apart(self, config: ModuleType, session: Session) -> None:
        """Switch the caches of graphs off in Inductor's config, and choose how many processes compile."""
        import torch.compiler.config

        for name in _OFF:
            self._set(config, name, False)
        self._set(torch.compiler.config, "cache_key_tag", _own_tag())
        if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
            # On a hit there is one candidate to compile: starting other processes for it takes longer.
            only_loads = session.picks_candidates or (bool(session.indexes) and not session.policy.is_dumping)
            threads = 1 if only_loads else min(config.compile_threads or 1, session.policy.compile_threads)
            self._set(config, "compile_threads", threads)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Let nothing that was compiled before be used, nor what is compiled inside afterwards."""
        forget_compiled()
        before = len(self._changed)
        if before:
            self._set(sys.modules["torch.compiler.config"], "cache_key_tag", _own_tag())
        try:
            yield
        finally:
            self.change_back(before)
            forget_compiled()

    def _set(self, module: Any, name: str, value: Any) -> None:
        entry = getattr(module, "_config", {}).get(name)
        if entry is None:  # this version has no such setting
            return
        self._changed.append((module, name, getattr(module, name), entry.default))
        setattr(module, name, value)
        # What is set holds in this thread only since torch 2.12; backward graphs are compiled in others.
        entry.default = value

    def change_back(self, number: int = 0) -> None:
        """Give torch the settings that it had, but for the first so many that were changed."""
        while len(self._changed) > number:
            module, name, value, default = self._changed.pop()
            module._config[name].default = default
            setattr(module, name, value)


def forget_compiled() -> None:
    """Have every graph compiled anew when it is called again."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return
    dynamo.reset()
    for module, name in (("codecache", "PyCodeCache"), ("async_compile", "CompiledTritonKernels")):
        owner = getattr(sys.modules.get(f"torch._inductor.{module}"), name, None)
        with suppress(AttributeError):
            owner.cache_clear()  # type: ignore[union-attr]


def _own_tag() -> str:
    return f"pytest-autotune-{uuid.uuid4().hex}"
