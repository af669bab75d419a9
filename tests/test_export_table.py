"""Tables that frameworks read: loaders written after the frameworks' rules find files and rows.

The rules are those of vLLM at 13cb3e44 (vllm/model_executor/layers/fused_moe/fused_moe.py) and SGLang at 02c7c97f
(python/sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py). ``folder`` is the folder that
VLLM_TUNED_CONFIG_FOLDER and SGLANG_MOE_CONFIG_DIR name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from tests.stores import update_store

H200 = Device("NVIDIA H200 NVL", "sm_90", 132)
L4 = Device("NVIDIA L4", "sm_89", 58)


def entry(m: int, block: int, device: Device = L4, **key: Any) -> Entry:
    named = {"M": m, "E": 128, "N": 768, **key}
    values = tuple(value if isinstance(value, Value) else Value(name, value) for name, value in named.items())
    sizes = {"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    params = tuple(Value(name, value) for name, value in {"BLOCK_SIZE_M": block, **sizes}.items())
    problem = Problem("function", "lib.fused_moe", values, device)
    versions = Versions.parse("pytest-autotune 0.1.0, torch 2.11.0, triton 3.6.0")
    return Entry(problem, (Value("space", "s", "digest"),), Candidate(params=params, time_us=1.0), versions=versions)


def block_shape() -> Value:
    return Value("block_shape", "[('int', '128', ''), ('int', '128', '')]", "tuple")


class Export:
    def __init__(self, folder: Path, capsys: Any) -> None:
        self.folder = folder
        self.capsys = capsys

    def __call__(self, *entries: Entry, options: tuple[str, ...]) -> tuple[int, list[str], str]:
        cache = str(self.folder / "c.textproto")
        update_store(stores.open_store(cache), lambda now: Cache(entries))
        status = cli.main(["export", cache, "--to=table", f"--output={self.folder / 'configs'}", *options])
        captured = self.capsys.readouterr()
        return status, captured.out.splitlines(), captured.err


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    return Export(tmp_path, capsys)


def config_in_vllm(folder: Path, device: str, m: int, dtype: str | None, blocks: list[int] | None) -> dict[str, int]:
    device = device.replace(" ", "_")
    device = "NVIDIA_H200" if "H200" in device.split("_") else device
    selectors = f",dtype={dtype}" if dtype else ""
    if blocks and all(blocks):
        selectors += f",block_shape={blocks}".replace(" ", "")
    rows = json.loads((folder / f"E=128,N=768,device_name={device}{selectors}.json").read_text())
    rows.pop("triton_version", None)
    by_m = {int(key): value for key, value in rows.items()}
    return by_m[min(by_m, key=lambda size: abs(size - m))]


def config_in_sglang(folder: Path, device: str, m: int, dtype: str | None, blocks: list[int] | None) -> dict[str, int]:
    selectors = f",dtype={dtype}" if dtype else ""
    if blocks and all(blocks):
        selectors += f",block_shape={blocks}"
    name = f"E=128,N=768,device_name={device.replace(' ', '_')}{selectors}.json"
    rows = {
        int(key): value for key, value in json.loads((folder / "configs" / "triton_3_6_0" / name).read_text()).items()
    }
    return rows[min(rows, key=lambda size: abs(size - m))]


@pytest.mark.parametrize(("preset", "config"), [("vllm", config_in_vllm), ("sglang", config_in_sglang)])
def test_vllm_and_sglang_find_exported_choices_in_their_tables(export: Export, preset: str, config: Any) -> None:
    fp8 = {"dtype": "fp8_w8a8", "block_shape": block_shape()}
    fp16 = Value("dtype", "fp16", "dtype")  # which both leave out
    entries = entry(1, 16), entry(64, 64, dtype=fp16), entry(1, 32, H200), entry(1, 128, **fp8)

    status, written, _ = export(*entries, options=(f"--preset={preset}",))

    folder = export.folder / "configs"
    assert status == 0
    assert len(written) == 3
    assert json.loads(Path(written[0]).read_text()).get("triton_version") == {"vllm": "3.6.0"}.get(preset)
    rest = {"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3}
    assert config(folder, L4.name, 2, None, None) == {"BLOCK_SIZE_M": 16, **rest}
    assert config(folder, L4.name, 60, None, [0, 0])["BLOCK_SIZE_M"] == 64
    assert config(folder, H200.name, 1, None, None)["BLOCK_SIZE_M"] == 32
    assert config(folder, L4.name, 1, "fp8_w8a8", [128, 128])["BLOCK_SIZE_M"] == 128


def test_a_table_has_the_params_of_option_values_in_that_order(export: Export) -> None:
    options = ("--file={device}/N={N}[,K={K}].json", "--row=M", "--values=num_warps, BLOCK_SIZE_M")

    status, written, _ = export(entry(64, 32), entry(8, 16), entry(8, 64, K=4096), options=options)

    assert status == 0
    folder = export.folder / "configs" / "NVIDIA_L4"
    assert written == [str(folder / "N=768,K=4096.json"), str(folder / "N=768.json")]
    expected = {"8": {"num_warps": 4, "BLOCK_SIZE_M": 16}, "64": {"num_warps": 4, "BLOCK_SIZE_M": 32}}
    assert (folder / "N=768.json").read_text() == json.dumps(expected, indent=4) + "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--file=N={N}.json", "--row=M"),
            "two entries have different choices for M=8 in N=768.json, one is function:lib.",
        ),
        (
            ("--file={K}.json", "--row=M"),
            "its key has no K, which --file or the preset names (it has M, E, N, topk, device",
        ),
        (("--file={N}.json", "--row=m"), "its key has no integer m, which --row or the preset names"),
        (
            ("--file={N}{topk}.json", "--row=M", "--values=SPLIT_K"),
            "its choice has no SPLIT_K, which --values or the preset names (it has BLOCK_SIZE_M, ",
        ),
        (("--file={N}.json",), "needs --preset, or both --file and --row"),
        (("--preset=vllm", "--kernel=other"), "found no entry with a choice (check FILE, --kernel and --device)"),
        (("--preset=vllm", "--alias=A = B"), "--alias: works only with --to=python (leave it out)"),
    ],
)
def test_no_table_is_written_if_options_and_entries_do_not_fit(
    export: Export, options: tuple[str, ...], message: str
) -> None:
    status, _, error = export(entry(8, 16, topk=1), entry(8, 32, topk=2), options=options)

    assert status == 4
    assert message in error
    assert error.count("\n") == 1
    assert not (export.folder / "configs").exists()


@pytest.mark.parametrize(
    ("text", "is_replaced"),
    [
        ("# Mine", False),
        ('{"name": "mine"}', False),
        ("{}", False),
        ('{"8": "mine"}', False),
        ('{"8": {"BLOCK": 16}, "4096": {"BLOCK": 64}}', False),
        ('{"triton_version": "3.4.0", "8": {"BLOCK": 16}}', True),
    ],
)
def test_an_export_keeps_a_file_that_has_rows_the_cache_lacks(export: Export, text: str, is_replaced: bool) -> None:
    """A framework's own table has rows for which the cache has no choices."""
    (export.folder / "configs").mkdir()
    table = export.folder / "configs" / "a.json"
    table.write_text(text)

    status, _, error = export(entry(8, 16), options=("--file=a.json", "--row=M"))

    assert (status == 0, table.read_text() != text) == (is_replaced, is_replaced)
    assert error.count("\n") == (not is_replaced)


@pytest.mark.parametrize("value", ["", "..", ".", "/", "a/b", "a\\b", "\0", "x" * 300], ids=ascii)
def test_key_values_with_dots_or_slashes_do_not_leave_the_folder(export: Export, value: str) -> None:
    before = {*export.folder.parent.rglob("*.json")}

    for file in ("{name}/outside/x.json", "{N}/{name}/x.json", "{N}{name}/x.json"):
        status, _, error = export(entry(8, 16, name=value), options=(f"--file={file}", "--row=M"))
        assert status in (0, 4)
        assert error.count("\n") == (status == 4)

    written = {*export.folder.parent.rglob("*.json")} - before
    assert all(export.folder / "configs" in path.resolve().parents for path in written)
    assert not Path("/outside").exists()


def test_a_link_that_leads_out_of_the_export_folder_is_refused(export: Export) -> None:
    (export.folder / "elsewhere").mkdir()
    (export.folder / "configs").mkdir()
    (export.folder / "configs" / "latest").symlink_to("../elsewhere")

    _, _, error = export(entry(8, 16, name="latest"), options=("--file={name}/x.json", "--row=M"))

    assert "configs/latest/x.json: leads out of " in error
    assert list((export.folder / "elsewhere").iterdir()) == []
