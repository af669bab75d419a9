"""``export --to=fla``: the JSON that flash-linear-attention's own autotuner reads, instead of tuning.

The names, keys and files follow ``fla/ops/utils/cache.py`` at bc3b101d. FLA finds a kernel's file by the device and the
kernel's bare name, and a choice in it by a digest of the key.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from pytest_autotune.cache.distance import LaunchValue, launch_key, launch_value
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.production.choices import (
    ExportableEntries,
    find_triton_version,
    select_choices,
    version_sort_key,
)

#: The params of a choice that are no arguments of the kernel. FLA requires the first three.
_CONFIG_FIELDS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
_REQUIRED_FIELDS = _CONFIG_FIELDS[:3]
#: A choice whose key has more spellings than this is left out, because each spelling is an entry of the file.
_MOST_SPELLINGS = 64


@dataclass(frozen=True)
class FlaExport:
    """The files of an export.

    :param texts: the texts of the files, by their paths below the folder; the same bytes for the same cache.
    :param summary: the number of choices, and those that were left out, in words.
    """

    texts: dict[str, str]
    summary: str


@dataclass
class KernelFile:
    """A file for FLA: the choices of one kernel on one type of GPU.

    FLA finds a choice by the digest of a key. An entry of the cache has several digests if FLA can spell its key in
    several ways: ``[1, "torch.float16"]`` and ``[True, "torch.float16"]``.

    :param entries: digest of a key -> the choice, as FLA's file holds it.
    :param contested: digests of keys for which several kernels of this name have different choices.
    :param versions: the versions of Triton that the choices were tuned with.
    """

    kernel_name: str
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    contested: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)

    def add(self, entry: Entry, keys: Sequence[list[LaunchValue]]) -> None:
        """Add an entry that has a choice.

        :param keys: the spellings of its key, see :func:`_list_key_spellings`.
        """
        assert entry.choice is not None
        self.versions.add(find_triton_version(entry))
        for key in keys:
            fla_entry: dict[str, Any] = {"autotune_key": key, "config": _build_config(entry)}
            if entry.choice.time_us is not None:
                # FLA's times are in milliseconds.
                fla_entry["best_timing"] = entry.choice.time_us / 1000
            key_digest = _compute_key_digest(key)
            # If another entry has this key already, that entry stays.
            first_entry = self.entries.setdefault(key_digest, fla_entry)
            if first_entry["config"] != fla_entry["config"]:
                self.contested.add(key_digest)

    def encode(self) -> str:
        """Return the text of the file."""
        entries = {}
        for key_digest in sorted(self.entries):
            if key_digest not in self.contested:
                entries[key_digest] = self.entries[key_digest]
        content = {
            "kernel_name": self.kernel_name,
            "triton_version": max(self.versions, key=version_sort_key),
            "autotune_entries": entries,
        }
        return json.dumps(content, indent=2) + "\n"


def build_fla_files(cache: Cache, kernels: Sequence[str], devices: Sequence[str]) -> FlaExport:
    """Return the files with the choices of a cache's Triton kernels.

    :param kernels: globs; all kernels if there are none.
    :param devices: globs; all devices if there are none.
    :raises CacheError: if there is no choice to write.
    """
    exportable = ExportableEntries.select(cache, kernels, devices)
    choices = select_choices(exportable.plain)
    files: dict[str, KernelFile] = {}
    written_count = 0
    for entry in choices.entries:
        if _try_to_add(files, entry):
            written_count += 1
    if not files:
        raise CacheError("--to=fla", "found no choice of a Triton kernel", "check FILE, --kernel and --device")
    texts = {path: files[path].encode() for path in sorted(files)}
    # No export can hold these entries.
    unexportable_count = exportable.triton_count - len(exportable.plain)
    # FLA's files cannot hold these entries.
    unwritten_count = len(choices.entries) - written_count
    contested_count = len(choices.ambiguous) + sum(len(file.contested) for file in files.values())
    omitted_count = unexportable_count + unwritten_count
    summary = _describe_export(written_count, len(files), omitted_count, contested_count, exportable.other_count)
    return FlaExport(texts, summary)


def _describe_export(
    written_count: int, file_count: int, omitted_count: int, contested_count: int, other_count: int
) -> str:
    """Return the number of choices, and of those that were left out, in words.

    :param omitted_count: the number of entries whose values the files cannot hold.
    :param contested_count: the number of keys that have several choices.
    :param other_count: the number of entries of other tuners.
    """
    parts = [f"{describe_count(written_count, 'choice')} in {describe_count(file_count, 'file')}"]
    if omitted_count:
        parts.append(
            f"{describe_count(omitted_count, 'entry')} not exported, because the files cannot hold their values"
        )
    if contested_count:
        parts.append(f"{describe_count(contested_count, 'key')} left out, because each has several choices")
    if other_count:
        entries = describe_count(other_count, "entry")
        parts.append(f"{entries} of other tuners not exported, because the files are only for Triton")
    return "; ".join(parts)


def _try_to_add(files: dict[str, KernelFile], entry: Entry) -> bool:
    """Add an entry to the file of its kernel and device, if a file can hold the entry. Return whether it was added.

    :param files: path below the folder -> the file.
    """
    keys = _list_key_spellings(entry)
    # The name of the kernel becomes the name of a file, so it must not hold a slash or dots.
    kernel_name = entry.problem.kernel.rpartition(".")[2]
    if not keys or not kernel_name.isidentifier():
        return False
    path = f"{_format_device(entry.problem.device.name)}/{kernel_name}.json"
    files.setdefault(path, KernelFile(kernel_name)).add(entry, keys)
    return True


def may_replace_fla_file(old_text: str, _new_text: str) -> bool:
    """Whether a new file for FLA may replace a file: any file of choices for FLA."""
    try:
        content = json.loads(old_text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("autotune_entries"), dict)


def _format_device(name: str) -> str:
    """Return a device as FLA's folders spell it."""
    return re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_") or "unknown_gpu"


