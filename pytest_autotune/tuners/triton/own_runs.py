"""Autotuners whose class searches otherwise than Triton's: by a ``run`` of its own, or with a disk cache of its own.

Libraries copy Triton's ``run`` to keep choices in a file, or to make keys of their own. What such a copy begins a
search with is ``prune_configs``. There it is left with one candidate: the one that was chosen. A class may also have
a ``check_disk_cache`` or a ``prune_configs`` in the place of Triton's: that is hooked as Triton's own is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton.call import Call
from pytest_autotune.tuners.triton.choosing import Choices
from pytest_autotune.tuners.triton.identity import NAME
from pytest_autotune.tuners.triton.internals import autotuners, benchmark, frames
from pytest_autotune.tuners.triton.libtuner import Databases, collects, searches_all
from pytest_autotune.tuners.triton.pruning import pruned_alone


class OwnRuns:
    """Hooks the subclasses of Triton's autotuner that search by themselves.

    :param seen: called with each autotuner whose search came by here, and the key of its memory.
    :param disk_cache: makes what stands in for a class's ``check_disk_cache``.
    """

    def __init__(
        self,
        run: TuningRun,
        autotuner_class: Any,
        choices: Choices,
        seen: Callable[[Any, Any], object],
        disk_cache: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        self._run = run
        self._class = autotuner_class
        self._choices = choices
        self._seen = seen
        self._disk_cache = disk_cache
        self._databases = Databases(self._is_reached)
        self._replaced: list[tuple[Any, str, Any]] = []
        self._pruning = threading.RLock()

    def hook(self) -> None:
        """Hook the classes that there are, and those that come.

        :raises HookError: when Triton's internals are not the ones known here.
        """
        own_runs = self

        def init_subclass(cls: type[Any], /, **kwargs: Any) -> None:
            super(own_runs._class, cls).__init_subclass__(**kwargs)
            own_runs._hook_subclass(cls)

        self._replace(self._class, autotuners.PRUNE, self._pruning_of(autotuners.pruning(self._class)))
        if "__init_subclass__" not in vars(self._class):
            self._class.__init_subclass__ = classmethod(init_subclass)
        for cls in _subclasses(self._class):
            self._hook_subclass(cls)

    def unhook(self) -> None:
        """Restore what :meth:`hook` replaced."""
        while self._replaced:
            setattr(*self._replaced.pop())
        if "__init_subclass__" in vars(self._class):
            del self._class.__init_subclass__
        self._databases.put_back()

    def _replace(self, cls: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._replaced.append((cls, name, vars(cls)[name]))
        setattr(cls, name, replacement)

    def _hook_subclass(self, cls: Any) -> None:
        self._keep_database_out(cls)
        if (own := autotuners.in_the_place_of(cls, autotuners.PRUNE)) is not None:
            self._replace(cls, autotuners.PRUNE, self._pruning_of(own))
        if (own := autotuners.in_the_place_of(cls, autotuners.DISK_CACHE)) is not None:
            self._replace(cls, autotuners.DISK_CACHE, self._disk_cache(own))

    def _pruning_of(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in for a class's ``prune_configs``."""
        own_runs = self

        def pruned(self: Any, kwargs: Any) -> Any:
            if not own_runs._is_ours(self):
                return original(self, kwargs)
            with own_runs._pruning:
                return pruned_alone(self, lambda: original(self, kwargs))

        def prune_configs(self: Any, kwargs: Any) -> Any:
            return own_runs.left_of(self, kwargs, pruned(self, kwargs))

        pruned.__name__ = autotuners.PRUNE  # in a line about an error
        return guarded(prune_configs, pruned, self._run, NAME, library=NAME)  # type: ignore[no-any-return]

    def _keep_database_out(self, cls: Any) -> None:
        try:
            self._databases.keep_out(cls)
        except HookError as error:
            self._run.note(f"triton: {cls.__module__}.{cls.__qualname__} keeps its own database: {error}")

    def _is_reached(self, autotuner: Any) -> bool:
        return self._is_named(autotuner) and searches_all(autotuner)

    def _is_named(self, autotuner: Any) -> bool:
        function = python_function(autotuner)
        return function is not None and not self._run.ignores(NAME, qualified_name(function))

    def _is_ours(self, autotuner: Any) -> bool:
        return not self._run.paused and self._is_named(autotuner)

    def left_of(self, autotuner: Any, kwargs: dict[str, Any], configs: Sequence[Any]) -> Sequence[Any]:
        """The candidates that a search is left with: the chosen one, or all where the search is to be left alone.

        :param kwargs: the keyword arguments of the call.
        :param configs: the candidates that pruning left.
        """
        search = frames.own_search(autotuner)
        if search is None or not _is_known(search, autotuner) or type(autotuner.cache) is not dict:
            if len(configs) == 1 and (key := frames.key_of_tritons_run(autotuner)) is not None:
                self._seen(autotuner, key)  # since Triton 3.8 the only candidate is taken without asking
            return configs
        self._seen(autotuner, search.key)
        benchmark.take_back_answer(autotuner)
        is_known = search.key is not None
        named = {**autotuner.nargs, **kwargs}
        call = Call(
            autotuner,
            search.key if is_known else object(),
            tuple(autotuner.nargs.values()),
            kwargs,
            tuple(keyed(autotuner, search.key, named)),
        )

        def take(best: Any) -> None:
            autotuner.cache[call.tuning_key] = best
            autotuner.pre_hook(call.arguments(best), reset_only=True)

        bench_fn = benchmark.of_all(autotuner, call.args, kwargs, configs, take)
        chosen = self._choices.choose_one(call, configs, bench_fn)
        if not is_known:
            autotuner.cache.pop(call.tuning_key, None)
        if chosen is None:
            return configs
        benchmark.answer_once(autotuner, chosen, autotuner.configs_timings.get(chosen, 0.0))
        return [chosen]


def _is_known(search: frames.OwnSearch, autotuner: Any) -> bool:
    if search.asks_policy:
        return searches_all(autotuner) and not collects(autotuner)
    return search.takes_the_fastest


def _subclasses(cls: Any) -> Iterator[Any]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def keyed(autotuner: Any, key: object, named: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The values of a key that a class makes by itself, by the names of Triton's key.

    Such a key has what stands for the arguments in ``keys`` first and then dtypes, as Triton's own has. What is
    neither has its position for a name. A key that is no tuple, such as a text of it all, says nothing.
    """
    if not isinstance(key, tuple):
        return
    names = [name for name in autotuner.keys if name in named and name in autotuner.arg_names]
    if len(key) < len(names):
        return
    yield from zip(names, key, strict=False)
    dtypes = {str(value.dtype) for value in _with_dtype(named.values())}
    for position, value in enumerate(key[len(names) :], len(names)):
        if not (isinstance(value, str) and value in dtypes):
            yield f"key.{position}", value


def _with_dtype(values: Any) -> Iterator[Any]:
    for value in values:
        inner = value if hasattr(value, "dtype") else getattr(value, "base", None)
        if hasattr(inner, "dtype"):
            yield inner
