"""``export --to=table``: JSON tables that frameworks read.

There is a file for each device and each set of the key's other values. A file has a row for each value of one number of
the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_autotune.cache.distance import LaunchValue, launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.production.choices import find_triton_version, select_choices, select_entries, version_sort_key

#: A part of a layout's path: optional in brackets, or fixed.
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_NAME = re.compile(r"\{([^{}]+)\}")
#: Values that all of Triton's choices have. Tables leave them out.
_USUAL_VALUES = {"num_ctas": 1}


class Spelling(Protocol):
    """Returns the text of a key's value in the file names of a framework; empty if the framework leaves it out."""

    def __call__(self, value: LaunchValue) -> str: ...


def _spell_name(value: LaunchValue) -> str:
    """Spell a value in a file's name: ``NVIDIA_H200`` for ``NVIDIA H200``."""
    return re.sub(r"[ /]", "_", str(value))


def _spell_vllm_device(value: LaunchValue) -> str:
    # vLLM has one table for all devices of the H200 family, such as "NVIDIA H200 NVL".
    if "H200" in _spell_name(value).split("_"):
        return "NVIDIA_H200"
    return _spell_name(value)


def _spell_moe_dtype(value: LaunchValue) -> str:
    """Spell a dtype: the kinds of quantization by name, float32, and nothing for 16 bits."""
    if value in ("fp16", "bf16", "float16", "bfloat16"):
        return ""
    if value == "fp32":
        return "float32"
    return str(value or "")


def _spell_flag(value: LaunchValue) -> str:
    """Spell a flag: ``True``, or nothing for a flag that is not set."""
    if value in (True, "True"):
        return "True"
    return ""


@dataclass(frozen=True)
class BlockShapeSpelling:
    """Spells a block shape as ``[128,128]``; empty if one of its sizes is 0.

    :param separator: stands between the sizes.
    """

    separator: str

    def __call__(self, value: LaunchValue) -> str:
        sizes = re.findall(r"\d+", str(value))
        if len(sizes) != 2 or not all(map(int, sizes)):
            return ""
        return f"[{self.separator.join(sizes)}]"


@dataclass(frozen=True)
class TableLayout:
    """The layout of a framework's tables.

    :param file: a path with ``{names}`` of the key, ``{device}`` and ``{triton}``. A part in brackets is left out if a
        name in it has no value.
    :param row: the name of the number that rows are found by.
    :param values: the names of a choice's params, in the order of a row.
    :param spellings: the spelling of the parts of the path, by name.
    :param version_key: the key of the version of Triton, beside the rows; empty if a table has no version.
    :param has_other_params: a row has the other params of the choice, too.
    """

    file: str
    row: str
    values: tuple[str, ...] = ()
    spellings: Mapping[str, Spelling] = field(default_factory=dict)
    version_key: str = ""
    has_other_params: bool = True

    def spell(self, name: str, value: LaunchValue) -> str:
        """Return a value of the key as the path has it."""
        return self.spellings.get(name, _spell_name)(value)


_MOE_FILE = "E={E},N={N},device_name={device}[,dtype={dtype}][,block_shape={block_shape}]"
_MOE_VALUES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
PRESETS: Mapping[str, TableLayout] = {
    # vLLM's get_moe_configs() looks for the files in its folder "configs", or in VLLM_TUNED_CONFIG_FOLDER.
    "vllm": TableLayout(
        f"{_MOE_FILE}.json",
        "M",
        _MOE_VALUES,
        {"device": _spell_vllm_device, "dtype": _spell_moe_dtype, "block_shape": BlockShapeSpelling(",")},
        "triton_version",
    ),
    # SGLang's get_moe_configs() looks for them below SGLANG_MOE_CONFIG_DIR. It takes every key of a file for a row.
    "sglang": TableLayout(
        f"configs/triton_{{triton}}/{_MOE_FILE}[,per_channel_quant={{per_channel_quant}}].json",
        "M",
        _MOE_VALUES,
        {
            "device": _spell_name,
            "dtype": _spell_moe_dtype,
            "block_shape": BlockShapeSpelling(", "),
            "per_channel_quant": _spell_flag,
        },
    ),
}


