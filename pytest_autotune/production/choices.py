"""Entries as those read them who have nothing of this package: keys and candidates as plain values, one choice each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from pytest_autotune.cache.model import Cache, Entry, Scalar, Value, before_pruning

#: What torch calls the dtypes of arguments.
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def plain(value: Value) -> Scalar:
    """A value as ``picker.plain`` makes it of the live one."""
    text = str(value.value)
    if value.type == "dtype":
        text = text.rpartition(".")[2]
        return _DTYPES.get(text, text) if value.name.endswith(".dtype") else text
    if value.type == "function":
        return text.partition("@")[0]
    if value.type == "int":
        return int(text)
    return value.words if value.type == "tuple" else value.value


def plain_key(values: Iterable[Value]) -> dict[str, Scalar]:
    """A key, or what a candidate is called."""
    return {value.name: plain(value) for value in values}


def chosen(entries: Iterable[Entry]) -> tuple[list[Entry], list[Entry]]:
    """An entry with a choice for each problem, in their order; and those of problems for which there are several.

    What the key does not tell, nobody can who is asked for a choice: kernels of one name with different code, and what
    pruning left of the candidates. The choice among all candidates goes before that among a part.
    """
    same: dict[object, list[Entry]] = {}
    for entry in entries:
        if entry.choice is not None:
            problem = entry.problem
            key = frozenset(plain_key(problem.key).items())
            same.setdefault((problem.tuner, problem.kernel, problem.device, key), []).append(entry)
    found: list[Entry] = []
    ambiguous: list[Entry] = []
    for group in same.values():
        whole = [one for one in group if before_pruning(one.fingerprint) == one.fingerprint] or group
        configurations = {(one.choice.id, one.choice.params) for one in whole if one.choice is not None}
        (found if len(configurations) == 1 else ambiguous).append(whole[0])
    return found, ambiguous


def triton_versions(entries: Iterable[Entry]) -> list[str]:
    """The minor versions of Triton that some entries were tuned with, in order."""
    found = {entry.versions.minor for entry in entries}
    versions = [version for library, version in found if library == "triton"]
    return sorted(versions, key=lambda version: [int(part) if part.isdecimal() else 0 for part in version.split(".")])


def selected(cache: Cache, kernels: Sequence[str] = (), devices: Sequence[str] = ()) -> list[Entry]:
    """The entries of some kernels and devices, each named by globs; of all, where none is given."""

    def is_wanted(entry: Entry) -> bool:
        problem = entry.problem
        names = (problem.kernel, problem.name), (problem.device.name, problem.device.id)
        return all(
            not globs or any(fnmatchcase(name, glob) for name in of for glob in globs)
            for of, globs in zip(names, (kernels, devices), strict=True)
        )

    return list(filter(is_wanted, cache.entries))
