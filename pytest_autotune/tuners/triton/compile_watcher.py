"""Watches the compilations of Triton in this process, for two purposes.

- Two processes never compile the same kernel at the same time: the second waits and reads the kernel from disk.
- The cache gets the specializations for which a choice was compiled. A later run can then compile ahead of its tests.

Triton calls ``triton.compiler.compile`` to compile a kernel, or to read it from the cache on disk. Triton does not call
this function if its memory has the compiled kernel. The watcher replaces the function, and changes neither the
arguments nor the result. It uses none of Triton's own hooks and listeners, because user code may set them.

:mod:`.compiling` compiles the candidates of a search, and :mod:`.ahead` the choices of a loaded cache. The watcher sees
the compilations of both.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.identity import Call
from pytest_autotune.tuners.triton.internals import autotuners, compiler
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.specialization_text import NoText, encode_specialization

_THREAD_STATE = threading.local()
#: Arguments that Triton's launch takes besides the parameters of the kernel and the launch options.
_TRITON_ARGUMENTS = ("grid", "warmup")


class CompiledElsewhere(Exception):
    """Another process, or another thread, compiles the kernel now."""


def leave_to_others() -> None:
    """Have this thread never wait for a kernel that another process or thread compiles now.

    The thread then gets :class:`CompiledElsewhere` from ``triton.compiler.compile``, and goes on with its next job.
    """
    _THREAD_STATE.leaves_to_others = True


def name_compilation(source: Any, target: Any, options: Any) -> str:
    """Return 32 hexadecimal digits that name a compilation. The name is the same in every process.

    The name does not contain Triton's own hash of the kernel. If Triton raises an error while it computes this hash, it
    leaves a wrong hash in the kernel. A later launch could then run the code of another kernel.

    Two kernels that differ only in their globals get the same name. The second compilation then waits without need.

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
        """Return the specialization of a compiled kernel as text, for example ``*bf16:16 i32 =1 _ | num_ctas=2``.

        :raises NoText: if the specialization has no text.
        """
        options = dict(self.options)
        # A function of triton.heuristics computes a parameter of the kernel, or an option such as num_warps. Triton
        # keeps the option's value only in the metadata of the compiled kernel.
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


@dataclass(frozen=True)
class _Match:
    """A choice to which a compiled kernel may belong.

    :param text: the specialization of the compiled kernel.
    :param equal_words: the number of words that ``text`` has in common with the specialization of the choice's first
        call.
    """

    entry: Entry
    text: str
    equal_words: int


