"""Computes the names and keys of Inductor's problems.

A problem depends on shapes, dtypes and the body of a kernel. Inductor's generated text also depends on the number of
the kernel, the index of the device, cache folders and cache switches. The functions here leave these parts out, so that
equal kernels have equal keys. Every text here is part of committed caches: a change makes their entries miss. The keys
of template decisions are in :mod:`.template_key`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Device, Value, Versions
from pytest_autotune.tuners.source.code_text import syntax_text
from pytest_autotune.tuners.source.compiled_code import parse
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import digest
from pytest_autotune.tuners.triton.internals import compiler

#: Tokens without a text of their own, or with a text that depends on the layout, and the words in their place.
_LAYOUT_WORDS = {tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>", tokenize.NEWLINE: "<newline>"}
_OMITTED_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
#: Settings in ``inductor_meta`` that decide which candidates Inductor offers and how it searches. The key names the
#: settings that are on, because a reader has to see them: a test may leave such a setting on for the tests after it.
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
#: Further settings that decide about the candidates and the search. They are part of the digest ``search``.
_SEARCH_SETTINGS = (
    "autotune_pointwise",
    "combo_tuning_groups",
    "coordinate_descent_search_radius",
    "dynamic_scale_rblock",
    "min_split_scan_rblock",
    "spill_threshold",
    # Few kernels have the following settings. They limit the search, or are the grids of the launches.
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
#: Search settings that are on by default. They are part of the digest only if they are off.
_DEFAULT_SETTINGS = {"dynamic_disable_pipelining": True, "mix_order_reduction_allow_multi_stages": True}
#: Settings of Inductor's caches, which a generated module repeats.
_CACHE_SWITCHES = "autotune_local_cache|autotune_remote_cache|backend_hash|force_disable_caches|store_cubin"
#: A line of a kernel's source that assigns a size: ``xnumel = 4096``.
_SIZE = re.compile(r"^\s*(\w*numel)\s*=\s*(\d+)$", re.MULTILINE)
#: The number at the end of a kernel's name, as in ``triton_poi_fused_add_3``.
_KERNEL_NUMBER = re.compile(r"_\d+$")
_FUNCTION_NAME = re.compile(r"^def [^(]+\(")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
#: Inductor's key of an operation's inputs since torch 2.15: ``[…]:benchmark_policy=eager``.
_INPUTS_AND_POLICY = re.compile(r"(\[.*\])((?::\w+=\w+)+)")
#: The way of measuring of every torch before 2.15.
_DEFAULT_POLICY = "benchmark_policy=eager"


def versions() -> Versions:
    """Return the versions that a choice of Inductor may depend on."""
    return list_versions("torch", "triton")


def device_of(kind: str, index: int | None) -> Device:
    """Return the device of a cache for a device of torch.

    :param kind: for example ``"cuda"``. The device of a CPU has the number of threads that torch uses.
    :param index: None for the current GPU.
    """
    torch: Any = sys.modules["torch"]
    if kind == "cpu":
        return devices.cpu(torch.get_num_threads())
    if kind in ("cuda", "hip"):
        if index is None:
            index = torch.cuda.current_device()
        return devices.torch_gpu(index)
    # Any other kind, such as "xpu". If the current GPU is unknown, the kind is the only name of the device.
    return devices.current_gpu() or Device(kind, "")


def list_triton_settings() -> list[str]:
    """Return the settings of Triton that change the compiled code and differ from their defaults, as ``name=value``.

    The list is empty if Triton is not imported.
    """
    if compiler.find_module("_C.libtriton") is None:
        return []
    return list(compiler.list_changed_settings())


# Generated kernels.


def kernel_name(autotuner: Any) -> str:
    """Return the name of a generated kernel without its number in the graph: ``triton_poi_fused_add``."""
    name = autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__
    return _KERNEL_NUMBER.sub("", str(name))


def is_placeholder(autotuner: Any) -> bool:
    """Whether Inductor made the kernel only to measure it, for a decision about fusion."""
    return str(autotuner.inductor_meta.get("kernel_name", "")).startswith("Placeholder.")


def kernel_key(autotuner: Any, list_digest: str) -> tuple[Value, ...]:
    """Return the key of a kernel: its code, the search for its choice, and its sizes for readers.

    The digest of the code has the sizes already. Example::

        code      <digest>
        search    <digest>
        settings  default
        xnumel    4096

    :param list_digest: the digest of the list of candidates.
    """
    settings = [name for name in _SWITCHES if autotuner.inductor_meta.get(name)]
    settings += list_triton_settings()
    key = [
        Value("code", _code_digest(autotuner), "digest"),
        Value("search", _search_digest(autotuner, list_digest), "digest"),
        Value("settings", ", ".join(settings) or "default", "settings"),
    ]
    # The source has a line for each size: "xnumel = 4096". If it assigns a size twice, the last line counts.
    sizes = dict(_SIZE.findall(autotuner.fn.src))
    for name, size in sizes.items():
        # Inductor computes rnumel from r0_numel, which is in the key.
        if name != "rnumel":
            key.append(Value(name, int(size)))
    return tuple(key)


def dtypes(autotuner: Any) -> str:
    """Return the dtypes of a kernel's tensors, in the order of its arguments: ``"fp32, bf16"``."""
    signature: Mapping[str, Any] = autotuner.triton_meta.get("signature") or {}
    names: list[str] = []
    for kind in map(str, signature.values()):
        name = kind[1:]
        if kind.startswith("*") and name not in names:
            names.append(name)
    return ", ".join(names)


