"""Watches the compilations of Triton in this process, for two purposes.

- Two processes never compile the same kernel at the same time: the second waits and reads the kernel from disk.
- The cache gets the specializations for which a choice was compiled. A later run can then compile ahead of its tests.

A kernel calls ``triton.compiler.compile`` when it is compiled or read from Triton's cache on disk. It does not call it
if its own memory has the compiled kernel. The watcher replaces this function, and changes neither the arguments nor the
result. It uses none of Triton's own hooks and listeners, because user code may set them.
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
from pytest_autotune.tuners.triton.internals import autotuners, compiler
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
    """Return 32 hexadecimal digits that name a compilation. The name is the same in every process.

    The name does not contain Triton's own hash of the kernel. Triton may raise an error while it computes the hash. It
    would then leave a wrong hash in the kernel, and a later launch could run the code of another kernel.

    Two kernels that differ only in their globals get the same name. They then wait for each other without need.

    :param source: Triton's ``ASTSource``.
    """
    option_texts = sorted((str(name), str(value)) for name, value in dict(options or {}).items())
    parts = (*compiler.describe_source(source), str(target), option_texts, compiler.find_cache_folder())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class _ChosenConfig:
    """The choice for one key of an autotuner.

    :param options: the launch options that user code passed in the key's first call, such as ``num_ctas=2``.
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
        # The function of a triton.heuristics can also compute an option, which then stands in the kernel's metadata.
        for heuristics in autotuners.list_inner_heuristics(self.autotuner()):
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

    The adapter reports the specialization of a key's first call. A later call with the same key may have another
    property outside the key, such as an alignment, for which Triton compiles again. No lookup takes place then, but the
    watcher sees the compilation. It finds the choice by the autotuner and the config that are launched at that time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: Any = None
        self._original: Any = None
        #: The choices by the ``id`` of their autotuner and Triton's key.
        self._choices: dict[tuple[int, Any], _NotedChoice] = {}
        #: The ``id`` of each autotuner that looks for a choice now. It may compile any candidate.
        self._choosing: set[int] = set()

    def watch(self) -> None:
        """Start watching, unless the watcher already watches.

        The adapter calls this method in each lookup. It cannot call it once when it hooks the autotuner, because Triton
        imports its compiler later.

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
        """Note that an autotuner looks for a choice. :meth:`note_choice` ends this state."""
        with self._session.guard("triton", "what is compiled"):
            self.watch()
        self._choosing.add(id(autotuner))

    def note_choice(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """Note the choice of a call, and report the specialization for which it was compiled.

        :param kernel: Triton's compiled kernel; None if the choice was not compiled, as under the interpreter.
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
        """Do what Triton's ``compile`` does, but not while another process or thread compiles the same kernel.

        :param original: Triton's ``compile``.
        """
        # The run is over. Some kernels keep a reference to the replaced function.
        if self._module is None:
            return original(*args, **kwargs)
        # User code compiles a file of one of Triton's stages, which belongs to no autotuner.
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
        """Return the context of a compilation. It yields whether this thread may compile the kernel.

        :param arguments: the arguments of Triton's ``compile`` by name.
        :param wait: wait until no other process or thread compiles the kernel. Without waiting, the context yields
            False if one of them compiles it now.
        """
        with self._session.guard("triton", "compile()"):
            source = arguments["src"]
            # Another thread or process may make other code of this kernel, so its result is of no use here. A launch,
            # which waits, compiles the kernel itself. A job ahead of the tests does not compile it at all.
            if CompileTime.of(source.fn, source.constants.values()).needs_launching_thread:
                return nullcontext(wait)
            name = name_compilation(source, arguments.get("target"), arguments.get("options"))
            return self._session.compiling(name, wait)
        # The guard has caught an error of the plugin.
        return nullcontext(True)

    @contextmanager
    def _guard_notes(self) -> Iterator[None]:
        """Catch all errors of the plugin: no launch may fail because the watcher cannot note a specialization."""
        with self._session.guard("triton", "what a choice was compiled for"), suppress(NoText):
            yield

    def _note_compiled(self, kernel: Any) -> None:
        """Report the specialization of a compiled kernel to the entry of its choice.

        Several keys of an autotuner may have the same config as their choice. The watcher cannot see the key of the
        launch. It therefore reports to the key whose first call had the most similar specialization.
        """
        nearest = None
        nearest_text = ""
        most_equal_words = -1
        for noted in list(self._choices.values()):
            if not self._may_launch(noted.chosen, kernel):
                continue
            text = noted.chosen.describe(kernel)
            equal_words = _count_equal_words(text, noted.text)
            if equal_words > most_equal_words:
                nearest = noted
                nearest_text = text
                most_equal_words = equal_words
        if nearest is not None:
            self._session.report_specialization(nearest.chosen.entry, nearest_text)

    def _may_launch(self, chosen: _ChosenConfig, kernel: Any) -> bool:
        """Whether an autotuner may be launching this compiled kernel now, with this choice as its config."""
        autotuner = chosen.autotuner()
        if autotuner is None:
            return False
        # The autotuner compiles candidates now, and not its choice.
        if id(autotuner) in self._choosing:
            return False
        # The autotuner has no arguments between two launches.
        if autotuner.nargs is None:
            return False
        # The attribute is missing before the autotuner's first launch with a choice. Another thread may compile ahead.
        if getattr(autotuner, "best_config", None) is not chosen.config:
            return False
        return autotuners.find_jit_function(autotuner) is kernel.src.fn


def _count_equal_words(text: str, noted_text: str) -> int:
    """Return the number of positions at which two texts have the same word."""
    pairs = zip(text.split(), noted_text.split(), strict=False)
    return sum(word == noted_word for word, noted_word in pairs)