@dataclass
class Table:
    """The content of one file.

    :param rows: the params of the choices, by their rows.
    :param versions: the versions of Triton that the choices were tuned with.
    """

    rows: dict[int, dict[str, LaunchValue]] = field(default_factory=dict)
    versions: set[str] = field(default_factory=set)

    def encode(self, version_key: str) -> str:
        """Return the text of the file.

        :param version_key: see :class:`TableLayout`.
        """
        content: dict[str, object] = {}
        version = max(self.versions, key=version_sort_key)
        if version_key and version:
            content[version_key] = version
        for row in sorted(self.rows):
            content[str(row)] = self.rows[row]
        return json.dumps(content, indent=4) + "\n"


def build_tables(cache: Cache, layout: TableLayout, kernels: Sequence[str], devices: Sequence[str]) -> dict[str, str]:
    """Return the texts of the files, by their paths below the folder; the same bytes for the same cache.

    :param kernels: globs; all kernels if there are none.
    :param devices: globs; all devices if there are none.
    :raises CacheError: if an entry fits no file, or two choices fit one row.
    """
    choices = select_choices(select_entries(cache, kernels, devices))
    if choices.ambiguous:
        problem = choices.ambiguous[0].problem
        raise CacheError(
            str(problem), "has several choices: two kernels share its name, or were pruned differently", "rename one"
        )
    tables: dict[str, Table] = {}
    for entry in choices.entries:
        row = TableRow.build(entry, layout)
        table = tables.setdefault(row.path, Table())
        earlier_values = table.rows.get(row.number)
        if earlier_values is None:
            table.rows[row.number] = row.values
        elif earlier_values != row.values:
            # Two problems have the same row, for example because --file= names a part of the key only.
            place = f"{layout.row}={row.number} in {row.path}"
            event = f"two entries have different choices for {place}, one is {entry.problem}"
            remedy = "add the part of the key in which they differ to --file=, or choose one kernel with --kernel="
            raise CacheError("--to=table", event, remedy)
        table.versions.add(find_triton_version(entry))
    if not tables:
        raise CacheError("--to=table", "found no entry with a choice", "check FILE, --kernel and --device")
    return {path: table.encode(layout.version_key) for path, table in sorted(tables.items())}


def may_replace_table(old_text: str, new_text: str) -> bool:
    """Whether a new table may replace a file: the file is a table, and each of its rows is in the new table, too.

    A table of a framework's own looks like an earlier export. It usually has rows that the cache has no choices for,
    and an export must not lose them.
    """
    try:
        old_rows = json.loads(old_text)
    except (ValueError, RecursionError):
        return False
    if not old_rows or not isinstance(old_rows, dict):
        return False
    new_rows = json.loads(new_text)
    for name, values in old_rows.items():
        if name == "triton_version":
            continue
        if name not in new_rows or not isinstance(values, dict):
            return False
    return True


@dataclass(frozen=True)
class TableRow:
    """The row of one entry, and the file to which the row belongs.

    :param path: the path of the file, below the folder.
    :param number: the value of the key by which a framework finds the row, such as the ``M`` of a matrix product.
    :param values: the params of the choice.
    """

    path: str
    number: int
    values: dict[str, LaunchValue]

    @classmethod
    def build(cls, entry: Entry, layout: TableLayout) -> TableRow:
        """Return the row of an entry that has a choice.

        :raises CacheError: if the entry does not fit the layout.
        """
        assert entry.choice is not None
        key = launch_key(entry.problem.key)
        for value in entry.problem.key:
            if value.type == "dtype":
                # Tables do not tell torch.float16 from Triton's float16, so "torch." is removed.
                key[value.name] = str(key[value.name]).rpartition(".")[2]
        number = key.get(layout.row)
        if not isinstance(number, int) or isinstance(number, bool):
            raise CacheError(
                str(entry.problem), f"its key has no integer {layout.row}, which --row or the preset names"
            )
        return cls(_build_path(entry, layout, key), number, _list_row_values(entry, layout))


