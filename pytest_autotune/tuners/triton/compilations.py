"""What this process has Triton compile: seen, and done in turns with other processes.

``triton.compiler.compile`` is what every kernel compiles itself with, from the first launch on. It is called for what
is in Triton's cache on disk, too, and not for what is in the kernel's memory. What it is given and what it returns
stays as it is; nothing is put into the slots that Triton has for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.triton.internals import compile_calls, knobs


class Compilations:
    """Watches ``triton.compiler.compile``.

    :param compiled: called with Triton's source and the kernel that was made of it.
    :param made: called with its name and the seconds that it took, when it was not on disk.
    """

    def __init__(
        self,
        compiled: Callable[[Any, Any], object],
        made: Callable[[str, float], object] = lambda name, seconds: None,
    ) -> None:
        self._compiled = compiled
        self._made = made
        #: Entered around each compilation, with its name, see :func:`name_of`, and what compiles. None where nobody
        #: else does.
        self.turns: Callable[[str, Callable[[], object]], AbstractContextManager[object]] | None = None
        self._module: Any = None
        self._original: Any = None

    def hook(self, compiler: ModuleType) -> None:
        """Watch from now on.

        :param compiler: ``triton.compiler``.
        :raises HookError: when it does not compile as it is known here.
        """
        original = compile_calls.compile_of(compiler)

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._module is None:  # a kernel keeps it for good
                return original(*args, **kwargs)
            given = compile_calls.given_to_compile(args, kwargs)
            name = _name_if_known(given)
            with self._turn(name, partial(original, *args, **kwargs)), compile_calls.seeing_work(given["src"]) as work:
                started = time.perf_counter()
                kernel = original(*args, **kwargs)
                seconds = time.perf_counter() - started
            with suppress(Exception):  # an error of ours must not fail a launch
                self._compiled(given["src"], kernel)
            with suppress(Exception):
                if work and name:
                    self._made(name, seconds)
            return kernel

        self._module, self._original = compiler, original
        self._module.compile = compile

    @property
    def is_hooked(self) -> bool:
        """Whether this process's compilations are seen."""
        return self._module is not None

    def unhook(self) -> None:
        """Watch no more."""
        if self._module is not None:
            self._module.compile = self._original
            self._module = None

    def _turn(self, name: str, compile: Callable[[], object]) -> AbstractContextManager[object]:
        turns = self.turns
        return turns(name, compile) if turns is not None and name else nullcontext()


def _name_if_known(given: Mapping[str, Any]) -> str:
    with suppress(Exception):
        return name_of(given["src"], given.get("target"), given.get("options"))
    return ""


def name_of(source: Any, target: Any, options: Any) -> str:
    """What is compiled, and where to, as 32 hexadecimal digits: the same in every process that compiles it.

    Triton is not asked for a hash of its own: a kernel that it refuses is left with a hash that is none, and the next
    one of that name is launched with the code of this one. Two that only use other globals have one name here.
    """
    given = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (*compile_calls.description_of(source), str(target), given, knobs.cache_folder())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
