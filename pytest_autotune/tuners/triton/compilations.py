"""What this process has Triton compile: seen, done in turns with others, and noted where it is a choice.

``triton.compiler.compile`` is what every kernel compiles itself with, from the first launch on. It is called for what
is in Triton's cache on disk, too, and not for what is in the kernel's memory. What it is given and what it returns
stays as it is; nothing is put into the slots that Triton has for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import wraps
from operator import eq
from typing import Any, NamedTuple

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals import autotuners, compiler, environment
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import NoText, text_of

_OF_THREAD = threading.local()
_OF_TRITON = ("grid", "warmup")


class CompiledElsewhere(Exception):
    """Another process, or thread, compiles this now."""


def leave_to_others() -> None:
    """Let this thread not wait for what is being compiled: there it gets a :class:`CompiledElsewhere`."""
    _OF_THREAD.leaves = True


def name_of(source: Any, target: Any, options: Any) -> str:
    """What is compiled, and where to, as 32 hexadecimal digits: the same in every process that compiles it.

    Triton is not asked for a hash of its own: a kernel that it refuses is left with a hash that is none, and the next
    one of that name is launched with the code of this one. Two that only use other globals have one name here.
    """
    given = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (*compiler.description_of(source), str(target), given, environment.cache_folder())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


class _Chosen(NamedTuple):
    """What was chosen for one key of an autotuner.

    :param options: arguments of its first call that are none of the kernel's.
    :param text: what that was compiled for.
    """

    autotuner: weakref.ref[Any]
    entry: Entry
    config: Any
    options: Mapping[str, Any]
    text: str = ""


class CompileWatcher:
    """Watches ``triton.compiler.compile`` in one process, and notes what choices are compiled for.

    The first call of a key asks the session. A later one that differs in what no key has, such as an alignment, has
    Triton compile again, and is seen there: by the autotuner that launches then, and what that is known to run with.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: Any = None
        self._original: Any = None
        self._chosen: dict[tuple[int, Any], _Chosen] = {}
        #: The autotuners that look for a choice: what is compiled for them meanwhile may be any candidate.
        self._choosing: set[int] = set()

    def watch(self) -> None:
        """Watch from now on: from the first call on, since Triton imports its compiler after its autotuner.

        :raises HookError: when it does not compile as it is known here.
        """
        module = compiler.imported()
        if module is None or self._module is not None:
            return
        original = compiler.compile_of(module)

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            if self._module is None:  # a kernel keeps it for good
                return original(*args, **kwargs)
            given = compiler.given_to_compile(args, kwargs)
            source = given["src"]
            if not compiler.is_of_kernel(source):  # a file of some stage
                return original(*args, **kwargs)
            leaves = getattr(_OF_THREAD, "leaves", False)
            with self._turn(given, wait=not leaves) as is_mine:
                if leaves and not is_mine:
                    raise CompiledElsewhere
                kernel = original(*args, **kwargs)
            with self._noting():
                self._compiled(kernel)
            return kernel

        self._module, self._original = module, original
        self._module.compile = compile

    def unhook(self) -> None:
        """Watch no more."""
        if self._module is not None:
            self._module.compile = self._original
            self._module = None

    def looks_for_choice(self, autotuner: Any) -> None:
        """A choice is looked for, until one is :meth:`chosen`."""
        with self._session.guard("triton", "what is compiled"):
            self.watch()
        self._choosing.add(id(autotuner))

    def chosen(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """A choice was found, and compiled for this call.

        :param kernel: Triton's compiled kernel; None where it was not compiled, such as under the interpreter.
        """
        autotuner = call.autotuner
        self._choosing.discard(id(autotuner))
        if kernel is None:
            return
        with self._noting():
            names = {*kernel.src.signature, *_OF_TRITON}
            options = {name: value for name, value in call.kwargs.items() if name not in names}
            known = _Chosen(weakref.ref(autotuner), entry, config, options)
            known = self._chosen[id(autotuner), call.tuning_key] = known._replace(text=_text(known, kernel))
            self._session.report_specialization(entry, known.text)

    def _turn(self, given: Mapping[str, Any], wait: bool) -> AbstractContextManager[bool]:
        """What is entered around a compilation: gives whether it is this one's, and nobody else's now."""
        with self._session.guard("triton", "compile()"):
            source = given["src"]
            if CompileTime.of(source.fn, source.constants.values()).needs_thread:
                return nullcontext(wait)  # another thread, or process, may make other code of it
            name = name_of(source, given.get("target"), given.get("options"))
            return self._session.compiling(name, wait)
        return nullcontext(True)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note what was compiled: an error of ours in that fails no launch."""
        with self._session.guard("triton", "what a choice was compiled for"), suppress(NoText):
            yield

    def _compiled(self, kernel: Any) -> None:
        """Something was compiled in this process; where that is launched, by the choice for the most similar call."""
        launched = [(_text(known, kernel), known) for known in self._chosen.values() if self._may_launch(known, kernel)]
        if launched:
            text, nearest = max(launched, key=lambda one: sum(map(eq, one[0].split(), one[1].text.split())))
            self._session.report_specialization(nearest.entry, text)

    def _may_launch(self, known: _Chosen, kernel: Any) -> bool:
        """Whether a choice is launched now, as far as its autotuner shows: the key of the call is not among that."""
        autotuner = known.autotuner()
        if autotuner is None or id(autotuner) in self._choosing or autotuner.nargs is None:
            return False
        # It has none while its first choice is being found, and another thread compiles ahead.
        is_chosen = getattr(autotuner, "best_config", None) is known.config
        return is_chosen and autotuners.jit_function(autotuner) is kernel.src.fn


def _text(known: _Chosen, kernel: Any) -> str:
    options = dict(known.options)
    for layer in autotuners.heuristics_under(known.autotuner()):  # they may set options, too
        options |= {name: getattr(kernel.metadata, name) for name in layer.values if name not in kernel.src.signature}
    return text_of(kernel.src, known.config.kwargs, options)