class CompileWatcher:
    """Watches ``triton.compiler.compile`` in one process, and notes the specializations of choices.

    The adapter reports the specialization of the first call with a key. A later call with the same key may have another
    alignment, or another property that is not in the key. Triton then compiles the choice again, without a lookup. The
    watcher sees this compilation. It finds the choice by the autotuner and the config that are launched at that time.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._module: Any = None
        self._original: Any = None
        #: The choices by the ``id`` of their autotuner and Triton's key.
        self._choices: dict[tuple[int, Any], _NotedChoice] = {}
        #: The ``id`` of each autotuner that looks for a choice now. An id is here twice if two threads look for choices
        #: of the same autotuner.
        self._choosing: list[int] = []

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

    @contextmanager
    def choosing(self, autotuner: Any) -> Iterator[None]:
        """Look for a choice of an autotuner. Until the context ends, the autotuner may compile any candidate."""
        with self._session.guard("triton", "what is compiled"):
            self.watch()
        self._choosing.append(id(autotuner))
        try:
            yield
        finally:
            # The id may belong to another autotuner later.
            self._choosing.remove(id(autotuner))

    def note_choice(self, call: Call, entry: Entry, config: Any, kernel: Any) -> None:
        """Note the choice of a call, and report the specialization for which the choice was compiled.

        :param entry: the entry whose choice it is.
        :param config: Triton's object for the choice.
        :param kernel: Triton's compiled kernel; None if the choice was not compiled.
        """
        if kernel is None:
            return
        autotuner = call.autotuner
        with self._guard_notes():
            # The other keyword arguments of the call are launch options, such as num_ctas=2.
            known_arguments = {*kernel.src.signature, *_TRITON_ARGUMENTS}
            options = {name: value for name, value in call.kwargs.items() if name not in known_arguments}
            chosen = _ChosenConfig(weakref.ref(autotuner), entry, config, options)
            text = chosen.describe(kernel)
            self._choices[id(autotuner), call.tuning_key] = _NotedChoice(chosen, text)
            self._session.report_specialization(entry, text)

    def _compile(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Do what Triton's ``compile`` does, but not while another process or thread compiles the same kernel.

        :param original: Triton's ``compile``.
        :returns: Triton's compiled kernel.
        :raises CompiledElsewhere: in a thread that called :func:`leave_to_others`, if the kernel is compiled elsewhere.
        """
        # The run is over, but some kernels still refer to the replaced function.
        if self._module is None:
            return original(*args, **kwargs)
        arguments = compiler.name_compile_arguments(args, kwargs)
        # User code compiles a file of one of Triton's stages, which belongs to no autotuner.
        if not compiler.is_kernel_source(arguments["src"]):
            return original(*args, **kwargs)
        may_wait = not getattr(_THREAD_STATE, "leaves_to_others", False)
        with self._take_turn(arguments, may_wait) as has_turn:
            # A thread that may wait compiles also without a turn: its wait took too long, or no file can be locked.
            if not has_turn and not may_wait:
                raise CompiledElsewhere
            kernel = original(*args, **kwargs)
        with self._guard_notes():
            self._note_compiled(kernel)
        return kernel

    def _take_turn(self, arguments: Mapping[str, Any], may_wait: bool) -> AbstractContextManager[bool]:
        """Return the context of a compilation. It yields whether it is this thread's turn to compile the kernel.

        :param arguments: the arguments of Triton's ``compile`` by name.
        :param may_wait: wait until no other process or thread compiles the kernel. A thread that may not wait gets
            False if the kernel is compiled elsewhere now.
        """
        with self._session.guard("triton", "compile()"):
            source = arguments["src"]
            # The code of this kernel may differ between threads and processes, so no other result is of use here. A
            # thread that may wait belongs to a launch, and compiles the kernel itself. A job that compiles ahead of the
            # tests does not compile the kernel at all.
            if CompileTime.from_kernel(source.fn, source.constants.values()).needs_launching_thread:
                return nullcontext(enter_result=may_wait)
            name = name_compilation(source, arguments.get("target"), arguments.get("options"))
            return self._session.compiling(name, may_wait)
        # The guard has caught an error of the plugin, so this thread compiles without taking turns.
        return nullcontext(enter_result=True)

    @contextmanager
    def _guard_notes(self) -> Iterator[None]:
        """Catch all errors of the plugin: no launch may fail because the watcher cannot note a specialization."""
        with self._session.guard("triton", "what a choice was compiled for"), suppress(NoText):
            yield

    def _note_compiled(self, kernel: Any) -> None:
        """Report the specialization of a compiled kernel to the entry of its choice.

        Several keys of an autotuner may have the same config as their choice, and the watcher cannot see which key the
        launch has. It therefore compares the specialization of the kernel with that of the first call of each key. The
        key with the most equal words in this text gets the specialization.
        """
        matches = []
        for noted in list(self._choices.values()):
            if self._may_launch(noted.chosen, kernel):
                text = noted.chosen.describe(kernel)
                matches.append(_Match(noted.chosen.entry, text, _count_equal_words(text, noted.text)))
        if matches:
            nearest = max(matches, key=attrgetter("equal_words"))
            self._session.report_specialization(nearest.entry, nearest.text)

    def _may_launch(self, chosen: _ChosenConfig, kernel: Any) -> bool:
        """Whether an autotuner may be launching this compiled kernel now, with this choice as its config."""
        autotuner = chosen.autotuner()
        if autotuner is None:
            return False
        # The autotuner compiles candidates now, and has no choice yet.
        if id(autotuner) in self._choosing:
            return False
        # The autotuner has no arguments between two launches.
        if autotuner.nargs is None:
            return False
        # Triton keeps the config of the launch in this attribute, which is missing before the first launch.
        if getattr(autotuner, "best_config", None) is not chosen.config:
            return False
        return autotuners.find_jit_function(autotuner) is kernel.src.fn


def _count_equal_words(text: str, noted_text: str) -> int:
    """Return the number of positions at which two texts have the same word.

    Example: ``*bf16:16 i32 _`` and ``*bf16 i32 _`` have equal words at two positions.
    """
    pairs = zip(text.split(), noted_text.split(), strict=False)
    return sum(word == noted_word for word, noted_word in pairs)