def _search_digest(autotuner: Any, list_digest: str) -> str:
    """Return the digest of the candidates, and of the settings that limit or extend the search."""
    settings = autotuner.inductor_meta
    changed_names = [name for name in _SEARCH_SETTINGS if settings.get(name)]
    for name, default in _DEFAULT_SETTINGS.items():
        if settings.get(name, default) != default:
            changed_names.append(name)
    lines = [list_digest]
    for name in changed_names:
        lines.append(f"{name}={_stable_text(settings[name])}")
    return digest("\n".join(lines))


def _code_digest(autotuner: Any) -> str:
    """Return the digest of all that decides what a kernel computes: its source, its helpers and Triton's signature.

    The name of the kernel and its device are no part of the digest.
    """
    texts = [
        str(getattr(autotuner.heuristic_type, "name", autotuner.heuristic_type)),
        str(autotuner.size_hints),
        str(autotuner.inductor_meta.get("grid_type")),
    ]
    # "signature" in `triton_meta` is a mapping such as {"in_ptr0": "*fp32", "xnumel": "i32"}. "configs" says which
    # arguments are divisible by 16.
    for name, value in sorted(autotuner.triton_meta.items()):
        if name not in ("device", "device_type"):
            texts.append(f"{name}={_stable_text(value)}")
    nameless_source = _FUNCTION_NAME.sub("def kernel(", autotuner.fn.src.strip(), count=1)
    texts.append(_tokens_or_source(nameless_source))
    texts += _list_helpers(autotuner)
    return digest("\0".join(texts))


def _stable_text(value: Any) -> str:
    """Return the text of a value without memory addresses, which differ between processes.

    The text of a mapping does not depend on the order of its keys.
    """
    if isinstance(value, Mapping):
        return repr(sorted((str(name), _stable_text(inner)) for name, inner in value.items()))
    if isinstance(value, (list, tuple)) and any(_needs_own_text(part) for part in value):
        return repr([_stable_text(part) for part in value])
    return without_addresses(str(value))


def _needs_own_text(value: Any) -> bool:
    """Whether a value is a configuration or a mapping, which may contain addresses."""
    return hasattr(value, "kwargs") or isinstance(value, Mapping)


def without_addresses(text: str) -> str:
    """Return the text without memory addresses: ``<function f at 0x7f01>`` becomes ``<function f>``."""
    return _ADDRESS.sub("", text)


def _list_helpers(autotuner: Any) -> list[str]:
    """Return the code of the helper functions, constants and aliases that a kernel's module has besides the kernel.

    The f-strings of the kernel and of the helper functions are in the list, too, because tokens omit f-strings.

    An alias is a user's own name for a function of Triton, as ``act = tl.erf``. Inductor writes an import below the
    kernel for it: ``from triton.language.math import erf as act``. The imports above the kernel are Inductor's own.
    """
    # A kernel without a readable module has no helpers.
    try:
        module_source = Path(autotuner.filename or "").read_text(encoding="utf-8")
        module = parse(module_source)
    except (OSError, SyntaxError, ValueError):
        return []
    helpers = []
    is_below_kernel = False
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            helpers += _list_f_strings(node)
            if node.name == autotuner.fn.__name__:
                is_below_kernel = True
                continue
        is_constant_or_function = isinstance(node, (ast.Assign, ast.AnnAssign, ast.FunctionDef))
        is_alias = isinstance(node, ast.ImportFrom) and is_below_kernel
        if is_constant_or_function or is_alias:
            helpers.append(_tokens_or_source(ast.get_source_segment(module_source, node) or ""))
    return helpers


def _list_f_strings(function: ast.FunctionDef) -> list[str]:
    """Return the texts of the f-strings in a function. Only functions of users have f-strings."""
    return [syntax_text(node) for node in ast.walk(function) if isinstance(node, ast.JoinedStr)]


def _tokens_or_source(source: str) -> str:
    """Return the tokens of source, so that layout and comments do not count; the source itself if it has an error."""
    try:
        return _token_text(textwrap.dedent(source))
    except (SyntaxError, tokenize.TokenError):
        return source


# Generated modules.


