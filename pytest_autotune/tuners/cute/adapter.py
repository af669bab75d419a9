"""The adapter for CuTe DSL: it hooks both of CuTe's tuners, their benchmark, and the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.cute.compiling import CompileHook
from pytest_autotune.tuners.cute.internals import (
    BENCHMARK_PARAMETERS,
    COMPILE_PARAMETERS,
    DECORATE_PARAMETERS,
    TUNE_PARAMETERS,
    CuteLibrary,
    list_autotuned,
)
from pytest_autotune.tuners.cute.jit import DecoratorHook, Iterations, JitFunctions, asks
from pytest_autotune.tuners.cute.searching import NAME, BenchmarkHook
from pytest_autotune.tuners.cute.tune import TuneHook
from pytest_autotune.tuners.shared.arguments import list_holders
from pytest_autotune.tuners.shared.patches import Patches

#: How often CuTe launches each configuration unless the user says otherwise.
_USUAL_ITERATIONS = Iterations(warmup=10, timed=100)


class Adapter:
    """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "cutlass.cute.testing"
    acts_without_entries = True

    def __init__(self) -> None:
        self._patches: Patches | None = None
        self._functions: JitFunctions | None = None
        self._renamed: list[tuple[ModuleType, str, object]] = []
        self._untracked: list[str] = []

    def hook(self, module: ModuleType, session: Session) -> None:
        library = CuteLibrary(module)
        patches = self._patches = Patches(session, NAME)
        functions = self._functions = JitFunctions(session, library, patches)
        patches.replace(library.compiler, "_compile", COMPILE_PARAMETERS, CompileHook())
        patches.replace(library.testing, "_benchmark_for_autotune", BENCHMARK_PARAMETERS, BenchmarkHook())
        patches.replace(library.decorator, "__call__", DECORATE_PARAMETERS, DecoratorHook(functions))
        tune_hook = TuneHook(session)
        # cutlass.cute.testing, and a library that a conftest.py imported, have taken the function by its name.
        for holder, name in list_holders(library.tune):
            patches.replace(holder, name, TUNE_PARAMETERS, tune_hook)
        self._replace_decorated(functions)

    def _replace_decorated(self, functions: JitFunctions) -> None:
        """Have the functions ask that were decorated before now, in a module that a conftest.py imported."""
        for holder, name, launch in list_autotuned():
            if not asks(launch):
                self._renamed.append((holder, name, launch))
                setattr(holder, name, functions.make_ask(launch, _USUAL_ITERATIONS))
        self._untracked = functions.list_names_with_choices()

    def unhook(self) -> None:
        if self._functions is not None:
            self._functions.end()
        for holder, name, launch in self._renamed:
            setattr(holder, name, launch)
        self._renamed.clear()
        if self._patches is not None:
            self._patches.undo()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Empty the memory of ``autotune_jit``; ``tune`` remembers nothing."""
        if self._functions is None:
            yield
            return
        with self._functions.forgotten():
            yield

    def untracked(self) -> list[str]:
        """Return the functions that were tuned before the run began, as in a conftest.py."""
        return self._untracked
