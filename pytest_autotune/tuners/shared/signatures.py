"""The one check of what adapters replace, or call: a library's function that is known by its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.versions import version_of


def known(
    function: Any, what: str, library: str, parameters: Sequence[str], *, and_others: bool = False, needed: str = ""
) -> Callable[..., Any]:
    """A function of a library that is what is known here.

    :param function: None where the library has none.
    :param what: its name, for messages.
    :param parameters: the names of its parameters, in order.
    :param and_others: later versions have further ones, which are handed on.
    :param needed: what to do where there is none.
    :raises HookError: when it is not there, or takes others.
    """
    if function is None:
        advice = f"; {needed}" if needed else ""
        raise HookError(f"{library} {version_of(library)} has no {what}{advice}")
    found = list(inspect.signature(function).parameters)
    if (found[: len(parameters)] if and_others else found) != list(parameters):
        raise HookError(f"{what} of {library} {version_of(library)} has another signature")
    return function  # type: ignore[no-any-return]
