"""``--to=table``: JSON as frameworks read it, a file for each static key and device, with a row for each value of one
number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_autotune.cache.distance import LaunchValue, launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.production.choices import by_version, chosen, selected

#: A name in braces, or a part in brackets that is left out where a name in it has no value.
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_NAME = re.compile(r"\{([^{}]+)\}")
#: What Triton's candidates have beside, and no table.
_USUAL = {"num_ctas": 1}


@dataclass(frozen=True)
class TableLayout:
    """How a framework's tables look.

    :param file: a path with ``{names}`` of the key, ``{device}`` and ``{triton}``; parts in brackets may be left out.
    :param row: the name of the number that rows are found by.
    :param values: the params of a row, in order; the others follow where ``has_others``.
    :param words: how a part of the path is written, by its name.
    :param version_key: under which the version of Triton stands beside the rows; empty where that is no part of it.
    """

    file: str
    row: str
    values: tuple[str, ...] = ()
    words: Mapping[str, Callable[[LaunchValue], str]] = field(default_factory=dict)
    version_key: str = ""
    has_others: bool = True


def _name(value: LaunchValue) -> str:
    """A device as file names spell it."""
    return re.sub(r"[ /]", "_", str(value))


def _name_in_vllm(value: LaunchValue) -> str:
    # All of that family share tables: it is looked for under this name.
    return "NVIDIA_H200" if "H200" in _name(value).split("_") else _name(value)


def _moe_dtype(value: LaunchValue) -> str:
    """A dtype as both spell it: kinds of quantisation by name, float32, and nothing for what has 16 bits."""
    return {"fp16": "", "bf16": "", "float16": "", "bfloat16": "", "fp32": "float32"}.get(str(value), str(value or ""))


def _block_shape(separator: str) -> Callable[[LaunchValue], str]:
    def words(value: LaunchValue) -> str:
        sizes = re.findall(r"\d+", str(value))
        return f"[{separator.join(sizes)}]" if len(sizes) == 2 and all(map(int, sizes)) else ""

    return words


_MOE = "E={E},N={N},device_name={device}[,dtype={dtype}][,block_shape={block_shape}]"
_MOE_VALUES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
PRESETS: Mapping[str, TableLayout] = {
    # As vLLM's get_moe_configs() looks for them, below "configs" or VLLM_TUNED_CONFIG_FOLDER.
    "vllm": TableLayout(
        f"{_MOE}.json",
        "M",
        _MOE_VALUES,
        {"device": _name_in_vllm, "dtype": _moe_dtype, "block_shape": _block_shape(",")},
        "triton_version",
    ),
    # As SGLang's looks for them, below SGLANG_MOE_CONFIG_DIR. Every key of a file is a row.
    "sglang": TableLayout(
        f"configs/triton_{{triton}}/{_MOE}[,per_channel_quant={{per_channel_quant}}].json",
        "M",
        _MOE_VALUES,
        {
            "device": _name,
            "dtype": _moe_dtype,
            "block_shape": _block_shape(", "),
            "per_channel_quant": lambda value: "True" if value in (True, "True") else "",
        },
    ),
}


def tables(cache: Cache, layout: TableLayout, kernels: Sequence[str], devices: Sequence[str]) -> dict[str, str]:
    """The files, by their paths below the folder; the same bytes for the same cache.

    :raises CacheError: where an entry fits no file, or two choices fit one row.
    """
    entries, ambiguous = chosen(selected(cache, kernels, devices))
    if ambiguous:
        raise CacheError(
            str(ambiguous[0].problem), "has several choices", "name the kernel or device (--kernel, --device)"
        )
    found: dict[str, dict[int, dict[str, LaunchValue]]] = {}
    versions: dict[str, set[str]] = {}
    for entry in entries:
        path, row, values = _placed(entry, layout)
        rows = found.setdefault(path, {})
        if rows.setdefault(row, values) != values:
            what = f"two choices for {layout.row}={row} in {path}, such as that of {entry.problem}"
            raise CacheError("--to=table", what, "name in --file= what tells them apart, or one kernel with --kernel=")
        versions.setdefault(path, set()).add(_triton(entry))
    if not found:
        raise CacheError("--to=table", "no entry with a choice to write", "is it the right cache, or glob?")
    return {path: _text(rows, layout, versions[path]) for path, rows in sorted(found.items())}


def is_table(text: str) -> bool:
    """Whether a text is a table as :func:`tables` writes them."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(rows, dict) and all(re.fullmatch(r"-?\d+|triton_version", row) for row in rows)


def _placed(entry: Entry, layout: TableLayout) -> tuple[str, int, dict[str, LaunchValue]]:
    """The path of an entry's file, its row, and what stands there."""
    assert entry.choice is not None
    key, params = launch_key(entry.problem.key), launch_key(entry.choice.params)
    # Tables do not tell torch.float16 from that of Triton.
    key |= {value.name: str(key[value.name]).rpartition(".")[2] for value in entry.problem.key if value.type == "dtype"}
    row = key.get(layout.row)
    if not isinstance(row, int) or isinstance(row, bool):
        raise CacheError(str(entry.problem), f"its key has no integer {layout.row}, by which rows are found")
    values = {name: params.pop(name) for name in layout.values if name in params}
    if len(values) < len(layout.values):
        lacking = next(name for name in layout.values if name not in values)
        raise CacheError(str(entry.problem), f"its choice has no {lacking}", f"it has {', '.join([*values, *params])}")
    rest = {name: value for name, value in params.items() if _USUAL.get(name) != value}
    named = {**key, "device": entry.problem.device.name, "triton": _triton(entry).replace(".", "_")}
    path = "".join(_path(entry, layout, named))
    # A value may be empty, and so leave a part of the path empty, or make it absolute.
    if not {"", ".."}.isdisjoint(path.split("/")):
        found = f"its file would be {path!r}, with a part that names no file below --output"
        raise CacheError(str(entry.problem), found, "name in --file= what each of its parts has a value for")
    return path, row, values | (rest if layout.has_others else {})


def _path(entry: Entry, layout: TableLayout, named: Mapping[str, LaunchValue]) -> Iterator[str]:
    def words(match: re.Match[str]) -> str:
        name = match[1]
        if name == "triton" and not named[name]:
            raise CacheError(
                str(entry.problem), "does not say with which Triton it was tuned", "write --file= without it"
            )
        text = layout.words.get(name, _name)(named[name])
        if re.search(r"[/\\\0]|^\.*$", text) and text:
            raise CacheError(str(entry.problem), f"{name} is {text!r}, which is no part of a file's name")
        return text

    for optional, fixed in _PART.findall(layout.file):
        names = _NAME.findall(optional or fixed)
        if lacking := [name for name in names if named.get(name) is None]:
            if optional:
                continue
            has = ", ".join(named)
            raise CacheError(
                str(entry.problem), f"its key has no {lacking[0]}, which is a part of --file", f"it has {has}"
            )
        if optional and not all(layout.words.get(name, _name)(named[name]) for name in names):
            continue
        yield _NAME.sub(words, optional or fixed)


def _text(rows: Mapping[int, Mapping[str, LaunchValue]], layout: TableLayout, versions: set[str]) -> str:
    plain: dict[str, object] = {}
    if layout.version_key and (version := max(versions, key=by_version)):
        plain[layout.version_key] = version
    plain.update((str(row), rows[row]) for row in sorted(rows))
    return json.dumps(plain, indent=4) + "\n"


def _triton(entry: Entry) -> str:
    return dict(entry.versions.libraries).get("triton", "")
