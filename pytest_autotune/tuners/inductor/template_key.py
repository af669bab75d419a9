"""Computes the key of a decision among templates: everything that Inductor's own cache tells apart.

A decision has candidates: Triton or C++ templates, and calls of a library such as ATen. Inductor calls a candidate a
``choice``.

Inductor's cache has the operation, its inputs, and the digest of each candidate's code. The digest changes with every
version of torch, so the key here avoids it. The key has the arguments of the library calls and the sizes instead, which
tell the same decisions apart. Only if these are not enough, the key has the digest.

The key of a product of two matrices is, for example::

    inputs     cuda bfloat16[512, 256], cuda bfloat16[256, 1024] strides [1, 256]
    precision  highest

Usual values are left out. Every text here is part of committed caches: a change makes their entries miss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.tuners.inductor.identity import (
    contiguous_strides,
    inputs_key,
    list_triton_settings,
    without_addresses,
    without_place,
)
from pytest_autotune.tuners.source.source_digest import digest

#: Arguments of library calls, and the values that nearly every product has. The key leaves these values out.
_USUAL_ARGUMENTS = {"alpha": 1, "beta": 1}
#: Settings of Inductor that decide which candidates there are, and their defaults.
_DEFAULT_SETTINGS = {
    "max_autotune_allow_flexible_layouts": False,
    "max_autotune_gemm_search_space": "DEFAULT",
    "triton.autotune_cublasLt": True,
    "triton.decompose_k_threshold": 32,
    "triton.enable_persistent_tma_matmul": False,
    "triton.enable_template_tma_store": False,
    "triton.num_decompose_k_splits": 10,
}
#: Switches of torch that decide how a library multiplies matrices, and their defaults.
_DEFAULT_PRODUCT_SWITCHES = {
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_fp16_accumulation": False,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.mkldnn.enabled": True,
}
#: torch's names of the library with which it multiplies matrices on a GPU, unless the user prefers another library.
_DEFAULT_LIBRARIES = ("", "Default", "Cublas")
#: Switches of torch that decide how a library computes a convolution, and their defaults.
_DEFAULT_CONVOLUTION_SWITCHES = {
    "backends.cudnn.benchmark": False,
    "backends.cudnn.conv.fp32_precision": "tf32",
    "backends.cudnn.deterministic": False,
    "backends.cudnn.enabled": True,
}
#: A symbol of a size, for example ``s77``: a letter and a number.
_SYMBOL = re.compile(r"\b([a-z])(\d+)\b")


def template_key(torch: Any, choices: Sequence[Any], op: str, inputs: str, hint: int | None) -> tuple[Value, ...]:
    """Return the key of a decision among templates.

    :param torch: the module.
    :param choices: the candidates. There is at least one.
    :param op: the operation, for example ``"mm"``.
    :param inputs: Inductor's own key of the inputs.
    :param hint: the size that Inductor compiles for, if it compiles for several sizes.
    """
    # The candidates differ in how they compute. The inputs and the result of the first candidate count for all.
    first_choice = choices[0]
    is_on_gpu = first_choice.layout.device.type != "cpu"
    library_calls = [inner_choice(choice) for choice in choices if is_library_call(choice)]
    symbolic_sizes = _symbolic_sizes_text(first_choice)
    key = inputs_key(inputs)
    key.append(Value("precision", torch.get_float32_matmul_precision()))
    if hint is not None:
        key.append(plain_value("hint", hint))
    key += _list_arguments(library_calls)
    key += _list_unusual_tensors(torch, first_choice, symbolic_sizes)
    # Without a library call, only the code has the arguments of the operation. With symbolic sizes, only the code of a
    # template for a GPU says by which numbers the sizes can be divided.
    if not library_calls or (symbolic_sizes and is_on_gpu):
        key.append(Value("code", _digest_of_codes(choices), "digest"))
    settings = _list_settings(torch, op, is_on_gpu)
    if settings:
        key.append(Value("settings", ", ".join(settings), "settings"))
    return tuple(key)


def inner_choice(choice: Any) -> Any:
    """Return the candidate inside a wrapper that only prepares the candidate's inputs; else the candidate itself."""
    return getattr(choice, "_wrapped", choice)


def kind_of_choice(choice: Any) -> str:
    """Return the kind of a candidate, for example ``"ExternKernel"`` or ``"TritonTemplate"``."""
    return type(inner_choice(choice)).__name__.removesuffix("Caller")


def is_library_call(choice: Any) -> bool:
    """Whether a candidate calls a library, such as ATen, with arguments that can be read."""
    return kind_of_choice(choice) == "ExternKernel" and isinstance(getattr(inner_choice(choice), "kwargs", None), dict)


