"""What is particular to ``LibTuner`` and ``LibEntry`` of FlagGems, and of libraries that took them over.

``LibTuner`` is an autotuner that keeps what it chose, and each candidate's times, in a database of the user's. In a run
with a cache neither is to answer in the cache's place, or to be written: a memory in this process stands in for them.
The class is known by what it has, since several packages bring a copy: a ``run`` and a ``policy`` of its own, and
``libcache`` beside it, which hands out tables. ``LibEntry`` launches what it has launched before without asking an
autotuner.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_autotune.tuners.shared.signatures import known
from pytest_autotune.tuners.triton.internals import frames, live_objects, modules

_TABLE_PARAMETERS = ["self", "table", "key"]


def is_libtuner(autotuner_class: Any) -> bool:
    """Whether a class is a ``LibTuner``: the one that defines ``run``, not those with another policy."""
    run = vars(autotuner_class).get("run")
    if not inspect.isfunction(run) or not callable(getattr(autotuner_class, "policy", None)):
        return False
    return hasattr(type(run.__globals__.get("libcache")), "get_benchmark")


def searches_all(autotuner: Any) -> bool:
    """Whether its policy is to measure all candidates and take the fastest, whatever else it may be told to do.

    The policy ``flagtune`` comes to that where Triton is not FlagTree's. Others search as they like.
    """
    policies = getattr(autotuner, "_dispatch_table", None)
    if not isinstance(policies, dict):
        return False
    names = ["default"] if modules.is_flagtree() else ["default", "flagtune"]
    return any(type(autotuner).policy is policies[name].policy for name in names if name in policies)


def collects(autotuner: Any) -> bool:
    """Whether it is told to measure for its database, whatever it has chosen before."""
    mode = getattr(autotuner, "_run_mode", None)
    return getattr(mode, "value", "normal") != "normal"


def l2_is_cold(autotuner: Any) -> bool | None:
    """Whether its own benchmark flushes the L2 cache; None for a benchmark that a kernel's author brings."""
    protocol = getattr(autotuner, "benchmark_protocol", None)
    policy = getattr(protocol, "cache_policy", None)
    if policy not in ("cold_l2", "warm_l2") or autotuner.do_bench.__module__ != type(protocol).__module__:
        return None
    return bool(policy == "cold_l2")


def forget_launches(autotuner: Any) -> Callable[[], None]:
    """Has those forget who launch an autotuner now, and would not ask it again: ``LibEntry`` keeps what it launched."""
    callers = [weakref.ref(caller) for caller in frames.callers_of(autotuner) if _memories_of(caller)]

    def forget() -> None:
        for caller in callers:
            for memory in _memories_of(caller()):
                memory.clear()

    return forget


@contextmanager
def isolated_launches() -> Iterator[None]:
    """Give every ``LibEntry`` an empty memory, and its own back afterwards."""
    memories = [memory for entry in live_objects.launchers("LibEntry") for memory in _memories_of(entry)]
    swapped = [(memory, dict(memory)) for memory in memories]
    for memory in memories:
        memory.clear()
    try:
        yield
    finally:
        for memory, held in swapped:
            memory.clear()
            memory.update(held)


def _memories_of(entry: Any) -> list[dict[Any, Any]]:
    of_devices = getattr(entry, "kernel_cache", ())
    found = of_devices if isinstance(of_devices, (tuple, list)) else (of_devices,)
    return [memory for memory in (*found, getattr(entry, "_cpu_cache", None)) if type(memory) is dict]


class Databases:
    """The databases that are kept out of a run, until they are put back.

    :param is_reached: whether the choices of an autotuner are the run's.
    """

    def __init__(self, is_reached: Callable[[Any], bool]) -> None:
        self._is_reached = is_reached
        self._replaced: list[tuple[Any, str, Any]] = []

    def keep_out(self, autotuner_class: Any) -> None:
        """Have a class use this process's memory from now on, for autotuners that were made before, too.

        :raises HookError: where its tables are not what is known here.
        """
        if not is_libtuner(autotuner_class) or isinstance(vars(autotuner_class).get("cache"), _InMemory):
            return
        run, tables = autotuner_class.run, type(autotuner_class.run.__globals__["libcache"])
        original = known(tables.get_benchmark, "LibCache.get_benchmark", tables.__module__, _TABLE_PARAMETERS)

        def get_benchmark(self: Any, table: Any, key: Any) -> Any:
            autotuner = frames.is_under_way(run.__code__, autotuner_class)
            is_for_us = autotuner is not None and is_reached(autotuner) and not collects(autotuner)
            return _NO_TIMES if is_for_us else original(self, table, key)

        is_reached = self._is_reached
        self._replaced.append((tables, "get_benchmark", original))
        tables.get_benchmark = get_benchmark
        autotuner_class.cache = _InMemory(is_reached)
        self._replaced.append((autotuner_class, "cache", None))

    def put_back(self) -> None:
        """Let them be what they were."""
        while self._replaced:
            owner, name, original = self._replaced.pop()
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


class _InMemory:
    """A data descriptor for ``cache``: a table of the database stays where it was, in the instance.

    Each autotuner has a memory of its own, also where two share a table: kernels of other names are other problems.
    """

    def __init__(self, is_reached: Callable[[Any], bool]) -> None:
        self._is_reached = is_reached
        #: Of each autotuner, by the id of a table: that, and what stands in for it, or itself if it is left alone.
        self._memories: weakref.WeakKeyDictionary[Any, dict[int, tuple[Any, Any]]] = weakref.WeakKeyDictionary()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        try:
            held = instance.__dict__["cache"]
        except KeyError:
            raise AttributeError("cache") from None
        if type(held) is dict:
            return held
        memories = self._memories.setdefault(instance, {})
        if id(held) not in memories:
            memories[id(held)] = held, {} if self._is_reached(instance) else held
        return memories[id(held)][1]

    def __set__(self, instance: Any, value: object) -> None:
        for held, memory in self._memories.get(instance, {}).values():
            if memory is value:
                value = held
        instance.__dict__["cache"] = value


class _NoTimes:
    """A table of times without any, which keeps none: older versions ask by index, newer ones by ``get``."""

    def get(self, config: object) -> None:
        return None

    def __getitem__(self, config: object) -> None:
        return None

    def __setitem__(self, config: object, times: object) -> None:
        pass


_NO_TIMES = _NoTimes()
