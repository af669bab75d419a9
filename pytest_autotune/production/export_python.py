"""``export --to=python``: a module of choices and the code that picks them. It needs nothing of this package."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter

from pytest_autotune.cache.distance import launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device, Entry
from pytest_autotune.cache.wording import describe_count, describe_duration, to_one_line
from pytest_autotune.production.choices import (
    PICKER,
    ExportableEntries,
    SelectedChoices,
    device_identity,
    list_triton_entries,
    list_triton_versions,
    resolve_aliases,
    select_choices,
)

#: A line of ``picker.py``. An export has the text above this line, and then the data of its own choices.
_DATA = "# The data of this module.\n"


@dataclass(frozen=True)
class ExportedModule:
    """An exported module.

    :param text: the text of the module. The same cache and arguments give the same bytes.
    :param summary: the number of its choices, and of the entries that were left out, in words.
    """

    text: str
    summary: str


def build_module(
    cache: Cache, command: str, kernels: Sequence[str], devices: Sequence[str], aliases: Mapping[str, str]
) -> ExportedModule:
    """Return the module with the choices of a cache's Triton kernels.

    :param command: the command that writes the module again. The module keeps it.
    :param kernels: globs of the kernels; all kernels if there are none.
    :param devices: globs of the devices; all devices if there are none.
    :param aliases: name of a device -> name of the device whose choices it takes.
    :raises CacheError: if there is no choice to write, or an alias makes no sense.
    """
    exportable = ExportableEntries.select(cache, kernels, devices)
    choices = select_choices(exportable.plain)
    if not choices.entries:
        raise CacheError("--to=python", "found no choice of a Triton kernel", "check FILE, --kernel and --device")
    device_names = sorted({entry.problem.device.name for entry in choices.entries})
    _check_aliases(aliases, device_names)
    # The module is the code of the picker, with the choices of the cache in place of the picker's own data.
    code = PICKER.read_text(encoding="utf-8").partition(_DATA)[0]
    data_lines = _list_data_lines(choices.entries, list_triton_entries(cache), command, aliases)
    data = "".join([f"{line}\n" for line in data_lines])
    return ExportedModule(f"{code}{_DATA}{data}", _describe_export(exportable, choices, device_names))


def _describe_export(exportable: ExportableEntries, choices: SelectedChoices, device_names: Sequence[str]) -> str:
    """Return the number of exported choices, and of the entries that were left out, in words."""
    kernel_count = len({entry.problem.kernel for entry in choices.entries})
    exported = f"{describe_count(len(choices.entries), 'choice')} of {describe_count(kernel_count, 'kernel')}"
    parts = [f"{exported} for {', '.join(device_names)}"]
    if exportable.other_count:
        parts.append(
            f"{describe_count(exportable.other_count, 'entry')} of other tuners not exported, because a "
            "module is only for Triton"
        )
    unexportable_count = exportable.triton_count - len(exportable.plain)
    if unexportable_count:
        parts.append(
            f"{describe_count(unexportable_count, 'entry')} not exported, because an export cannot hold their values"
        )
    if choices.ambiguous:
        problems = describe_count(len(choices.ambiguous), "problem")
        parts.append(f"{problems} left out, because each has several choices: {choices.ambiguous[0].problem} …")
    return "; ".join(parts)


def _check_aliases(aliases: Mapping[str, str], device_names: Sequence[str]) -> None:
    """Check that each alias takes the choices of an exported device, for a device that has no exported choices.

    :param aliases: name of a device -> name of the device whose choices it takes.
    :raises CacheError: for the first wrong alias.
    """
    for name, tuned_name in sorted(aliases.items()):
        if tuned_name not in device_names:
            names = ", ".join(device_names)
            raise CacheError(
                "--alias", f"FILE has no choice for the device {tuned_name}", f"write a bare name: {names}"
            )
        if name in device_names:
            raise CacheError("--alias", f"the device {name} has its own choices in FILE", "remove this --alias")


def _list_data_lines(
    entries: Sequence[Entry], all_entries: Sequence[Entry], command: str, aliases: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of the module's data: ``COMMAND``, ``ALIASES``, ``KEYS`` and ``CHOICES``.

    The last two are like this::

        KEYS: Any = {  # the arguments that keys name, beside dtypes
            "lib.ops.matmul": ["M"],
        }
        CHOICES: Any = {
            "lib.ops.matmul": {
                ("NVIDIA H200", "sm_90", 132, "3.6"): [  # triton 3.6.0, torch 2.11.0
                    ({"M": 64, "a.dtype": "float16"}, {"BLOCK": 32, "num_warps": 4}),  # 7.68 us
                ],
            },
        }

    :param entries: the entries to export.
    :param all_entries: also the entries that are not exported. The names in their keys show which arguments tell
        problems apart.
    :param command: the command that writes the module again.
    :param aliases: name of a device -> name of the device whose choices it takes.
    """
    entries_by_kernel: dict[str, dict[Device, list[Entry]]] = {}
    for entry in entries:
        entries_by_device = entries_by_kernel.setdefault(entry.problem.kernel, {})
        entries_by_device.setdefault(entry.problem.device, []).append(entry)
    devices = {entry.problem.device for entry in entries}
    yield "# ruff: noqa: E501"
    yield "# fmt: off"
    yield f"COMMAND = {_format_literal(command)}"
    yield f"ALIASES: Any = {_format_literal(resolve_aliases(devices, aliases))}"
    yield "KEYS: Any = {  # the arguments that keys name, beside dtypes"
    for kernel in entries_by_kernel:
        yield f"    {_format_literal(kernel)}: {_format_literal(_list_argument_names(kernel, all_entries))},"
    yield "}"
    yield "CHOICES: Any = {"
    for kernel, entries_by_device in entries_by_kernel.items():
        yield f"    {_format_literal(kernel)}: {{"
        for device in sorted(entries_by_device, key=attrgetter("sort_key")):
            yield from _list_device_lines(device, entries_by_device[device])
        yield "    },"
    yield "}"