def _list_row_values(entry: Entry, layout: TableLayout) -> dict[str, LaunchValue]:
    """Return the params of an entry's choice as a row has them: first the params of the layout, in its order.

    :raises CacheError: if the choice lacks a param of the layout.
    """
    assert entry.choice is not None
    params = launch_key(entry.choice.params)
    values = {}
    for name in layout.values:
        if name not in params:
            raise CacheError(
                str(entry.problem),
                f"its choice has no {name}, which --values or the preset names",
                f"it has {', '.join(params)}",
            )
        values[name] = params[name]
    if layout.has_other_params:
        for name, value in params.items():
            if name not in values and _USUAL_VALUES.get(name) != value:
                values[name] = value
    return values


def _build_path(entry: Entry, layout: TableLayout, key: Mapping[str, LaunchValue]) -> str:
    """Return the path of an entry's file, below the folder: ``E=8,N=64,device_name=NVIDIA_H200.json``.

    :param key: the entry's key.
    :raises CacheError: if a value is missing, or would lead out of the folder.
    """
    triton_version = find_triton_version(entry).replace(".", "_")
    values = {**key, "device": entry.problem.device.name, "triton": triton_version}
    path = ""
    # "E={E}[,dtype={dtype}].json" has the fixed part "E={E}", the optional part ",dtype={dtype}" and the fixed ".json".
    for optional_part, fixed_part in _PART.findall(layout.file):
        if fixed_part:
            path += _fill_part(entry, layout, fixed_part, values)
        elif _has_values(layout, optional_part, values):
            path += _fill_part(entry, layout, optional_part, values)
    # A value may be empty. The path could then have an empty part, or be absolute.
    names = path.split("/")
    if "" in names or ".." in names:
        event = f"its file would be {path!r}, which is not a file below --output"
        raise CacheError(str(entry.problem), event, "name in --file= only parts of the key that have a value")
    return path


def _has_values(layout: TableLayout, part: str, values: Mapping[str, LaunchValue]) -> bool:
    """Whether each name in a part of the path has a value that is spelled as text, and not as nothing."""
    for name in _NAME.findall(part):
        value = values.get(name)
        if value is None or not layout.spell(name, value):
            return False
    return True


def _fill_part(entry: Entry, layout: TableLayout, part: str, values: Mapping[str, LaunchValue]) -> str:
    """Return a part of the path with values in place of the names: ``E=8,N=64`` for ``E={E},N={N}``.

    :raises CacheError: if a name has no value, or the value cannot be part of a file's name.
    """
    texts = []
    # re.split() with a group in the pattern gives fixed text and names in turns. "E={E},N={N}" gives "E=", "E", ",N=",
    # "N" and "", so each second text is a name.
    for position, text in enumerate(_NAME.split(part)):
        is_name = position % 2 == 1
        if is_name:
            texts.append(_spell_value(entry, layout, text, values))
        else:
            texts.append(text)
    return "".join(texts)


def _spell_value(entry: Entry, layout: TableLayout, name: str, values: Mapping[str, LaunchValue]) -> str:
    """Return the text that stands in the path in place of a name; empty if the framework leaves the value out.

    :raises CacheError: if the name has no value, or the value cannot be part of a file's name.
    """
    problem = str(entry.problem)
    value = values.get(name)
    if value is None:
        event = f"its key has no {name}, which --file or the preset names"
        raise CacheError(problem, event, f"it has {', '.join(values)}")
    if name == "triton" and not value:
        raise CacheError(problem, "its entry does not record a version of Triton", "leave {triton} out of --file=")
    spelled = layout.spell(name, value)
    # A separator would lead into another folder, and so would a value that consists of dots.
    if spelled and re.search(r"[/\\\0]|^\.*$", spelled):
        raise CacheError(
            problem, f"{name} is {spelled!r}, which cannot be a part of a file's name", "leave it out of --file="
        )
    return spelled
