"""The arguments of decorators that are compiled into a kernel, and so belong to a digest of its source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pytest_autotune.tuners.shared.functions import layers

#: Arguments of ``triton.jit`` that are compiled in.
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug")
#: Arguments of Numba's decorators that are compiled in.
_OPTIONS_OF_NUMBA = (
    "boundscheck",
    "debug",
    "error_model",
    "fastmath",
    "forceobj",
    "inline",
    "max_registers",
    "parallel",
)


def compiled_in(kernel: object) -> Iterator[str]:
    """Arguments of a kernel's decorators that are compiled in, where they are not the defaults."""
    for layer in layers(kernel):
        given = getattr(getattr(layer, "rewriter", None), "kwargs", None)  # where Triton's interpreter keeps it
        yield from _given(
            (name, given.get(name) if isinstance(given, dict) else getattr(layer, name, None)) for name in _OPTIONS
        )
        options = getattr(layer, "targetoptions", None)  # of Numba's dispatchers
        if isinstance(options, dict):
            if options.get("opt") is False:
                yield "opt=False"
            yield from _given((name, options.get(name)) for name in _OPTIONS_OF_NUMBA)


def _given(options: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in options:
        if isinstance(value, dict):
            value = value.items()
        if isinstance(value, Iterable) and not isinstance(value, str):
            value = sorted(map(str, value))
        if value and isinstance(value, (bool, str, int, list)):
            yield f"{name}={value!r}"
