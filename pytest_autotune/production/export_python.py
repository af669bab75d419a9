"""``--to=python``: a module of choices with what picks them, that needs nothing of this package."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_autotune.cache.codec.mapping import device_ids
from pytest_autotune.cache.counted import counted, duration
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Cache, Entry, Value
from pytest_autotune.production.choices import chosen, plain_key, selected, triton_versions

_DATA = "# What follows is data.\n"
_PICKER = Path(__file__).parent / "picker.py"


def module_text(
    cache: Cache, command: str, kernels: Sequence[str], devices: Sequence[str], aliases: Mapping[str, str]
) -> tuple[str, str]:
    """The module, and what it holds in words: the same bytes for the same cache and arguments.

    :param command: what writes it.
    :param kernels: globs of those to ship; all, where there are none. So with devices.
    :param aliases: name of a device -> that of the one whose choices it takes.
    :raises CacheError: where there is nothing to ship.
    """
    wanted = selected(cache, kernels, devices)
    of_triton = [entry for entry in wanted if entry.problem.tuner == "triton"]
    entries, ambiguous = chosen(filter(_is_plain, of_triton))
    if not entries:
        raise CacheError("--to=python", "no choice of a Triton kernel is to be written", "is it the right cache?")
    head = _PICKER.read_text(encoding="utf-8").partition(_DATA)[0]
    text = "".join(line + "\n" for line in [head + _DATA.strip(), *_data(entries, command, aliases)])
    names = {entry.problem.kernel for entry in entries}
    on = sorted({entry.problem.device.name for entry in entries})
    for other in sorted(set(aliases.values()).difference(on)):
        raise CacheError("--alias", f"no choice is of the device {other}", f"there are those of {', '.join(on)}")
    words = f"{counted(len(entries), 'choice')} of {counted(len(names), 'kernel')} for {', '.join(on)}"
    if others := len(wanted) - len(of_triton):
        words += f"; {counted(others, 'entry')} of other tuners left out"
    if others := sum(not _is_plain(entry) for entry in of_triton):
        words += f"; {counted(others, 'entry')} left out, whose values an export cannot hold"
    if ambiguous:
        words += f"; {counted(len(ambiguous), 'problem')} left out, with several choices each: {ambiguous[0].problem} …"
    return text, words


def _is_plain(entry: Entry) -> bool:
    """Whether the picker can tell it: functions, tuples, enums and dtypes as values only a launch's tuner can."""
    values = (*entry.problem.key, *(entry.choice.params if entry.choice else ()))
    return all(value.type in ("", "int") or value.name.endswith(".dtype") for value in values)


def _data(entries: Sequence[Entry], command: str, aliases: Mapping[str, str]) -> Iterator[str]:
    ids = device_ids(entry.problem.device for entry in entries)
    yield "# ruff: noqa: E501"
    yield "# fmt: off"
    yield f"COMMAND = {_literal(command)}"
    yield "VERSIONS: Any = {  # of Triton, by device"
    for device, id in ids.items():
        versions = triton_versions(entry for entry in entries if entry.problem.device == device)
        yield f"    {_literal(id)}: [{', '.join(map(_literal, versions))}],"
    yield "}"
    yield "DEVICES: Any = {"
    for device, id in ids.items():
        tuned_with = sorted({str(entry.versions) for entry in entries if entry.problem.device == device})
        device_literal = f"({_literal(device.name)}, {_literal(device.arch)}, {device.multiprocessors})"
        yield f"    {_literal(id)}: {device_literal},  # {one_line('; '.join(tuned_with))}"
    yield "}"
    yield f"ALIASES: Any = {_mapping(aliases)}"
    yield "CHOICES: Any = {"
    for kernel in dict.fromkeys(entry.problem.kernel for entry in entries):
        yield f"    {_literal(kernel)}: {{"
        of_kernel = [entry for entry in entries if entry.problem.kernel == kernel]
        for device, id in ids.items():
            if of_device := [entry for entry in of_kernel if entry.problem.device == device]:
                yield f"        {_literal(id)}: ["
                yield from map(_choice, of_device)
                yield "        ],"
        yield "    },"
    yield "}"


def _choice(entry: Entry) -> str:
    assert entry.choice is not None
    time = f"  # {duration(entry.choice.time_us)}" if entry.choice.time_us is not None else ""
    return f"            ({_values(entry.problem.key)}, {_values(entry.choice.params)}),{time}"


def _values(values: Sequence[Value]) -> str:
    return _mapping(plain_key(values))


def _mapping(values: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{_literal(name)}: {_literal(value)}' for name, value in values.items())}}}"


def _literal(value: object) -> str:
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    text = ascii(value)
    return f'"{text[1:-1]}"' if text[0] == "'" and '"' not in text else text


def command_of(text: str, where: str) -> str:
    """The command that stands in an exported module, which is read and never run.

    :raises CacheError: where there is none.
    """
    found = re.search("^COMMAND = (.+)$", text.partition(_DATA)[2], re.MULTILINE)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        if found is not None:
            return str(ast.literal_eval(found[1]))
    raise CacheError(where, "is no export of pytest-autotune: it has no COMMAND", "export it again")
