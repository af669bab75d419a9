"""Files for flash-linear-attention: a loader written after its rules finds the choices.

The rules are those of fla/ops/utils/cache.py at bc3b101d: ``CachedAutotuner.run``, ``AutotuneKey`` and
``load_cached_config`` with ``FLA_CACHE_MODE=strict``. ``folder`` is the folder that ``FLA_CONFIG_DIR`` names.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from tests.stores import update_store

H200 = Device("NVIDIA H200", "sm_90", 132)
H100 = Device("NVIDIA H100 80GB HBM3", "sm_90", 132)


def entry(block: int, *key: Value, kernel: str = "fla.ops.common.chunk_h.chunk_fwd_kernel_h", **more: Any) -> Entry:
    params = (Value("BK", block), Value("num_warps", 4), Value("num_ctas", 1), Value("num_stages", 3))
    problem = Problem("triton", kernel, key, more.get("device", H200))
    source = Value("source", more.get("source", "s"), "digest")
    versions = Versions.parse(more.get("versions", "triton 3.7.1, torch 2.13.0"))
    return Entry(problem, (source,), Candidate(params=params, time_us=12.5), versions=versions)


def values(**key: Any) -> tuple[Value, ...]:
    return tuple(Value(name, value) for name, value in key.items())


def dtype(name: str, value: str = "bf16") -> Value:
    return Value(f"{name}.dtype", value, "dtype")


@dataclass
class Export:
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def write(self, *entries: Entry, options: tuple[str, ...] = ()) -> tuple[int, list[str], str]:
        cache = str(self.folder / "c.textproto")
        update_store(stores.open_store(cache), lambda now: Cache(entries))
        status = cli.main(["export", cache, "--to=fla", f"--output={self.folder / 'configs'}", *options])
        captured = self.capsys.readouterr()
        return status, captured.out.splitlines(), captured.err

    def load(self, kernel_name: str, *key: object, gpu: str = "NVIDIA_H200") -> Any:
        """Return the config that FLA finds for a key; None if it would tune."""
        path = self.folder / "configs" / gpu / f"{kernel_name}.json"
        if not path.exists():
            return None
        content = json.loads(path.read_text())
        for known_entry in content["autotune_entries"].values():
            assert isinstance(known_entry["config"], dict)
        text = json.dumps(list(key), separators=(",", ":"), sort_keys=True)
        known_entry = content["autotune_entries"].get(hashlib.md5(text.encode()).hexdigest())
        if known_entry is None:
            return None
        assert known_entry["autotune_key"] == list(key)
        config = known_entry["config"]
        # triton.Config(config["kwargs"], num_warps=…, num_stages=…, num_ctas=…), as FLA makes it
        return config["kwargs"], config["num_warps"], config["num_stages"], config["num_ctas"]


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    return Export(tmp_path, capsys)


def test_fla_finds_an_exported_choice_by_its_key(export: Export) -> None:
    large = entry(64, *values(H=16, BT=64, scale=0.5, mode="sum", g=None), dtype("k"), dtype("g", "fp32"))
    small = entry(32, *values(H=8, BT=64, scale=0.5, mode="sum", g=None), dtype("k"), dtype("g", "fp32"))
    other = entry(128, *values(H=16, BT=64, scale=0.5, mode="sum", g=None), dtype("k"), dtype("g", "fp32"), device=H100)

    status, lines, _ = export.write(large, small, other)

    assert status == 0
    assert lines[-1] == "3 choices in 2 files"
    key = (64, 0.5, "sum", None, "torch.bfloat16", "torch.float32")
    name = "chunk_fwd_kernel_h"
    assert export.load(name, 16, *key) == ({"BK": 64}, 4, 3, 1)
    assert export.load(name, 8, *key) == ({"BK": 32}, 4, 3, 1)
    assert export.load(name, 16, *key, gpu="NVIDIA_H100_80GB_HBM3") == ({"BK": 128}, 4, 3, 1)
    assert export.load(name, 32, *key) is None


def test_fla_finds_a_choice_whether_a_flag_is_true_or_1(export: Export) -> None:
    """FLA distinguishes ``True`` and 1, and Triton and an entry do not."""
    export.write(entry(64, *values(H=1, IS_VARLEN=1, D=64)))

    for heads in (1, True):
        for is_varlen in (1, True):
            assert export.load("chunk_fwd_kernel_h", heads, is_varlen, 64) == ({"BK": 64}, 4, 3, 1)
    assert export.load("chunk_fwd_kernel_h", 1, 0, 64) is None


def test_an_exported_key_has_no_dtypes_of_tuple_items(export: Export) -> None:
    export.write(entry(64, *values(D=64), dtype("x"), dtype("pair.0"), dtype("descriptor.base")))

    assert export.load("chunk_fwd_kernel_h", 64, "torch.bfloat16") == ({"BK": 64}, 4, 3, 1)


def test_an_export_omits_a_key_with_two_choices(export: Export) -> None:
    """FLA finds kernels by their names without the module."""
    entries = []
    for module, block in (("common", 64), ("simple_gla", 32)):
        kernel = f"fla.ops.{module}.chunk_kernel"
        entries.append(entry(block, *values(D=64), kernel=kernel))
        entries.append(entry(16, *values(D=128), kernel=kernel))

    status, lines, _ = export.write(*entries)

    assert status == 0
    assert lines[-1] == "4 choices in 1 file; 1 key left out, because each has several choices"
    assert export.load("chunk_kernel", 64) is None
    assert export.load("chunk_kernel", 128) == ({"BK": 16}, 4, 3, 1)


def test_an_export_omits_keys_that_it_cannot_write(export: Export) -> None:
    flags = {f"FLAG_{number}": 1 for number in range(7)}
    status, lines, _ = export.write(
        entry(64, *values(D=64)),
        entry(64, *values(**flags)),
        entry(64, *values(D=64), Value("FN", "lib.relu@0", "function")),
        entry(64, *values(D=64), Value("closure.FN", "relu"), kernel="fla.made"),
        entry(64, *values(D=64), kernel="fla.../../evil/kernel"),
        entry(64, *values(D=32)),
        entry(16, *values(D=32), source="other"),
    )

    assert status == 0
    assert "; 4 entries not exported, because the files cannot hold their values; 1 key left out" in lines[-1]
    assert sorted(path.name for path in export.folder.rglob("*.json")) == ["chunk_fwd_kernel_h.json"]
    assert export.load("chunk_fwd_kernel_h", 32) is None


def test_an_export_counts_the_entries_it_leaves_out(export: Export) -> None:
    triton_entry = entry(64, *values(D=64))
    problem = replace(triton_entry.problem, tuner="function")

    status, lines, _ = export.write(triton_entry, replace(triton_entry, problem=problem))

    assert status == 0
    assert lines[-1] == (
        "1 choice in 1 file; 1 entry of other tuners not exported, because the files are only for Triton"
    )


@pytest.mark.parametrize("option", ["--device=NVIDIA H200", "--kernel=fla.made"])
def test_an_export_omits_kernels_made_by_a_factory(export: Export, option: str) -> None:
    """Only an entry for another device shows that the kernel is of a factory."""
    made = entry(64, *values(D=64), kernel="fla.made")
    of_h100 = entry(64, *values(D=64), Value("closure.FN", "relu"), kernel="fla.made", device=H100)

    status, _, error = export.write(made, of_h100, options=(option,))

    assert status == 4
    assert "found no choice of a Triton kernel" in error


def test_the_export_does_not_depend_on_the_order_of_entries(export: Export) -> None:
    entries = [entry(64, *values(D=64), versions="triton 3.10.0"), entry(32, *values(D=32), versions="triton 3.9.0")]
    export.write(*entries)
    path = export.folder / "configs" / "NVIDIA_H200" / "chunk_fwd_kernel_h.json"
    text = path.read_text()

    export.write(*reversed(entries))

    assert path.read_text() == text
    assert json.loads(text)["triton_version"] == "3.10.0"
    assert json.loads(text)["kernel_name"] == "chunk_fwd_kernel_h"


def test_an_export_overwrites_no_file_of_the_user(export: Export) -> None:
    path = export.folder / "configs" / "NVIDIA_H200" / "chunk_fwd_kernel_h.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"kwargs": {"BK": 64}}')

    status, _, error = export.write(entry(64, *values(D=64)))

    assert (status, error.count("\n")) == (4, 1)
    assert path.read_text() == '{"kwargs": {"BK": 64}}'
    for option in ("--row=M", "--preset=vllm", "--alias=A=B", "--kernel=other"):
        status, _, error = export.write(entry(64, *values(D=64)), options=(option,))
        assert (status, error.count("\n")) == (4, 1), option
