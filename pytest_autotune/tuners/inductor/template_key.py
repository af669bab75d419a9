"""What makes two decisions among templates the same: all that Inductor's own cache tells apart.

Inductor finds times by the operation, its inputs, and the digest of every candidate's code. That digest changes with
every torch, so it is in the key only where no call of a library, by its arguments, and no sizes say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value, plain_value
from pytest_autotune.tuners.inductor.identity import contiguous, inputs_key, without_place
from pytest_autotune.tuners.shared.source_digest import digest

#: Arguments of library calls that are left out where they are this: those of nearly every product.
_USUAL_ARGUMENTS = {"alpha": 1, "beta": 1}
#: Settings of Inductor that decide which candidates there are -> what they are where nobody sets them.
_USUAL_SETTINGS = {
    "max_autotune_allow_flexible_layouts": False,
    "max_autotune_gemm_search_space": "DEFAULT",
    "triton.autotune_cublasLt": True,
    "triton.decompose_k_threshold": 32,
    "triton.enable_persistent_tma_matmul": False,
    "triton.enable_template_tma_store": False,
    "triton.num_decompose_k_splits": 10,
}
#: Switches of torch that decide how a library computes -> what they are where nobody sets them.
_USUAL_PRODUCTS = {
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_fp16_accumulation": False,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.mkldnn.enabled": True,
}
_USUAL_LIBRARIES = ("", "Default", "Cublas")
_USUAL_CONVOLUTIONS = {
    "backends.cudnn.benchmark": False,
    "backends.cudnn.conv.fp32_precision": "tf32",
    "backends.cudnn.deterministic": False,
    "backends.cudnn.enabled": True,
}
_SYMBOL = re.compile(r"\b([a-z])(\d+)\b")


def template_key(torch: Any, choices: Sequence[Any], op: str, inputs: str, hint: int | None) -> tuple[Value, ...]:
    """The key of one decision; ``hint`` is the size that is compiled for, where there are several."""
    key = [*inputs_key(inputs), Value("precision", torch.get_float32_matmul_precision())]
    if hint is not None:
        key.append(plain_value("hint", hint))
    calls = [inner(choice) for choice in choices if is_library_call(choice)]
    on_gpu = choices[0].layout.device.type != "cpu"
    sizes = _symbolic_sizes(choices[0])
    key += [Value(name, value) for name, value in _arguments(calls)]
    key += [Value(name, text) for name, text in (("sizes", sizes), *_unusual_tensors(torch, choices[0])) if text]
    if not calls or (sizes and on_gpu):  # how sizes divide is known to the code alone
        key.append(Value("code", digest("\0".join(sorted(map(_code, choices)))), "digest"))
    settings = [*_backends(torch._inductor.config, op, on_gpu), *unusual(torch._inductor.config, _USUAL_SETTINGS)]
    settings += product_settings(torch)
    if not on_gpu:
        settings += _cpp_settings(torch._inductor.config)
    if _is_convolution(op):
        settings += unusual(torch, _USUAL_CONVOLUTIONS)
    if settings:
        key.append(Value("settings", ", ".join(settings), "settings"))
    return tuple(key)


def product_settings(torch: Any) -> list[str]:
    """The switches that decide how a library multiplies matrices, where they are not what nearly everybody has."""
    deterministic = ["deterministic algorithms"] if torch.are_deterministic_algorithms_enabled() else []
    preferred = getattr(getattr(torch, "_C", None), "_get_blas_preferred_backend", None)
    library = str(getattr(preferred(), "name", "")) if preferred is not None else ""
    return [
        *deterministic,
        *([f"blas={library}"] if library not in _USUAL_LIBRARIES else []),
        *unusual(torch, _USUAL_PRODUCTS),
    ]


def unusual(owner: Any, usual: dict[str, Any]) -> Iterator[str]:
    """Those of some settings that are set to something else: ``"triton.num_decompose_k_splits=3"``."""
    for path, default in usual.items():
        try:
            value = attrgetter(path)(owner)
        except (AttributeError, RuntimeError):  # this version has no such setting, or cannot say
            continue
        if value != default:
            yield f"{path.removeprefix('backends.')}={value}"


def _cpp_settings(config: Any) -> Iterator[str]:
    """The settings of generated C++ that are set to something else than their default: ``"cpp.simdlen=1"``."""
    for name, entry in sorted(config._config.items()):
        if name.startswith("cpp.") and (value := attrgetter(name)(config)) != entry.default:
            yield f"{name}={value}"


def inner(choice: Any) -> Any:
    """The candidate inside one that only prepares its inputs."""
    return getattr(choice, "_wrapped", choice)


def kind(choice: Any) -> str:
    """What a candidate is: ``"ExternKernel"``, ``"TritonTemplate"``."""
    return type(inner(choice)).__name__.removesuffix("Caller")


def is_library_call(choice: Any) -> bool:
    """Whether a candidate calls a library, such as ATen, with arguments that can be read."""
    return kind(choice) == "ExternKernel" and isinstance(getattr(inner(choice), "kwargs", None), dict)


def _arguments(calls: Sequence[Any]) -> Iterator[tuple[str, bool | int | float | str]]:
    """The arguments of library calls besides their inputs, each once."""
    merged: dict[str, set[Any]] = {}
    for call in calls:
        for name, value in call.kwargs.items():
            merged.setdefault(name, set()).add(_readable(name, value))
    for name, values in sorted(merged.items()):
        given = values - {None, False} if len(values) > 1 else values
        value = next(iter(given)) if len(given) == 1 else ", ".join(sorted(map(str, given)))
        if value is not None and value is not False and value != _USUAL_ARGUMENTS.get(name):
            yield name, value


def _readable(name: str, value: Any) -> Any:
    with suppress(UncacheableError):
        return plain_value(name, value).value
    return re.sub(r" at 0x[0-9a-f]+", "", str(value)).removeprefix("torch.")


def _symbolic_sizes(choice: Any) -> str:
    """The sizes and strides of the inputs where some are known only when the graph is called; else nothing."""
    shapes = [(list(node.get_size()), list(node.get_stride())) for node in choice.input_nodes]
    if not any(getattr(number, "free_symbols", ()) for shape in shapes for numbers in shape for number in numbers):
        return ""
    text = ", ".join(f"{sizes} strides {strides}" for sizes, strides in shapes)
    names: dict[str, str] = {}
    return _SYMBOL.sub(lambda found: names.setdefault(found.group(), f"{found.group(1)}{len(names)}"), text)


def _unusual_tensors(torch: Any, choice: Any) -> Iterator[tuple[str, str]]:
    """What is noted of the inputs and the result where it is not what nearly every product has."""
    layout = choice.layout
    sizes, strides = [str(size) for size in layout.size], [str(stride) for stride in layout.stride]
    symbolic = any(getattr(number, "free_symbols", ()) for number in (*layout.size, *layout.stride))
    dtype = str(layout.dtype).removeprefix("torch.")
    nodes = choice.input_nodes
    text = "" if all(node.get_dtype() == layout.dtype for node in nodes) else dtype
    if not symbolic and strides != list(map(str, contiguous(list(map(int, layout.size))))):
        text += f"[{', '.join(sizes)}] strides [{', '.join(strides)}]"
    yield "output", text
    on_gpu = layout.device.type != "cpu"  # elsewhere alignment is not assumed of any
    unaligned = getattr(torch._inductor.virtualized.V.graph, "unaligned_buffers", ()) if on_gpu else ()
    yield "unaligned", ", ".join(str(number) for number, node in enumerate(nodes) if node.get_name() in unaligned)


def _code(choice: Any) -> str:
    """The code of a Triton template wherever it runs, or else what Inductor knows a candidate by."""
    request = getattr(inner(choice), "bmreq", None)
    try:
        return without_place(Path(request.module_path).read_text(encoding="utf-8"))  # type: ignore[union-attr]
    except (AttributeError, TypeError, OSError, ValueError):
        return str(choice.hash_key())


def _is_convolution(op: str) -> bool:
    return op.startswith("conv")


def _backends(config: Any, op: str, on_gpu: bool) -> Iterator[str]:
    name = "max_autotune_conv_backends" if _is_convolution(op) else "max_autotune_gemm_backends"
    wanted = {backend.strip().upper() for backend in str(getattr(config, name, "")).split(",")} - {""}
    # A GPU has no candidates in C++, and a CPU none in Triton.
    usual, elsewhere = ({"ATEN", "TRITON"}, {"CPP"}) if on_gpu else ({"ATEN", "CPP"}, {"TRITON"})
    if wanted - elsewhere != usual:
        yield f"{name}={','.join(sorted(wanted - elsewhere))}"
