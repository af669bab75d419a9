"""A run, ``use()`` and an exported module take the same entry for a problem that was not tuned."""

from __future__ import annotations

import inspect
import json
import math
import os
import random
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import pytest_autotune
from pytest_autotune.cache import stores
from pytest_autotune.cache.distance import distance, launch_key, split_words
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions
from pytest_autotune.production import shipped
from pytest_autotune.production import use as production
from pytest_autotune.production.choices import PICKER
from pytest_autotune.production.export_python import build_module
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.nearest import list_nearest_entries
from tests.stores import update_store

GPU = Device("NVIDIA H200", "sm_90", 132)
KERNEL = "distance_library.add"
NAMES = ("M", "N")


def problem(*key: Value, kernel: str = KERNEL) -> Problem:
    return Problem("triton", kernel, key, GPU)


def entry(number: int, *sizes: int, kernel: str = KERNEL) -> Entry:
    """Return an entry for sizes M and N and half precision. Its choice has the number."""
    sizes_of_key = [Value(name, size) for name, size in zip(NAMES, sizes, strict=True)]
    key = (*sizes_of_key, Value("a.dtype", "fp16", "dtype"))
    params = (Value("BLOCK", number), Value("num_warps", 4))
    versions = Versions.parse("triton 3.7.1")
    return Entry(problem(*key, kernel=kernel), (), Candidate(params=params), versions=versions)


def block_of(nearest_entry: Entry) -> Scalar:
    assert nearest_entry.choice is not None
    return nearest_entry.choice.params[0].value


def block_of_a_run(entries: list[Entry], wanted: Problem) -> Scalar:
    """Return the number of the entry that ``--autotune-on-miss=nearest`` takes first."""
    index = EntryIndex.from_caches([Cache(tuple(entries))])
    of_kernel = index.list_kernel_entries(wanted.tuner, wanted.kernel)
    return block_of(next(iter(list_nearest_entries(of_kernel, wanted, Policy()))))


class UsedLibrary:
    """A cache that ``use()`` reads. Each kernel has entries of its own."""

    def __init__(self, folder: Path, entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(production, "_hook_tuners", lambda: None)
        monkeypatch.setattr(shipped, "_caches", [])
        update_store(stores.open_store(str(folder / "c.yaml")), lambda now: Cache(tuple(entries)))
        self._used = pytest_autotune.use("distance_library", folder / "c.yaml", "nearest", nearest=NAMES)

    def block(self, wanted: Problem) -> Scalar:
        block: Scalar = self._used.choose(LaunchOf(wanted))
        return block


class LaunchOf:
    """A launch of a problem, with any candidate. A candidate is its block."""

    def __init__(self, wanted: Problem) -> None:
        device = ("NVIDIA H200", "sm_90", 132)
        self.problem = shipped.LaunchedProblem("triton", wanted.kernel, launch_key(wanted.key), device)

    def find_candidate(self, choice: Candidate) -> Scalar:
        return choice.params[0].value

    def list_candidates(self) -> list[Scalar]:
        return []

    def can_run(self, candidate: Scalar) -> bool:
        return True


class ExportedLibrary:
    """A module that ``pytest-autotune export`` wrote, in a process with the GPU."""

    def __init__(self, entries: list[Entry]) -> None:
        text = build_module(Cache(tuple(entries)), "pytest-autotune export", [], [], {}).text
        self._module: dict[str, Any] = {}
        exec(text, self._module)
        self._module["device"] = lambda: ("NVIDIA H200", "sm_90", 132, "3.7.1")

    def block(self, wanted: Problem) -> Scalar:
        choices = self._module["find_choices"](wanted.kernel, False).choice_by_key
        key = tuple(sorted(launch_key(wanted.key).items()))
        nearest_key = self._module["find_nearest_key"](choices, key, NAMES)
        block: Scalar = choices[nearest_key]["BLOCK"]
        return block


@pytest.mark.filterwarnings("ignore:distance_library")
def test_the_entry_nearest_to_a_miss_has_the_closest_size_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(1, 96, 4096), entry(2, 100, 104)]
    wanted = problem(Value("M", 96), Value("N", 100), Value("a.dtype", "fp16", "dtype"))

    assert block_of_a_run(entries, wanted) == 2
    assert UsedLibrary(tmp_path, entries, monkeypatch).block(wanted) == 2
    assert ExportedLibrary(entries).block(wanted) == 2


