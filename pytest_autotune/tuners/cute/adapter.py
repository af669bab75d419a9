"""The adapter for the two tuners of CuTe DSL: nvidia-cutlass-dsl 4.8.

Both tuners benchmark each configuration, such as ``{"V": 4, "T": 128}``, and choose the fastest:

- ``cutlass.testing.tune(build, {"V": [1, 4], "T": [64, 128]}, JitArguments(x, y))`` calls ``build(x, y, V=1, T=64)``,
  then ``build(x, y, V=1, T=128)``, and so on. Each call returns a function that launches a kernel. ``tune`` returns the
  fastest configuration, and remembers nothing. On a hit, the adapter returns the loaded configuration. On a miss, CuTe
  searches, and the adapter records the results. See :mod:`~pytest_autotune.tuners.cute.tune`.
- ``@autotune_jit({"V": [1, 4], "T": [64, 128]})`` decorates a ``@cute.jit`` function. The first call compiles and
  benchmarks each configuration. Later calls launch the fastest kernel, which CuTe remembers. On a hit, the adapter
  compiles the loaded configuration only. On a miss, the adapter searches in place of CuTe. See
  :mod:`~pytest_autotune.tuners.cute.jit`.

The adapter replaces four functions of CuTe:

- ``tune`` asks the session for the choice.
- ``autotune_jit.__call__`` decorates a function. The decorated function then asks the session in its first call.
- ``_benchmark_for_autotune``, which both tuners call for each configuration, takes the GPU lock and notes the time.
- ``CompileCallable._compile``, which does the work of ``cute.compile``, lets one thread compile at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.cute.internals import (
    BENCHMARK_PARAMETERS,
    COMPILE_PARAMETERS,
    DECORATE_PARAMETERS,
    TUNE_PARAMETERS,
    CuteLibrary,
    FunctionName,
    list_function_names,
)
from pytest_autotune.tuners.cute.jit import DEFAULT_ITERATIONS, DecoratorHook, JitFunctions
from pytest_autotune.tuners.cute.searching import NAME, BenchmarkHook, CompileHook
from pytest_autotune.tuners.cute.tune import TuneHook
from pytest_autotune.tuners.shared.arguments import list_holders
from pytest_autotune.tuners.shared.patches import Patches


class Adapter:
    """Hooks both tuners of CuTe DSL; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "cutlass.cute.testing"
    acts_without_entries = True

    def __init__(self) -> None:
        self._patches: Patches | None = None
        self._functions: JitFunctions | None = None
        #: The names to which :meth:`hook` bound other functions, with the functions that they were bound to before.
        self._rebound: list[FunctionName] = []
        self._untracked: list[str] = []

    def hook(self, module: ModuleType, session: Session) -> None:
        # Check the signatures first: a HookError must come before the first function is replaced.
        library = CuteLibrary(module)
        patches = self._patches = Patches(session, NAME)
        functions = self._functions = JitFunctions(session, library, patches)
        patches.replace(library.compiler, "_compile", COMPILE_PARAMETERS, CompileHook())
        patches.replace(library.testing, "_benchmark_for_autotune", BENCHMARK_PARAMETERS, BenchmarkHook())
        patches.replace(library.decorator, "__call__", DECORATE_PARAMETERS, DecoratorHook(functions))
        tune_hook = TuneHook(session)
        # A module that was imported earlier may contain "from cutlass.testing import tune". This statement gave the
        # module a name of its own for the function, so the function is replaced under each of these names.
        for holder, name in list_holders(library.tune):
            patches.replace(holder, name, TUNE_PARAMETERS, tune_hook)
        self._rebind_decorated(functions)
        # A function that has a choice already was tuned before the hook, so the session did not see its search.
        self._untracked = functions.list_tuned_names()

    def _rebind_decorated(self, functions: JitFunctions) -> None:
        """Replace the functions that were decorated before the hook, such as those that a conftest.py imported."""
        for function_name in list_function_names():
            # CuTe has put the iterations of this function into a closure. The defaults are used in their place.
            replacement = functions.make_replacement(function_name.function, DEFAULT_ITERATIONS)
            self._rebound.append(function_name)
            setattr(function_name.module, function_name.name, replacement)

    def unhook(self) -> None:
        if self._functions is not None:
            self._functions.end()
        for function_name in self._rebound:
            setattr(function_name.module, function_name.name, function_name.function)
        self._rebound.clear()
        if self._patches is not None:
            self._patches.undo()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Empty the memory of ``autotune_jit``, and give it back afterwards. ``tune`` remembers nothing."""
        if self._functions is None:
            yield
            return
        with self._functions.isolated():
            yield

    def untracked(self) -> list[str]:
        """Return the names of functions that were tuned before the hook, for example while a conftest.py ran."""
        return self._untracked