# Settings.


def _list_settings(torch: Any, op: str, is_on_gpu: bool) -> list[str]:
    """Return the settings that decide which candidates Inductor offers, how a library computes or how Triton compiles.

    A setting is left out if it has its default, or if it does not matter: C++ settings on a GPU, Triton's settings on a
    CPU, or switches for convolutions in a product.

    :param op: the operation, for example ``"mm"``.
    """
    config = torch._inductor.config
    settings = _list_unusual_backends(config, op, is_on_gpu)
    settings += list_changed(config, _DEFAULT_SETTINGS)
    settings += product_settings(torch)
    if is_on_gpu:
        settings += list_triton_settings()
    else:
        settings += _list_changed_cpp_settings(config)
    if _is_convolution(op):
        settings += list_changed(torch, _DEFAULT_CONVOLUTION_SWITCHES)
    return settings


def product_settings(torch: Any) -> list[str]:
    """Return the switches that decide how a library multiplies matrices, if they differ from their defaults."""
    settings = []
    if torch.are_deterministic_algorithms_enabled():
        settings.append("deterministic algorithms")
    find_library = getattr(getattr(torch, "_C", None), "_get_blas_preferred_backend", None)
    if find_library is not None:
        library = str(getattr(find_library(), "name", ""))
        if library not in _DEFAULT_LIBRARIES:
            settings.append(f"blas={library}")
    return settings + list_changed(torch, _DEFAULT_PRODUCT_SWITCHES)


def list_changed(owner: Any, defaults: dict[str, Any]) -> list[str]:
    """Return the settings that differ from their defaults, for example ``"triton.num_decompose_k_splits=3"``.

    :param defaults: the default of each setting, by its path from the owner.
    """
    changed = []
    for path, default in defaults.items():
        try:
            value = attrgetter(path)(owner)
        except (AttributeError, RuntimeError):  # this version has no such setting, or cannot read it
            continue
        if value != default:
            changed.append(f"{path.removeprefix('backends.')}={value}")
    return changed


def _list_changed_cpp_settings(config: Any) -> list[str]:
    """Return the settings of generated C++ that differ from their defaults, for example ``"cpp.simdlen=1"``."""
    changed = []
    for name, entry in sorted(config._config.items()):
        if not name.startswith("cpp."):
            continue
        value = attrgetter(name)(config)
        if value != entry.default:
            changed.append(f"{name}={value}")
    return changed


def _is_convolution(op: str) -> bool:
    """Whether an operation is a convolution, for example ``"convolution"``."""
    return op.startswith("conv")


def _list_unusual_backends(config: Any, op: str, is_on_gpu: bool) -> list[str]:
    """Return the setting of the backends, if it is unusual: ``["max_autotune_gemm_backends=ATEN"]``.

    The setting is unusual if the user added or left out a backend that can compute on the device.
    """
    name = "max_autotune_gemm_backends"
    if _is_convolution(op):
        name = "max_autotune_conv_backends"
    backends = {backend.strip().upper() for backend in str(getattr(config, name, "")).split(",")}
    backends.discard("")
    # A backend without candidates on this device does not count.
    if is_on_gpu:
        usual_backends = {"ATEN", "TRITON"}
        backends.discard("CPP")
    else:
        usual_backends = {"ATEN", "CPP"}
        backends.discard("TRITON")
    if backends == usual_backends:
        return []
    return [f"{name}={','.join(sorted(backends))}"]


# Library calls and their tensors.


def _list_arguments(calls: Sequence[Any]) -> list[Value]:
    """Return the arguments of library calls without their inputs, for example ``stride=(2, 2)`` of a convolution.

    Several library calls may compute the same operation, with different values of an argument. The key then has all
    these values as one text. Arguments that are absent, off or usual are left out.
    """
    values_by_name: dict[str, set[Any]] = {}
    for call in calls:
        for name, value in call.kwargs.items():
            values = values_by_name.setdefault(name, set())
            values.add(_scalar_or_text(name, value))
    arguments = []
    for name, values in sorted(values_by_name.items()):
        joined_value = _join_values(values)
        is_off = joined_value is None or joined_value is False
        if not is_off and joined_value != _USUAL_ARGUMENTS.get(name):
            arguments.append(Value(name, joined_value))
    return arguments


def _join_values(values: set[Any]) -> Any:
    """Return the only value of an argument. If the argument has several values, return them as text.

    None and False mean "off". They are left out if another value remains: ``{False, "fp32"}`` gives ``"fp32"``, and
    ``{1, 2}`` gives ``"1, 2"``.
    """
    if len(values) > 1:
        values = values - {None, False}
    if len(values) == 1:
        [only_value] = values
        return only_value
    return ", ".join(sorted(map(str, values)))