def _list_key_spellings(entry: Entry) -> list[list[LaunchValue]]:
    """Return the keys that FLA may compute for an entry's problem; none if there are too many.

    FLA's key has the values of the kernel's ``key=``, and then the dtypes of its arguments. FLA's key differs between
    ``True`` and 1. To Triton both are equal, so a launch of the entry's problem may have either. For example, the key
    ``CAUSAL=1, a.dtype=fp16`` gives ``[1, "torch.float16"]`` and ``[True, "torch.float16"]``.

    A launch with 2.0 has the same entry as a launch with 2. The keys of FLA differ here, too, and the result has no
    spelling with 2.0. If each integer had two spellings, each size in a key would double the entries of the file.
    """
    #: The spellings of each part of the key: [[1, True], ["torch.float16"]] in the example.
    spellings: list[list[LaunchValue]] = []
    for value in entry.problem.key:
        launched_value = launch_value(value)
        if value.name.endswith(".dtype"):
            # FLA leaves out the dtypes inside tuples and descriptors.
            if value.name.count(".") == 1:
                spellings.append([f"torch.{launched_value}"])
        elif launched_value in (0, 1):
            spellings.append([int(launched_value), bool(launched_value)])
        else:
            spellings.append([launched_value])
    key_count = math.prod(map(len, spellings))
    if key_count > _MOST_SPELLINGS:
        return []
    return [list(key) for key in product(*spellings)]


def _compute_key_digest(key: list[LaunchValue]) -> str:
    text = json.dumps(key, separators=(",", ":"), sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _build_config(entry: Entry) -> dict[str, Any]:
    """Return the choice of an entry as FLA reads it: the kernel's own arguments apart from the options of Triton."""
    assert entry.choice is not None
    config: dict[str, Any] = {"kwargs": {}}
    for name in _REQUIRED_FIELDS:
        config[name] = None
    for name, value in launch_key(entry.choice.params).items():
        if name in _CONFIG_FIELDS:
            config[name] = value
        else:
            config["kwargs"][name] = value
    return config
