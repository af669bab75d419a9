"""The tuner as a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from pytest_autotune.tuners.function.space import as_space
from pytest_autotune.tuners.function.tuner import tune

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