def _scalar_or_text(name: str, value: Any) -> Any:
    """Return a scalar as it is, and the text of any other value: ``torch.float16`` gives ``"float16"``."""
    with suppress(UncacheableError):
        return plain_value(name, value).value
    return without_addresses(str(value)).removeprefix("torch.")


class _SymbolNames:
    """Gives symbols the numbers 0, 1, … in the order in which they appear.

    torch's own numbers, such as the 77 of ``s77``, may change from run to run.
    """

    def __init__(self) -> None:
        self._new_names: dict[str, str] = {}

    def rename(self, match: re.Match[str]) -> str:
        """Return the new name of a symbol: ``s0`` for the first symbol ``s77``, and again for each later ``s77``."""
        return self._new_names.setdefault(match.group(), f"{match.group(1)}{len(self._new_names)}")


def _is_symbolic(numbers: Sequence[Any]) -> bool:
    """Whether one of the sizes or strides is known only when the graph is called."""
    return any(getattr(number, "free_symbols", ()) for number in numbers)


def _symbolic_sizes_text(choice: Any) -> str:
    """Return the sizes and strides of the inputs; an empty text if no size or stride is symbolic.

    Example: ``[s0, 64] strides [64, 1], [64, 32] strides [32, 1]``.
    """
    texts = []
    has_symbols = False
    for node in choice.input_nodes:
        sizes = list(node.get_size())
        strides = list(node.get_stride())
        texts.append(f"{sizes} strides {strides}")
        if _is_symbolic([*sizes, *strides]):
            has_symbols = True
    if not has_symbols:
        return ""
    return _SYMBOL.sub(_SymbolNames().rename, ", ".join(texts))


def _list_unusual_tensors(torch: Any, choice: Any, symbolic_sizes: str) -> list[Value]:
    """Return the values of the key that describe unusual inputs or results. Nearly every product has none of them.

    :param symbolic_sizes: the text of :func:`_symbolic_sizes_text`.
    """
    text_by_name = {
        "sizes": symbolic_sizes,
        "output": _output_text(choice),
        "unaligned": _unaligned_text(torch, choice),
    }
    return [Value(name, text) for name, text in text_by_name.items() if text]


def _output_text(choice: Any) -> str:
    """Return what is unusual in the result of an operation; an empty text for the usual result.

    The dtype is unusual if an input has another dtype: ``float32``. The layout is unusual if the result has gaps or
    another order of dimensions, and then the sizes and strides are in the text: ``[8, 4] strides [1, 8]``. Both are
    ``float32[8, 4] strides [1, 8]``.
    """
    layout = choice.layout
    dtype_text = ""
    if any(node.get_dtype() != layout.dtype for node in choice.input_nodes):
        dtype_text = str(layout.dtype).removeprefix("torch.")
    # With symbolic sizes, the key has the sizes of the inputs already.
    if _is_symbolic([*layout.size, *layout.stride]):
        return dtype_text
    contiguous = contiguous_strides(list(map(int, layout.size)))
    if _list_text(layout.stride) == _list_text(contiguous):
        return dtype_text
    return f"{dtype_text}{_list_text(layout.size)} strides {_list_text(layout.stride)}"


def _list_text(numbers: Sequence[Any]) -> str:
    """Return sizes or strides as text: ``"[8, 4]"``."""
    return f"[{', '.join(map(str, numbers))}]"


def _unaligned_text(torch: Any, choice: Any) -> str:
    """Return the numbers of the inputs that are not aligned, for example ``"0, 1"``.

    The text is empty on a CPU: only templates for a GPU assume an alignment of their inputs.
    """
    if choice.layout.device.type == "cpu":
        return ""
    unaligned = getattr(torch._inductor.virtualized.V.graph, "unaligned_buffers", ())
    numbers = [str(number) for number, node in enumerate(choice.input_nodes) if node.get_name() in unaligned]
    return ", ".join(numbers)


def _digest_of_codes(choices: Sequence[Any]) -> str:
    """Return the digest of the code of all candidates. The order of the candidates does not count."""
    return digest("\0".join(sorted(map(_find_code, choices))))


def _find_code(choice: Any) -> str:
    """Return the code of a Triton template without its place; for any other candidate, Inductor's key of the candidate.

    The place is text that depends on the GPU's index and on the caches.
    """
    request = getattr(inner_choice(choice), "bmreq", None)
    try:
        return without_place(Path(request.module_path).read_text(encoding="utf-8"))  # type: ignore[union-attr]
    except (AttributeError, TypeError, OSError, ValueError):
        return str(choice.hash_key())