def measured_module_digest(source: str) -> str:
    """Return the digest of a module that Inductor made only to measure it."""
    return digest(_tokens_or_source(without_place(source)))


def without_place(source: str) -> str:
    """Return a generated module without the text that depends on the GPU's index and on the caches.

    Example: ``torch.cuda.set_device(1)`` becomes ``torch.cuda.set_device()``, and ``cuda:1`` becomes ``cuda``.
    """
    source = re.sub(r"DeviceProperties\([^)]*\)", "", source)
    source = re.sub(rf"'(?:{_CACHE_SWITCHES})': [^,}}]+,? ?", "", source)
    source = re.sub(r"\b(cuda|hip|xpu):\d+", r"\1", source)
    source = re.sub(r"\b(_DeviceGuard|set_device|get_raw_stream)\(\d+\)", r"\1()", source)
    return re.sub(r"\b((?:raw_)?stream)\d+\b", r"\1", source)


# Inputs of operations.


def inputs_key(inputs: str) -> list[Value]:
    """Return the part of a key that describes an operation's inputs, and the way of measuring if it is unusual.

    :param inputs: Inductor's own key of the inputs: a list of tensors, and since torch 2.15 the way of measuring. An
        example is ``[('cpu', 'torch.float32', 8, 4, 4, 1, 0)]:benchmark_policy=eager``.
    """
    match = _INPUTS_AND_POLICY.fullmatch(inputs)
    if match is None:
        return [Value("inputs", inputs_text(inputs))]
    tensors, policies = match.groups()
    key = [Value("inputs", inputs_text(tensors))]
    # The text of the policies begins with a colon, so the first part is empty.
    unusual_policies = [policy for policy in policies.split(":") if policy not in ("", _DEFAULT_POLICY)]
    if unusual_policies:
        key.append(Value("measuring", ", ".join(unusual_policies)))
    return key


def inputs_text(inputs: str) -> str:
    """Return the inputs of an operation for readers, for example ``cpu float32[8, 4] strides [1, 8]``.

    :param inputs: Inductor's own key of the inputs. It is returned unchanged if its form is unknown.
    """
    try:
        return ", ".join(_tensor_text(tensor) for tensor in ast.literal_eval(inputs))
    except (ValueError, SyntaxError, TypeError, IndexError):
        return inputs


def _tensor_text(tensor: Sequence[Any]) -> str:
    """Describe a tensor for readers.

    Example: ``("cpu", "torch.float32", 8, 4, 1, 8, 0)`` gives ``cpu float32[8, 4] strides [1, 8]``. Strides without
    gaps and an offset of 0 are left out.

    :param tensor: device type, dtype, all sizes, all strides, and the offset.
    :raises ValueError: if the number of strides differs from the number of sizes.
    """
    kind, dtype, *sizes_and_strides, offset = tensor
    rank, remainder = divmod(len(sizes_and_strides), 2)
    if remainder:
        raise ValueError("a tensor has as many strides as sizes")
    sizes, strides = sizes_and_strides[:rank], sizes_and_strides[rank:]
    text = f"{kind} {dtype.removeprefix('torch.')}{sizes}"
    if strides != contiguous_strides(sizes):
        text += f" strides {strides}"
    if offset:
        text += f" offset {offset}"
    return text


def contiguous_strides(sizes: Sequence[Any]) -> list[Any]:
    """Return the strides of a tensor without gaps: ``[8, 4]`` gives ``[4, 1]``.

    A stride that depends on a symbolic size is unknown, and is -1: ``[8, s0]`` gives ``[-1, 1]``.
    """
    strides = []
    stride = 1  # of the last dimension
    for size in reversed(sizes):
        strides.append(stride)
        if isinstance(size, int) and stride != -1:
            stride *= size
        else:
            stride = -1
    strides.reverse()
    return strides


def _token_text(source: str) -> str:
    """Return the tokens of generated source, each in a line: ``x = 1  # one`` gives ``x``, ``=``, ``1``, ``<newline>``.

    f-strings are omitted, because versions of Python divide them into different tokens. Before Python 3.12 an f-string
    is one token of the kind STRING. Since then it is a token FSTRING_START, tokens of its content, and FSTRING_END.
    """
    lines: list[str] = []
    open_f_strings = 0  # f-strings can contain f-strings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            open_f_strings += 1
        is_in_f_string = open_f_strings > 0 or (kind == "STRING" and _is_f_string(token.string))
        if not is_in_f_string and token.type not in _OMITTED_TOKENS:
            lines.append(_LAYOUT_WORDS.get(token.type, token.string))
        if kind.endswith("STRING_END"):
            open_f_strings -= 1
    return "\n".join(lines)


def _is_f_string(literal: str) -> bool:
    """Whether the literal of a string has the prefix of an f-string."""
    quote = literal[-1]
    return "f" in literal[: literal.find(quote)].lower()
