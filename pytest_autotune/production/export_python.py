"""``--to=python``: a module of choices with what picks them, that needs nothing of this package."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter

from pytest_autotune.cache.distance import launch_key
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.model import Cache, Device, Entry, Problem
from pytest_autotune.cache.quantities import describe_count, describe_duration
from pytest_autotune.production.choices import PICKER, aliased, chosen, identity, selected, triton_versions

#: How parts of keys are named that no launch shows: what a kernel took from the factory that made it.
_CELLS = ("closure.", "heuristics.")
_DATA = "# What follows is data.\n"


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
    known = [entry.problem for entry in cache.entries if entry.problem.tuner == "triton"]
    cells = {problem.kernel for problem in known if any(value.name.startswith(_CELLS) for value in problem.key)}
    plain = [entry for entry in of_triton if entry.problem.kernel not in cells and _is_plain(entry)]
    entries, ambiguous = chosen(plain)
    if not entries:
        raise CacheError("--to=python", "no choice of a Triton kernel to write", "is it the right cache, or glob?")
    names = {entry.problem.kernel for entry in entries}
    on = sorted({entry.problem.device.name for entry in entries})
    for name, other in sorted(aliases.items()):
        if other not in on:
            raise CacheError("--alias", f"no choice is of the device {other}", f"there are those of {', '.join(on)}")
        if name in on:
            raise CacheError("--alias", f"the device {name} has choices of its own", "leave out one or the other")
    head = PICKER.read_text(encoding="utf-8").partition(_DATA)[0]
    text = "".join(line + "\n" for line in [head + _DATA.strip(), *_data(entries, known, command, aliases)])
    words = f"{describe_count(len(entries), 'choice')} of {describe_count(len(names), 'kernel')} for {', '.join(on)}"
    if others := len(wanted) - len(of_triton):
        words += f"; {describe_count(others, 'entry')} of other tuners left out"
    if others := len(of_triton) - len(plain):
        words += f"; {describe_count(others, 'entry')} left out, whose values an export cannot hold"
    if ambiguous:
        problems = describe_count(len(ambiguous), "problem")
        words += f"; {problems} left out, with several choices each: {ambiguous[0].problem} …"
    return text, words


def _is_plain(entry: Entry) -> bool:
    """Whether the picker can tell it: not functions, tuples, enums and dtypes as values."""
    values = (*entry.problem.key, *(entry.choice.params if entry.choice else ()))
    return all(value.type in ("", "int") or value.name.endswith(".dtype") for value in values)


def _data(
    entries: Sequence[Entry], known: Sequence[Problem], command: str, aliases: Mapping[str, str]
) -> Iterator[str]:
    by_kernel: dict[str, dict[Device, list[Entry]]] = {}
    for entry in entries:
        by_kernel.setdefault(entry.problem.kernel, {}).setdefault(entry.problem.device, []).append(entry)
    yield "# ruff: noqa: E501"
    yield "# fmt: off"
    yield f"COMMAND = {_literal(command)}"
    yield f"ALIASES: Any = {_literal(aliased({entry.problem.device for entry in entries}, aliases))}"
    yield "KEYS: Any = {  # the arguments that keys name, beside dtypes"
    for kernel in by_kernel:  # those of what is left out, too: launches with them are other ones
        values = [value for problem in known if problem.kernel == kernel for value in problem.key]
        names = {value.name for value in values if "." not in value.name and value.type != "function"}
        yield f"    {_literal(kernel)}: {_literal(sorted(names))},"
    yield "}"
    yield "CHOICES: Any = {"
    for kernel, by_device in by_kernel.items():
        yield f"    {_literal(kernel)}: {{"
        for device in sorted(by_device, key=attrgetter("sort_key")):
            of_device = by_device[device]
            tuned_with = sorted({str(entry.versions) for entry in of_device})
            versions = triton_versions(of_device)
            on = *identity(device), tuple(versions) if len(versions) > 1 else "".join(versions)
            yield f"        {_literal(on)}: [  # {to_one_line('; '.join(tuned_with))}"
            yield from map(_choice, of_device)
            yield "        ],"
        yield "    },"
    yield "}"


def _choice(entry: Entry) -> str:
    assert entry.choice is not None
    time = f"  # {describe_duration(entry.choice.time_us)}" if entry.choice.time_us is not None else ""
    return (
        f"            ({_literal(launch_key(entry.problem.key))}, {_literal(launch_key(entry.choice.params))}),{time}"
    )


def _literal(value: object) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(name)}: {_literal(one)}' for name, one in value.items())}}}"
    if isinstance(value, (list, tuple)):
        text = ", ".join(map(_literal, value))
        return f"({text})" if isinstance(value, tuple) else f"[{text}]"
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
