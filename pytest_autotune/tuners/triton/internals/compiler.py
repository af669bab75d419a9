"""Triton's compiler: how its calls are seen, what it is given, how it refuses; what it made, and loading that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.shared.library import known

_COMPILE_PARAMETERS = ["src", "target", "options"]
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError", "InterpreterError"}
#: What says only how a kernel was compiled, not how it is launched.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}


def compile_of(compiler: ModuleType) -> Callable[..., Any]:
    """``triton.compiler.compile``: what kernels compile themselves with.

    :raises HookError: where there is none, or it is called otherwise.
    """
    compile = getattr(compiler, "compile", None)
    return known(compile, "triton.compiler.compile", "triton", _COMPILE_PARAMETERS, and_others=True)


def given_to_compile(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of Triton's that says: this cannot be compiled, or needs more than the device has."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    return bool(names & _REFUSALS) or str(error).startswith("PassManager::run failed")


def description_of(source: Any) -> tuple[str, ...]:
    """What is compiled, in words that Triton need not compute anything for: the text of a kernel, and its arguments."""
    function = source.fn
    arguments = source.signature, source.constants, source.attrs
    return f"{function.__module__}.{function.__qualname__}", function.src, *map(str, arguments)


def source_of(kernel: Any) -> Any:
    """The ``ASTSource`` that a compiled kernel was made of."""
    return kernel.src


def kinds_of(source: Any) -> Mapping[str, Any]:
    """The type of each parameter of what was compiled, by name, in order; a tuple has one for each of its parts.

    :param source: Triton's ``ASTSource``.
    """
    kinds: Mapping[str, Any] = source.signature
    return kinds


def constant_at(source: Any, path: tuple[int, ...]) -> Any:
    """What was compiled in for a parameter, or a part of one, whose type is ``constexpr``."""
    return source.constants[path]


def attributes_at(source: Any, path: tuple[int, ...]) -> dict[str, Any]:
    """What was assumed of a parameter, or a part of one: ``tt.divisibility``, ``tt.pointer_range``."""
    return dict(source.attrs.get(path) or ())


def option_of(kernel: Any, name: str) -> Any:
    """An option that a kernel was compiled with: ``num_warps``."""
    return getattr(kernel.metadata, name)


def load(kernel: Any) -> None:
    """Load a compiled kernel onto the device, as its first launch does.

    :raises Exception: what Triton raises, without its frames: one of them holds the error, which would keep them, and
        with them the tensors of the call, until the garbage collector comes.
    """
    load = getattr(kernel, "_init_handles", None)
    if load is not None:
        try:
            load()
        except Exception as error:
            raise error.with_traceback(None)  # noqa: B904


def machine_code(kernel: Any) -> Hashable:
    """The code of a compiled kernel, with how it is launched; None where a Triton has it in another way.

    :param kernel: ``CompiledKernel``, loaded.
    """
    binary: Any = getattr(kernel, "kernel", None)
    metadata: Any = getattr(kernel, "metadata", None)
    if not isinstance(binary, bytes) or not hasattr(metadata, "_asdict"):
        return None
    launched = {name: value for name, value in metadata._asdict().items() if name not in _COMPILED_WITH}
    return hashlib.sha256(binary).hexdigest(), repr(sorted(launched.items()))
