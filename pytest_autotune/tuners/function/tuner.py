"""The call itself, and the tuner as a decorator.

What is chosen is remembered in the process, and kept by the run that is attached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import Any

from pytest_autotune.cache.model import Identity, Problem, UncacheableError, check_name
from pytest_autotune.tuners.function import MEMORIES, Memories, Memory
from pytest_autotune.tuners.function.choosing import NAME, Request, choose, choose_uncacheable, workers_of
from pytest_autotune.tuners.function.identity import KeyArgumentError, stable_values
from pytest_autotune.tuners.function.plan import Callbacks, Hold, Loss, Plan, as_strategy, processor_of
from pytest_autotune.tuners.function.search import compare, random_state_kept
from pytest_autotune.tuners.function.space import Configuration, SpaceError, as_space
from pytest_autotune.tuners.measuring.how import Measuring

#: How long a thread waits for another one that tunes the same problem, in seconds.
WAIT_S = 120.0


class FunctionTuner:
    """Tunes on request.

    :param memories: what it remembers; None where none but this one is to know.
    """

    def __init__(self, memories: Memories | None = None) -> None:
        self.memories = memories or Memories()

    def tune(
        self,
        kernel: str,
        *,
        space: Iterable[Any],
        run: Callable[..., object],
        key: Mapping[str, object] | None = None,
        compile: Callable[[Any], object] | None = None,
        setup: Callable[[Any], object] | None = None,
        reset: Callable[[Any], object] | None = None,
        verify: Callable[[Any, Any], object] | None = None,
        invalid: type[BaseException] | tuple[type[BaseException], ...] = (),
        strict: bool = True,
        strategy: object = "exhaustive",
        measuring: Measuring | None = None,
        version: object = None,
        source: object = None,
        device: object = None,
    ) -> Any:
        """Choose the fastest configuration for a kernel, or take what was chosen before.

        What was chosen is remembered in the process. With pytest-autotune active it is taken from
        the loaded cache, shared with the other workers, reported, and dumped.

        :param kernel: its name, the same in every process.
        :param key: names and values of what one problem of the kernel differs from another in: sizes, dtypes.
            A value without a stable form makes it one that cannot be kept.
        :param space: the configurations: a list or another iterable, axes by name, or a :func:`product`.
            A configuration is a mapping, a dataclass, a named tuple or a plain value.
        :param run: runs the kernel once with a configuration; this is measured. With ``compile`` it
            also gets what that returned.
        :param compile: compiles the kernel for a configuration; called in threads, ahead of measuring.
        :param setup: called with a configuration before it is tried.
        :param reset: called with a configuration before each run and not timed: for kernels that
            change their inputs.
        :param verify: gets a configuration and what ``run`` returned for it; a wrong result, for which it
            raises AssertionError or returns False, disqualifies the configuration.
        :param invalid: errors of your callbacks that mean that a configuration cannot be used.
            :class:`InvalidConfiguration` always does.
        :param strict: False takes any error for one of the configuration alone.
        :param strategy: ``"exhaustive"``, ``"random"``, ``"optuna"``, or a :class:`Random` or :class:`Optuna` with
            settings of its own.
        :param measuring: how to measure; times are in microseconds.
        :param version: changes when choices made before are no longer good: a number, text, or a tuple.
        :param source: what the choice rests on: a function, text, the path of a file, a module, or
            several. Left out, it is ``run`` and ``compile`` where they are functions with a name.
        :param device: ``"cpu"``, ``"cuda"`` or a :class:`Device`. Left out, it is the current GPU
            where this process uses one, else the CPU: say it where both are in use.
        :returns: the configuration, as the space holds it.
        :raises TuningError: when every configuration failed.
        :raises ValueError: for an empty space, or one whose ``where`` fails; it names the kernel and the cause.
        :raises TypeError: for an argument that makes no sense; for a key, it names the kernel and the cause.
        """
        plan = _plan(space, run, compile, setup, reset, verify, invalid, strict, strategy, measuring, device)
        name = _kernel_name(kernel)
        with _said_of(name):
            if plan.space.only is not None:
                return plan.space.only.config
            try:
                request = Request.of(name, key, plan, version, source)
            except UncacheableError as error:
                problem = Problem(NAME, name, stable_values(key), plan.processor.device)
                return choose_uncacheable(self.memories.now.session, plan, problem, str(error)).config
            # Of two equal spaces, each gets its own object back; a product makes a new one, which may be changed.
            found = plan.space.find(self._chosen(request).params)
            assert found is not None
            return found.config

    def loss(self, config: object, **request: Any) -> Loss:
        """How much slower a configuration is than the best one for the problem at hand.

        For keys that are coarser than the sizes: tune with the coarse key, then ask what its choice costs
        at the exact size. Nothing is remembered or kept.

        :param config: what :meth:`tune` returned for the coarser key.
        :param request: the arguments of :meth:`tune` without ``key``, ``version`` and ``source``; ``run`` and
            ``verify`` work at the exact size.
        :raises TuningError: when the configuration fails at this size, or its result is wrong.
        :raises ValueError: when it is not in the space.
        """
        plan, active = _plan(**request), self.memories.now.session
        hold: Hold = nullcontext if active is None else partial(active.measuring, plan.processor.lock)
        with random_state_kept():
            return compare(plan, config, workers_of(active), hold)

    def _chosen(self, request: Request) -> Configuration:
        memory, identity = self.memories.now, request.identity
        chosen = memory.chosen.get(identity)
        if chosen is None:
            with _one_at_a_time(memory, identity):
                chosen = memory.chosen.get(identity)
                if chosen is None:
                    chosen = choose(memory.session, request, partial(memory.chosen.pop, identity, None))
                memory.chosen[identity] = chosen
        return chosen


@contextmanager
def _one_at_a_time(memory: Memory, identity: Identity) -> Iterator[None]:
    """Let other threads that ask for the same problem wait for the first one, but not for ever."""
    lock = memory.searches.setdefault(identity, threading.RLock())
    acquired = lock.acquire(timeout=WAIT_S)
    try:
        yield
    finally:
        if acquired:
            lock.release()
        memory.searches.pop(identity, None)


def _plan(
    space: object,
    run: Callable[..., object],
    compile: Callable[[Any], object] | None = None,
    setup: Callable[[Any], object] | None = None,
    reset: Callable[[Any], object] | None = None,
    verify: Callable[[Any, Any], object] | None = None,
    invalid: object = (),
    strict: bool = True,
    strategy: object = "exhaustive",
    measuring: Measuring | None = None,
    device: object = None,
) -> Plan:
    """What is asked for by the arguments of ``tune()`` and ``loss()`` that say how to search."""
    callbacks = Callbacks(run, compile, setup, reset, verify, _classes(invalid), strict)
    return Plan(as_space(space), callbacks, measuring or Measuring(), as_strategy(strategy), processor_of(device))


@contextmanager
def _said_of(kernel: str) -> Iterator[None]:
    """Have an error of a space or a key name the kernel."""
    try:
        yield
    except (SpaceError, KeyArgumentError) as error:
        raise type(error)(f"{NAME}:{kernel}: {error}") from error.__cause__


def _kernel_name(kernel: object) -> str:
    if not isinstance(kernel, str) or not kernel:
        raise TypeError(f"tune() takes the name of the kernel first, as text, not {kernel!r}")
    try:
        check_name(kernel)
    except UncacheableError as error:
        raise TypeError(f"tune(): {error}") from None
    return kernel


def _classes(invalid: object) -> tuple[type[BaseException], ...]:
    classes = invalid if isinstance(invalid, tuple) else (invalid,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise TypeError(f"invalid= takes classes of errors, not {invalid!r}")
    return classes


TUNER = FunctionTuner(MEMORIES)
tune = TUNER.tune
loss = TUNER.loss


_BOUND = ("compile", "setup", "reset", "verify")


def tuned(
    *,
    space: Iterable[Any],
    key: Callable[..., Mapping[str, object]] | None = None,
    kernel: str = "",
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Choose the argument ``config`` of a function anew for each key, then call it with the choice.

    ::

        @tuned(space=product(BLOCK=[16, 32, 64]), key=lambda a, b: {"n": a.shape[0]})
        def add(a, b, *, config): ...

        add(a, b)

    The function is measured with the arguments of the call that comes first. The options are those of
    :func:`~pytest_autotune.tune`; its callbacks get the arguments of the call after their own, and what
    ``compile`` returns is left to the function's own memory.

    :param key: gets the arguments of a call, returns its key; None for one choice for all calls.
    :param kernel: the kernel's name; the function's module and name, if empty.
    """
    candidates = as_space(space)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = kernel or f"{function.__module__}.{function.__qualname__}"
        source = options.get("source")
        if source is None:
            source = [function, *filter(None, [options.get("compile")])]

        @wraps(function)
        def tuned_function(*args: Any, **kwargs: Any) -> Any:
            def bound(callback: Callable[..., object]) -> Callable[..., object]:
                return lambda *own: callback(*own, *args, **kwargs)

            callbacks = {option: bound(options[option]) for option in _BOUND if options.get(option) is not None}
            config = tune(
                name,
                key=key(*args, **kwargs) if key is not None else {},
                space=candidates,
                run=lambda config, *compiled: function(*args, config=config, **kwargs),
                **{**options, **callbacks, "source": source},
            )
            return function(*args, config=config, **kwargs)

        return tuned_function

    return decorate
