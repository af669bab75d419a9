"""A tuner's library: its version, the parameters of its functions, and the moment of its import.

:mod:`.patches` replaces the functions.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import Versions
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.distributions import Distribution


def find_version(library: str) -> str:
    """Return the version of an imported or installed library, without its local part; ``"?"`` if it is unknown."""
    installed = getattr(sys.modules.get(library), "__version__", None)
    if installed is None:
        with suppress(PackageNotFoundError):
            installed = version(library)
    return str(installed or "?").split("+")[0]


def list_versions(*libraries: str, distributions: Iterable[Distribution] = ()) -> Versions:
    """Return the versions of imported libraries: ``triton 3.6.0, torch 2.11.0, cuda 13.0``.

    ``cuda`` or ``hip`` is the version that torch was built for.

    :param distributions: the distributions that a kernel uses besides.
    """
    pairs = [(library, find_version(library)) for library in libraries if library in sys.modules]
    torch: Any = sys.modules.get("torch")
    if "torch" in libraries and torch is not None:
        for platform in ("cuda", "hip"):
            platform_version = getattr(torch.version, platform, None)
            if platform_version:
                pairs.append((platform, str(platform_version)))
    pairs += sorted((distribution.name, distribution.version) for distribution in distributions)
    return Versions(tuple(pairs))


def check_signature(
    function: Any,
    name: str,
    library: str,
    parameters: Sequence[str],
    *,
    and_others: bool = False,
    needed: str = "another version is needed",
) -> Callable[..., Any]:
    """Return a function of a library after a check of its parameters.

    :param name: the name of the function, for messages.
    :param parameters: the names of the parameters, in order.
    :param and_others: whether later versions may have more parameters after these.
    :param needed: the version to install, for the message if there is no function.
    :raises HookError: if there is no function, or it has other parameters.
    """
    if function is None:
        raise HookError(f"{library} {find_version(library)} has no {name}; {needed}")
    names = list(inspect.signature(function).parameters)
    if and_others:
        names = names[: len(parameters)]
    if names != list(parameters):
        raise HookError(f"{name} of {library} {find_version(library)} has another signature")
    return function  # type: ignore[no-any-return]


def when_imported(module: str, hook: Callable[..., object], *arguments: object) -> None:
    """Call ``hook`` with the arguments and the module when the module is imported, or now if it is.

    :param hook: a bound method. wrapt keeps its hooks for the life of the process, so only a weak reference to the
        method is kept: the hooks must not keep a run alive.
    """
    import wrapt

    reference = weakref.WeakMethod(hook)

    def call(library: ModuleType) -> None:
        method = reference()
        if method is not None:
            method(*arguments, library)

    wrapt.register_post_import_hook(call, module)
