"""What Triton's compiler made: of which source, with which options, to which code; and loading it."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from typing import Any

#: What says only how a kernel was compiled, not how it is launched.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}


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
