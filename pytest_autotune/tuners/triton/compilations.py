"""What this process has Triton compile: seen, and done in turns with other processes and threads.

``triton.compiler.compile`` is what every kernel compiles itself with, from the first launch on. It is called for what
is in Triton's cache on disk, too, and not for what is in the kernel's memory. What it is given and what it returns
stays as it is; nothing is put into the slots that Triton has for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.triton.internals import compiler, knobs

_OF_THREAD = threading.local()


class CompiledElsewhere(Exception):
    """Another process, or thread, compiles this now."""


def leave_to_others() -> None:
    """Let this thread not wait for what is being compiled: there it gets a :class:`CompiledElsewhere`."""
    _OF_THREAD.leaves = True


class Compilations:
    """Watches ``triton.compiler.compile``.

    :param compiled: called with Triton's source and the kernel that was made of it.
    :param turn: entered around each compilation, with its name, see :func:`name_of`, and whether to wait for who
        compiles that now; gives whether it is this one's turn.
    """

    def __init__(
        self,
        compiled: Callable[[Any, Any], object],
        turn: Callable[[str, bool], AbstractContextManager[bool]],
    ) -> None:
        self._compiled = compiled
        self._turn = turn
        self._module: Any = None
        self._original: Any = None

    def hook(self, module: ModuleType) -> None:
        """Watch from now on.

        :param module: ``triton.compiler``.
        :raises HookError: when it does not compile as it is known here.
        """
        original = compiler.compile_of(module)

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._module is None:  # a kernel keeps it for good
                return original(*args, **kwargs)
            given = compiler.given_to_compile(args, kwargs)
            leaves = getattr(_OF_THREAD, "leaves", False)
            name = _name_if_known(given)
            with self._turn(name, not leaves) if name else nullcontext(True) as is_mine:
                if leaves and not is_mine:
                    raise CompiledElsewhere
                kernel = original(*args, **kwargs)
            with suppress(Exception):  # an error of ours must not fail a launch
                self._compiled(given["src"], kernel)
            return kernel

        self._module, self._original = module, original
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
    parts = (*compiler.description_of(source), str(target), given, knobs.cache_folder())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
