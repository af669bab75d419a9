"""What Inductor's problems are called, and what makes two of them the same.

The numbering of kernels, the index of a device, cache folders and cache switches change the text that Inductor
generates, and not the problem. Shapes, dtypes and the body of a kernel do change it.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Device, Value, Versions
from pytest_autotune.tuners.shared.code_text import code_text
from pytest_autotune.tuners.shared.library import list_versions
from pytest_autotune.tuners.shared.source_digest import digest

#: The settings in ``inductor_meta`` that decide which candidates there are and how they are searched: those
#: that are off unless a suite sets them, which may leave them on for the tests that follow; and the others.
_SWITCHES = (
    "are_deterministic_algorithms_enabled",
    "batch_invariant",
    "coordinate_descent_check_all_directions",
    "coordinate_descent_tuning",
    "deterministic",
    "force_filter_reduction_configs",
    "max_autotune",
    "max_autotune_pointwise",
)
_SEARCH_SETTINGS = (
    "autotune_pointwise",
    "combo_tuning_groups",
    "coordinate_descent_search_radius",
    "dynamic_scale_rblock",
    "min_split_scan_rblock",
    "spill_threshold",
    # Of kernels that few graphs have: what bounds their search, and where they are launched.
    "RSPLIT_SIZE",
    "combo_coordesc_field_limits",
    "combo_warp_stage_candidates",
    "incremental_autotune",
    "max_persistent_rblock",
    "min_rblock",
    "min_xblock",
    "native_matmul_persistent_rblock",
    "precomputed_grids",
    "tma_min_block_sizes",
)
#: Settings that are noted where they are not what Inductor sets by itself.
_USUAL = {"dynamic_disable_pipelining": True, "mix_order_reduction_allow_multi_stages": True}
_CACHE_SWITCHES = "autotune_local_cache|autotune_remote_cache|backend_hash|force_disable_caches|store_cubin"
_SIZE = re.compile(r"^\s*(\w*numel)\s*=\s*(\d+)$", re.MULTILINE)
_NUMBER = re.compile(r"_\d+$")
_NAME = re.compile(r"^def [^(]+\(")
_MEASURED = re.compile(r"(\[.*\])((?::\w+=\w+)+)")


def versions() -> Versions:
    """The versions that a choice of Inductor may depend on."""
    return list_versions("torch", "triton")


def device_of(kind: str, index: int | None) -> Device:
    """The device that torch knows by this kind and index; of a CPU, with as many threads as torch uses."""
    torch: Any = sys.modules["torch"]
    if kind == "cpu":
        return devices.cpu(torch.get_num_threads())
    if kind in ("cuda", "hip"):
        return devices.gpu(torch.cuda.current_device() if index is None else index)
    return devices.current_gpu() or Device(kind, "")


def kernel_name(autotuner: Any) -> str:
    """The name of a generated kernel without its number in the graph."""
    return _NUMBER.sub("", str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__))


def is_placeholder(autotuner: Any) -> bool:
    """Whether the kernel was made only to be measured, for a decision about fusion."""
    return str(autotuner.inductor_meta.get("kernel_name", "")).startswith("Placeholder.")


def kernel_key(autotuner: Any, list_digest: str) -> tuple[Value, ...]:
    """The key of a kernel: its code, how candidates of this list are searched for, and its sizes, for readers."""
    meta = autotuner.inductor_meta
    noted = [name for name in _SEARCH_SETTINGS if meta.get(name)]
    noted += [name for name, usual in _USUAL.items() if meta.get(name, usual) != usual]
    search = [list_digest, *(f"{name}={_plain(meta[name])}" for name in noted)]
    key = [
        Value("code", _code_digest(autotuner), "digest"),
        Value("search", digest("\n".join(search)), "digest"),
        Value("settings", ", ".join(name for name in _SWITCHES if meta.get(name)) or "default", "settings"),
    ]
    sizes = dict(_SIZE.findall(autotuner.fn.src))
    return (*key, *(Value(name, int(size)) for name, size in sizes.items() if name != "rnumel"))


def dtypes(autotuner: Any) -> str:
    """The dtypes of a kernel's tensors, in the order of its arguments: ``"fp32, bf16"``."""
    signature: Mapping[str, Any] = autotuner.triton_meta.get("signature") or {}
    pointers = (str(kind)[1:] for kind in signature.values() if str(kind).startswith("*"))
    return ", ".join(dict.fromkeys(pointers))


