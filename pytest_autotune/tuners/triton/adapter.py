"""The adapter for ``triton.autotune``: Triton 3.4 and later.

It touches members of ``triton.runtime.autotuner.Autotuner``:
``check_disk_cache``, which Triton calls when it has no choice in memory, with the
candidates that are left after pruning and a function that benchmarks them;
``cache_results``, the switch that makes Triton call it; for subclasses that
search without it, ``prune_configs`` (``own_runs.py``), which also leaves no
trace in the candidates (``pruning.py``); and setting ``configs``
(``set_lists.py``). The launch of a kernel that has its choice is not touched.
Under the interpreter without a GPU it also supplies the benchmarker that Triton
lacks there (``do_bench``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.protocol import HookError, Suite
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton import libtuner
from pytest_autotune.tuners.triton.ahead import CompilingChildren
from pytest_autotune.tuners.triton.choosing import Choices
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.compiled_choices import CompiledChoices
from pytest_autotune.tuners.triton.identity import NAME
from pytest_autotune.tuners.triton.internals import autotuners, frames, live_objects, modules
from pytest_autotune.tuners.triton.own_runs import OwnRuns
from pytest_autotune.tuners.triton.seen import Seen
from pytest_autotune.tuners.triton.set_lists import SetLists


class _AlwaysAsk:
    """A data descriptor for ``cache_results``: it covers autotuners made before the hook, too.

    The user's own setting stays where it was, in the instance.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else True

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__["cache_results"] = value


class Adapter:
    """Hooks ``triton.autotune``."""

    module = modules.AUTOTUNER_MODULE
    acts_without_entries = True

    def __init__(self) -> None:
        self._run: TuningRun | None = None
        self._autotuner_class: Any = None
        self._original_check: Any = None
        self._seen = Seen()
        self._compilations: Compilations | None = None
        self._ahead: CompilingChildren | None = None
        self._set_lists: SetLists | None = None
        self._own_runs: OwnRuns | None = None

    def hook(self, module: ModuleType, run: TuningRun) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        autotuner_class = module.Autotuner
        original = autotuners.disk_cache_check(autotuner_class)
        compiled = CompiledChoices(run, autotuner_class)
        set_lists = self._set_lists = SetLists(run)
        choices = Choices(run, compiled, set_lists)
        adapter = self
        self._seen = Seen(run.at_next_test)

        def choosing(disk_cache: Callable[..., Any]) -> Any:
            def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
                adapter._seen.add(self, tuning_key)
                return choices.choose(self, tuning_key, configs, bench_fn, disk_cache)

            def leave_alone(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
                return choices.leave_alone(self, tuning_key, configs, bench_fn, disk_cache)

            leave_alone.__name__ = autotuners.DISK_CACHE  # in a line about an error
            return guarded(check_disk_cache, leave_alone, run, NAME, library=NAME)

        self._run = run
        self._autotuner_class = autotuner_class
        self._original_check = original
        autotuner_class.check_disk_cache = choosing(original)
        autotuner_class.cache_results = _AlwaysAsk()
        autotuner_class.configs = set_lists
        self._hook_own_runs(OwnRuns(run, autotuner_class, choices, self._seen.add, choosing))
        self._compilations = Compilations(compiled.compiled, self._compiled_here)
        self._watch_when_imported()

    def _hook_own_runs(self, own_runs: OwnRuns) -> None:
        try:
            own_runs.hook()
            self._own_runs = own_runs
        except HookError as error:  # all others are hooked
            if self._run is not None:
                self._run.note(f"triton: autotuners that search in a way of their own are left alone: {error}")

    def _compiled_here(self, name: str, seconds: float) -> None:
        """Something was compiled in this process, and not found on disk."""
        run = self._run
        if run is not None and run.index is not None:
            is_tuned = frames.launching_autotuner(self._autotuner_class) is not None
            run.compiled_itself.append((name, round(seconds, 3), is_tuned or not frames.launches_alone()))

    def _watch_when_imported(self) -> None:
        """Watch the compiler, which Triton imports after its autotuner."""
        import wrapt

        reference = weakref.ref(self)  # wrapt keeps its hooks for the life of the process

        def watch(compiler: ModuleType) -> None:
            adapter = reference()
            if adapter is not None and adapter._compilations is not None and adapter._run is not None:
                try:
                    adapter._compilations.hook(compiler)
                except Exception as error:  # choices are loaded all the same
                    adapter._run.note(f"triton: what is compiled is not seen: {error}")

        wrapt.register_post_import_hook(watch, modules.COMPILER_MODULE)

    def prepare(self, suite: Suite) -> None:
        """Compile loaded choices ahead of the tests; see :class:`~pytest_autotune.tuners.protocol.Suite`."""
        if self._run is not None and self._compilations is not None and self._compilations.is_hooked:
            self._ahead = CompilingChildren(self._run, self._compilations, self._autotuner_class)
            self._ahead.start(suite)

    def finish(self) -> None:
        """The tests are over."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        self.finish()
        if self._own_runs is not None:
            self._own_runs.unhook()
            self._own_runs = None
        if self._autotuner_class is not None:
            self._autotuner_class.check_disk_cache = self._original_check
            if isinstance(vars(self._autotuner_class).get("cache_results"), _AlwaysAsk):
                del self._autotuner_class.cache_results
            if vars(self._autotuner_class).get("configs") is self._set_lists:
                del self._autotuner_class.configs
            self._autotuner_class = None
        if self._compilations is not None:
            self._compilations.unhook()
            self._compilations = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory, and its own back afterwards."""
        swapped = []
        for autotuner in self._live_autotuners():
            held = vars(autotuner)
            if "cache" in held and type(autotuner.cache) is dict:
                swapped.append((held, held["cache"]))
                held["cache"] = {}
        try:
            with libtuner.isolated_launches():
                yield
        finally:
            for held, cache in swapped:
                held["cache"] = cache

    def unseen(self) -> list[str]:
        """Kernels of autotuners, and of copies of Triton's, that hold choices which never came through the hook."""
        if self._run is None or self._autotuner_class is None:
            return []
        tuned = [
            one
            for one in self._live_autotuners()
            if not self._seen.has_all(one) and autotuners.was_tuned(one, self._autotuner_class)
        ]
        names = set()
        for autotuner in (*tuned, *live_objects.tuned_copies(self._autotuner_class)):
            function = python_function(autotuner)
            kernel = qualified_name(function) if function else repr(autotuner)
            if len(autotuner.configs) > 1 and not self._run.ignores(NAME, kernel):
                names.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")
        return sorted(names)

    def _live_autotuners(self) -> list[Any]:
        return live_objects.autotuners(self._autotuner_class) if self._autotuner_class is not None else []
