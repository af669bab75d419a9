"""Keeps Inductor's caches of compiled graphs apart from the choices of a run.

Inductor does not lower a graph from a cache. A dump would miss the template choices, fusions and paddings of such a
graph. A graph that was compiled with injected choices would be served to later runs without the plugin. While the
adapter acts, these caches are therefore off, and everything that Inductor caches by its tag has a tag of this process.
The files in the user's cache folder stay.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session

#: Inductor's settings that switch its caches on, of graphs and of choices.
_OFF = (
    "fx_graph_cache",
    "fx_graph_remote_cache",
    "autotune_remote_cache",
    "bundled_autotune_remote_cache",
)


@dataclass(frozen=True)
class ChangedSetting:
    """A setting in one of torch's configuration modules, with its old value and default."""

    module: Any
    name: str
    value: Any
    default: Any

    def change_back(self) -> None:
        """Give the setting its old value and default."""
        self.module._config[self.name].default = self.default
        setattr(self.module, self.name, self.value)


class GraphCaches:
    """Changes torch's settings for this process, and changes them back."""

    def __init__(self) -> None:
        self._changed: list[ChangedSetting] = []

    def change_settings(self, config: ModuleType, session: Session) -> None:
        """Switch the caches of graphs off for this run, and limit the number of processes that compile.

        :param config: ``torch._inductor.config``.
        """
        import torch.compiler.config

        for name in _OFF:
            self._set(config, name, False)
        self._set(torch.compiler.config, "cache_key_tag", _build_own_tag())
        if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:
            self._set(config, "compile_threads", _count_compile_threads(config, session))

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Have torch compile every graph again inside, and again afterwards."""
        forget_compiled()
        count_before = len(self._changed)
        # Another tag leads Inductor to other files. Without changed settings, the adapter is not hooked.
        if count_before:
            self._set(sys.modules["torch.compiler.config"], "cache_key_tag", _build_own_tag())
        try:
            yield
        finally:
            self.change_back(count_before)
            forget_compiled()

    def _set(self, module: Any, name: str, value: Any) -> None:
        """Change a setting, if this version of torch has it."""
        entry = getattr(module, "_config", {}).get(name)
        if entry is None:
            return
        self._changed.append(ChangedSetting(module, name, getattr(module, name), entry.default))
        setattr(module, name, value)
        # Since torch 2.12 a value is set for this thread only. Other threads, which compile backward graphs, use the
        # default.
        entry.default = value

    def change_back(self, kept_count: int = 0) -> None:
        """Change the settings back, the last first.

        :param kept_count: the number of settings that stay changed.
        """
        while len(self._changed) > kept_count:
            self._changed.pop().change_back()


def _count_compile_threads(config: Any, session: Session) -> int:
    """Return the number of processes that Inductor may compile with; 1 if it compiles in this process.

    On a hit Inductor compiles one candidate. Starting a process for it takes longer.
    """
    loads_only = bool(session.indexes) and not session.policy.is_dumping
    if loads_only or session.picks_candidates:
        return 1
    return min(config.compile_threads or 1, session.policy.compile_threads)


def forget_compiled() -> None:
    """Have torch compile every graph again at its next call."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return
    dynamo.reset()
    for module, name in (("codecache", "PyCodeCache"), ("async_compile", "CompiledTritonKernels")):
        cache: Any = getattr(sys.modules.get(f"torch._inductor.{module}"), name, None)
        with suppress(AttributeError):  # Inductor is not imported, or has no such cache
            cache.cache_clear()


def _build_own_tag() -> str:
    return f"pytest-autotune-{uuid.uuid4().hex}"