def _list_argument_names(kernel: str, entries: Sequence[Entry]) -> list[str]:
    """Return the arguments of a kernel that select a problem by their value. The keys of the entries show them.

    Parts of keys with a dot in their names are left out. They are dtypes and items inside arguments, such as
    ``a.dtype``, which the picker finds without their names.

    :param entries: the entries of all kernels.
    """
    names = set()
    for entry in entries:
        if entry.problem.kernel != kernel:
            continue
        for value in entry.problem.key:
            if "." not in value.name and value.type != "function":
                names.add(value.name)
    return sorted(names)


def _list_device_lines(device: Device, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the lines with a kernel's choices for one device: a line with the device, then a line for each choice."""
    tuned_on = (*device_identity(device), _select_version_prefix(entries))
    versions = sorted({str(entry.versions) for entry in entries})
    yield f"        {_format_literal(tuned_on)}: [  # {to_one_line('; '.join(versions))}"
    for entry in entries:
        assert entry.choice is not None
        key, params = launch_key(entry.problem.key), launch_key(entry.choice.params)
        line = f"            ({_format_literal(key)}, {_format_literal(params)}),"
        if entry.choice.time_us is not None:
            line += f"  # {describe_duration(entry.choice.time_us)}"
        yield line
    yield "        ],"


def _select_version_prefix(entries: Iterable[Entry]) -> str | tuple[str, ...]:
    """Return the minor versions of Triton with which entries were tuned, in the form that the picker needs.

    The picker passes the result to ``str.startswith()``, which takes a text (``"3.6"``) or a tuple of texts. If no
    version is known, the text is empty, and fits any version.
    """
    minor_versions = list_triton_versions(entries)
    if not minor_versions:
        return ""
    if len(minor_versions) == 1:
        return minor_versions[0]
    return tuple(minor_versions)


def _format_literal(value: object) -> str:
    """Return a value as a Python literal: in ASCII characters, and with double quotes, as formatters write it."""
    if isinstance(value, dict):
        items = [f"{_format_literal(name)}: {_format_literal(item)}" for name, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_literal, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_literal, value))}]"
    if value == math.inf:
        # ``inf`` is no literal. A number that is too large is read as ``inf``.
        return "1e999"
    if value == -math.inf:
        return "-1e999"
    text = ascii(value)
    if text.startswith("'") and '"' not in text:
        return f'"{text[1:-1]}"'
    return text


def find_command(text: str, module: str) -> str:
    """Return the command in the text of an exported module. The text is parsed and never run.

    :param module: names the module in messages.
    :raises CacheError: if the text has no command, so that it is no export.
    """
    match = re.search("^COMMAND = (.+)$", text.partition(_DATA)[2], re.MULTILINE)
    if match is not None:
        # Anybody may have written the file, so the text behind COMMAND may be no literal, or a huge one.
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return str(ast.literal_eval(match[1]))
    raise CacheError(
        module, "is not an export of pytest-autotune: it has no COMMAND", "name another file, or remove this one"
    )
