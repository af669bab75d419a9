"""What this process has Triton compile: seen, and done in turns with other processes.

``triton.compiler.compile`` is what every kernel compiles itself with, from the first launch on. It is called for what
is in Triton's cache on disk, too, and not for what is in the kernel's memory. What it is given and what it returns
stays as it is; nothing is put into the slots that Triton has for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.versions import version_of

_PARAMETERS = ["src", "target", "options"]


class Compilations:
    """Watches ``triton.compiler.compile``.

    :param compiled: called with Triton's source and the kernel that was made of it.
    """

    def __init__(self, compiled: Callable[[Any, Any], object]) -> None:
        self._compiled = compiled
        #: Entered around each compilation, with its name: see :func:`name_of`. None where nobody else compiles.
        self.turns: Callable[[str], AbstractContextManager[object]] | None = None
        self._module: Any = None
        self._original: Any = None

    def hook(self, compiler: ModuleType) -> None:
        """Watch from now on.

        :param compiler: ``triton.compiler``.
        :raises HookError: when it does not compile as it is known here.
        """
        original = getattr(compiler, "compile", None)
        if original is None or list(inspect.signature(original).parameters)[: len(_PARAMETERS)] != _PARAMETERS:
            raise HookError(f"triton.compiler.compile of triton {version_of('triton')} has another signature")

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._module is None:  # a kernel keeps it for good
                return original(*args, **kwargs)
            given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
            with self._turn(given):
                kernel = original(*args, **kwargs)
            with suppress(Exception):  # an error of ours must not fail a launch
                self._compiled(given["src"], kernel)
            return kernel

        self._module, self._original = compiler, original
        self._module.compile = compile

    def unhook(self) -> None:
        """Watch no more."""
        if self._module is not None:
            self._module.compile = self._original
            self._module = None

    def _turn(self, given: Mapping[str, Any]) -> AbstractContextManager[object]:
        turns = self.turns
        if turns is not None:
            with suppress(Exception):
                return turns(name_of(given["src"], given.get("target"), given.get("options")))
        return nullcontext()


def name_of(source: Any, target: Any, options: Any) -> str:
    """What is compiled, and where to, as 32 hexadecimal digits: the same in every process that compiles it."""
    place = str(getattr(sys.modules["triton.knobs"].cache, "dir", ""))
    given = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (source.hash(), str(target), given, place)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def launching_autotuner(autotuner_class: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """The autotuner that launches a kernel now, its key and the call's keyword arguments; None where none does."""
    code = autotuner_class.run.__code__
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not {"self", "key", "kwargs"} <= frame.f_locals.keys():
        return None
    return frame.f_locals["self"], frame.f_locals["key"], frame.f_locals["kwargs"]