@pytest.mark.filterwarnings("ignore:distance_library")
def test_a_shipped_cache_an_export_and_a_run_pick_the_same_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small sizes make many entries equally near. The test looks up 25 keys of each of 200 kernels."""
    chance = random.Random(37)
    entries: list[Entry] = []
    for kernel_number in range(200):
        largest = chance.choice([4, 20, 5_000])
        keys = {(chance.randint(0, largest), chance.randint(0, largest)) for _ in range(chance.randint(1, 12))}
        for sizes in sorted(keys, key=lambda key: chance.random()):
            entries.append(entry(len(entries), *sizes, kernel=f"{KERNEL}{kernel_number}"))
    used, exported = UsedLibrary(tmp_path, entries, monkeypatch), ExportedLibrary(entries)
    by_kernel = defaultdict(list)
    for entry_of_kernel in entries:
        by_kernel[entry_of_kernel.problem.kernel].append(entry_of_kernel)

    for kernel, of_kernel in by_kernel.items():
        for _ in range(25):
            largest = chance.choice([4, 20, 5_000])
            key = [Value("a.dtype", "fp16", "dtype"), *(Value(name, chance.randint(0, largest)) for name in NAMES)]
            chance.shuffle(key)
            wanted = problem(*key, kernel=kernel)
            blocks = {block_of_a_run(of_kernel, wanted), used.block(wanted), exported.block(wanted)}
            assert len(blocks) == 1, wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[64, 128]", (64, 128)),
        ('[{"list": [1]}, {"dtype": "fp16"}, {"int": "1180591620717411303424"}]', ((1,), "fp16", 2**70)),
        ("[1, ", "[1, "),
        ('[{"a": 1, "b": 2}]', '[{"a": 1, "b": 2}]'),
    ],
)
def test_a_tuple_stored_as_json_in_a_choice_is_read_as_a_tuple(text: str, value: object) -> None:
    """A table gets the numbers. Text that is damaged stays text."""
    assert launch_key([Value("block", text, "json.tuple")]) == {"block": value}


def test_an_export_has_the_same_nearest_entry_code_as_the_plugin() -> None:
    exported = build_module(Cache((entry(1, 2, 3),)), "", [], [], {}).text

    for function in (distance, split_words):
        source = inspect.getsource(function)
        assert source in PICKER.read_text()
        assert source in exported


@pytest.mark.parametrize(
    ("wanted", "has", "expected"),
    [
        pytest.param({"M": 16, "N": 16}, {"N": 64, "M": 16}, (0, 2.0), id="doublings of numbers"),
        pytest.param({"M": 16, "N": 16}, {"N": 64, "M": 16 * 32}, (0, math.hypot(2, 5)), id="two numbers"),
        pytest.param({"M": 0}, {"M": 1}, (0, 1.0), id="numbers below 0.5 count as 0.5"),
        pytest.param({"M": -7}, {"M": 0.25}, (0, 0.0), id="no doublings below 0.5"),
        pytest.param({"M": 10**4000}, {"M": float("inf")}, (0, float("inf")), id="infinity"),
        pytest.param({"M": float("nan")}, {"M": 1}, (1, 0.0), id="NaN is no number"),
        pytest.param({"M": True}, {"M": 2}, (1, 0.0), id="a bool is no number"),
        pytest.param({"M": True}, {"M": 1}, (0, 0.0), id="equal in Python"),
        pytest.param({"M": 1, "flag": 1}, {"M": 4, "other": 1}, (2, 2.0), id="a part on one side only"),
        pytest.param({"M": None}, {}, (1, 0.0), id="None is a value"),
        pytest.param({"M": "16"}, {"M": 16}, (1, 0.0), id="text is no number"),
        pytest.param({"x": "f32[2, 8]"}, {"x": "f32[2, 64]"}, (0, 3.0), id="numbers inside a text"),
        pytest.param({"x": "f32[2]"}, {"x": "bf16[2, 64]"}, (2, 0.0), id="words inside a text"),
        pytest.param({"d": "float16"}, {"d": "float32"}, (1, 0.0), id="a dtype is a word"),
        pytest.param({"x": (128, 128)}, {"x": (128, 64)}, (0, 1.0), id="numbers inside a tuple"),
        pytest.param({"x": "9" * 5000}, {"x": "9" * 5001}, (0, 0.0), id="numbers without end"),
    ],
)
def test_the_distance_of_two_keys_is_symmetric_and_uses_ratios(
    wanted: dict[str, Any], has: dict[str, Any], expected: tuple[int, float]
) -> None:
    assert distance(wanted, has) == pytest.approx(expected)
    assert distance(has, wanted) == distance(wanted, has)


HASH_SEED = """
import json, random
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.nearest import list_nearest_entries
from tests.test_distance import block_of, entry, problem, Value

chance = random.Random(1)
entries = [entry(number, chance.randint(1, 9), chance.randint(1, 9)) for number in range(40)]
blocks = []
for _ in range(50):
    key = [Value("M", chance.randint(1, 9)), Value("N", chance.randint(1, 9)), Value("a.dtype", "fp16", "dtype")]
    blocks.append([block_of(found) for found in list_nearest_entries(entries, problem(*key), Policy())])
print(json.dumps(blocks))
"""


def test_the_nearest_entry_does_not_depend_on_pythonhashseed() -> None:
    root = Path(__file__).parent.parent
    outputs = []
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        process = subprocess.run(
            [sys.executable, "-c", HASH_SEED], cwd=root, env=environment, capture_output=True, text=True, check=True
        )
        outputs.append(json.loads(process.stdout))
    assert outputs[0] == outputs[1] == outputs[2]