def _code_digest(autotuner: Any) -> str:
    meta = {name: value for name, value in autotuner.triton_meta.items() if name not in ("device", "device_type")}
    parts = [
        str(getattr(autotuner.heuristic_type, "name", autotuner.heuristic_type)),
        str(autotuner.size_hints),
        str(autotuner.inductor_meta.get("grid_type")),
        *(f"{name}={_plain(value)}" for name, value in sorted(meta.items())),
        _tokens(_NAME.sub("def kernel(", autotuner.fn.src.strip(), count=1)),
        *_beside(autotuner),
    ]
    return digest("\0".join(parts))


def _plain(value: Any) -> str:
    """A text without addresses, which are others in every process."""
    if isinstance(value, Mapping):
        return repr(sorted((str(name), _plain(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)) and any(hasattr(part, "kwargs") or isinstance(part, Mapping) for part in value):
        return repr([_plain(part) for part in value])
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _beside(autotuner: Any) -> Iterator[str]:
    """The helper functions and constants that stand beside a kernel in its module."""
    try:
        source = Path(autotuner.filename or "").read_text(encoding="utf-8")
        module = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    for node in module.body:
        is_helper = isinstance(node, ast.FunctionDef) and node.name != autotuner.fn.__name__
        if is_helper or isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield _tokens(ast.get_source_segment(source, node) or "")


def _tokens(source: str) -> str:
    try:
        return code_text(textwrap.dedent(source))
    except (SyntaxError, tokenize.TokenError):
        return source


def measured_module_digest(source: str) -> str:
    """The digest of a module that is made only to be measured, wherever it is measured."""
    return digest(_tokens(without_place(source)))


def without_place(source: str) -> str:
    """A generated module without what depends on where it is compiled and kept."""
    source = re.sub(r"DeviceProperties\([^)]*\)", "", source)
    source = re.sub(rf"'(?:{_CACHE_SWITCHES})': [^,}}]+,? ?", "", source)
    source = re.sub(r"\b(cuda|hip|xpu):\d+", r"\1", source)
    source = re.sub(r"\b(_DeviceGuard|set_device|get_raw_stream)\(\d+\)", r"\1()", source)
    return re.sub(r"\b((?:raw_)?stream)\d+\b", r"\1", source)


def inputs_key(inputs: str) -> list[Value]:
    """What the inputs of an operation put into the key: their text, and how candidates are measured.

    :param inputs: Inductor's own key of them. Since torch 2.15 it ends in the way of measuring, which is
        left out where it is the one of every torch before.
    """
    found = _MEASURED.fullmatch(inputs)
    tensors, ways = found.groups() if found else (inputs, "")
    unusual = [way for way in ways.split(":") if way not in ("", "benchmark_policy=eager")]
    key = [Value("inputs", inputs_text(tensors))]
    return [*key, Value("measuring", ", ".join(unusual))] if unusual else key


def inputs_text(inputs: str) -> str:
    """The inputs of an operation for readers: ``cpu float32[8, 4] strides [1, 8]``; what is unknown, as it is."""
    try:
        tensors = ast.literal_eval(inputs)
        return ", ".join(_tensor_text(tensor) for tensor in tensors)
    except (ValueError, SyntaxError, TypeError, IndexError):
        return inputs


def _tensor_text(tensor: Sequence[Any]) -> str:
    kind, dtype, *numbers, offset = tensor
    half, odd = divmod(len(numbers), 2)
    if odd:
        raise ValueError("sizes and strides do not go together")
    sizes, strides = numbers[:half], numbers[half:]
    laid_out = "" if strides == contiguous(sizes) else f" strides {strides}"
    return f"{kind} {dtype.removeprefix('torch.')}{sizes}{laid_out}" + (f" offset {offset}" if offset else "")


def contiguous(sizes: Sequence[Any]) -> list[Any]:
    """The strides of a tensor of these sizes that has no gaps; of those left of a symbol, -1."""
    strides, expected = [], 1
    for size in reversed(sizes):
        strides.append(expected)
        expected = expected * size if isinstance(size, int) and expected >= 0 else -1
    return strides[::-1]
