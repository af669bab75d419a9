"""Watches the compilations of Triton in this process: takes turns with other processes, and notes specializations.

Every kernel compiles itself with ``triton.compiler.compile``, from the first launch on. A kernel also calls it to read
Triton's cache on disk, but not to read its own memory. The watcher changes neither the arguments nor the result, and
uses none of Triton's slots for hooks and listeners.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals import autotuners, compiler, environment
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import NoText, encode_specialization

_THREAD_STATE = threading.local()
#: Arguments of a launch that are Triton's own.
_TRITON_ARGUMENTS = ("grid", "warmup")


class CompiledElsewhere(Exception):
    """Another process, or another thread, compiles the kernel now."""


def leave_to_others() -> None:
    """Have this thread raise :class:`CompiledElsewhere` instead of waiting for a kernel that is compiled elsewhere."""
    _THREAD_STATE.leaves_to_others = True


def name_compilation(source: Any, target: Any, options: Any) -> str:
    """Return 32 hexadecimal digits that name a compilation, the same in every process.

    Triton's own hash would need a computation that Triton may refuse. The kernel would then keep a wrong hash, and the
    next kernel of its name would be launched with its code. Two kernels that differ only in their globals have the
    same name.

    :param source: Triton's ``ASTSource``.
    """
    option_texts = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (*compiler.describe_source(source), str(target), option_texts, environment.find_cache_folder())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _ChosenConfig:
    """The choice for one key of an autotuner.

    :param options: the arguments of the key's first call that are no arguments of the kernel.
    """

    autotuner: weakref.ref[Any]
    entry: Entry
    config: Any
    options: Mapping[str, Any]

    def describe(self, kernel: Any) -> str:
        """Return the specialization of a compiled kernel, as text.

        :raises NoText: if the specialization has no text.
        """
        options = dict(self.options)
        for heuristics in autotuners.list_inner_heuristics(self.autotuner()):  # may set options, too
            for name in heuristics.values:
                if name not in kernel.src.signature:
                    options[name] = getattr(kernel.metadata, name)
        return encode_specialization(kernel.src, self.config.kwargs, options)


@dataclass(frozen=True)
class _NotedChoice:
    """A choice with the specialization of its first call, as text."""

    chosen: _ChosenConfig
    text: str


class CompileWatcher:
    """Watches ``triton.compiler.compile`` in one process, and notes the specializations of choices.

    The first call of a key asks the session. Triton compiles again for a later call that differs in a property outside
    the key, such as an alignment. The watcher sees this compilation. It finds the choice by the autotuner that
    launches then, and by the config that the autotuner runs with.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: Any = None
        self._original: Any = None
        #: The choices by the number of their autotuner, and by Triton's key.
        self._choices: dict[tuple[int, Any], _NotedChoice] = {}
        #: The numbers of the autotuners that look for a choice. They may compile any candidate.
        self._choosing: set[int] = set()

    def watch(self) -> None:
        """Start watching.

        This is called at the first call of a kernel, because Triton imports its compiler after its autotuner.

        :raises HookError: if Triton's compiler differs from the known ones.
        """
        module = compiler.find_compiler()
        if module is None or self._module is not None:
            return
        original = compiler.find_compile_function(module)

        @wraps(original)
        def compile(*args: Any, **kwargs: Any) -> Any:
            return self._compile(original, args, kwargs)

        self._module, self._original = module, original
        self._module.compile = compile

    def unhook(self) -> None:
        """Stop watching, and restore Triton's ``compile``."""
        if self._module is not None:
            self._module.compile = self._original
            self._module = None

    def begin_choice(self, autotuner: Any) -> None:
        """Note that an autotuner looks for a choice, until :meth:`note_choice` is called."""
        with self._session.guard("triton", "what is compiled"):
            self.watch()
        self._choosing.add(id(autotuner))

    def note_choice(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """Note the choice of a call, and report its specialization.

        :param kernel: Triton's compiled kernel; None if nothing was compiled, as under the interpreter.
        """
        autotuner = call.autotuner
        self._choosing.discard(id(autotuner))
        if kernel is None:
            return
        with self._guard_notes():
            kernel_arguments = {*kernel.src.signature, *_TRITON_ARGUMENTS}
            options = {name: value for name, value in call.kwargs.items() if name not in kernel_arguments}
            chosen = _ChosenConfig(weakref.ref(autotuner), entry, config, options)
            noted = _NotedChoice(chosen, chosen.describe(kernel))
            self._choices[id(autotuner), call.tuning_key] = noted
            self._session.report_specialization(entry, noted.text)

    def _compile(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Do what Triton's ``compile`` does, in turns with other processes.

        :param original: Triton's ``compile``.
        """
        if self._module is None:  # a kernel keeps the replaced function after the run
            return original(*args, **kwargs)
        arguments = compiler.name_compile_arguments(args, kwargs)
        if not compiler.is_kernel_source(arguments["src"]):
            return original(*args, **kwargs)
        leaves_to_others = getattr(_THREAD_STATE, "leaves_to_others", False)
        with self._take_turn(arguments, wait=not leaves_to_others) as is_mine:
            if leaves_to_others and not is_mine:
                raise CompiledElsewhere
            kernel = original(*args, **kwargs)
        with self._guard_notes():
            self._note_compiled(kernel)
        return kernel

    def _take_turn(self, arguments: Mapping[str, Any], wait: bool) -> AbstractContextManager[bool]:
        """Return the context of a compilation. It yields whether no other process or thread compiles the kernel now.

        :param wait: whether to wait for other processes and threads.
        """
        with self._session.guard("triton", "compile()"):
            source = arguments["src"]
            if CompileTime.of(source.fn, source.constants.values()).needs_launching_thread:
                return nullcontext(wait)  # another thread, or process, may make other code of it
            name = name_compilation(source, arguments.get("target"), arguments.get("options"))
            return self._session.compiling(name, wait)
        return nullcontext(True)

    @contextmanager
    def _guard_notes(self) -> Iterator[None]:
        """Catch our errors, so that no launch fails because a specialization cannot be noted."""
        with self._session.guard("triton", "what a choice was compiled for"), suppress(NoText):
            yield

    def _note_compiled(self, kernel: Any) -> None:
        """Report the specialization of a compiled kernel with the choice whose own specialization is most similar."""
        nearest = None
        nearest_text = ""
        most_equal_words = -1
        for noted in list(self._choices.values()):
            if not self._may_launch(noted.chosen, kernel):
                continue
            text = noted.chosen.describe(kernel)
            equal_words = _count_equal_words(text, noted.text)
            if equal_words > most_equal_words:
                nearest, nearest_text, most_equal_words = noted, text, equal_words
        if nearest is not None:
            self._session.report_specialization(nearest.chosen.entry, nearest_text)

    def _may_launch(self, chosen: _ChosenConfig, kernel: Any) -> bool:
        """Whether a choice's autotuner launches the kernel now, as far as can be seen. The key cannot be seen."""
        autotuner = chosen.autotuner()
        if autotuner is None or id(autotuner) in self._choosing or autotuner.nargs is None:
            return False
        # The attribute is missing if another thread compiles ahead while the first choice is found.
        if getattr(autotuner, "best_config", None) is not chosen.config:
            return False
        return autotuners.find_jit_function(autotuner) is kernel.src.fn


def _count_equal_words(text: str, noted_text: str) -> int:
    """Return how many words of two texts are equal at the same position."""
    pairs = zip(text.split(), noted_text.split(), strict=False)
    return sum(word == noted_word for word, noted_word in pairs)
