"""XLA's own files: read, written, converted; its log and HLO text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.tuners.xla import entries, files
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout
from tests.stores import update_store

DATA = Path(__file__).parent / "data" / "xla"
H200 = Device("NVIDIA H200", "sm_90", 132)


def new_entry(hlo: str = "0" * 32, device: str = "ed0e56ab8b2a0ecb", block: int = 64) -> XlaEntry:
    message = files.new_message("xla.autotuner.AutotuneEntry")
    message.key.target.device, message.key.target.hlo_fingerprint = device, hlo
    message.key.environment.codegen_version = "ef00bdc5c7995cbf"
    message.value.optimal_config.backend = 2
    message.value.optimal_config.backend_config.triton.block_m = block
    return XlaEntry(XlaLayout.NEW, message.SerializeToString())


def legacy_entries() -> tuple[XlaEntry, ...]:
    path = DATA / "legacy_0.11.2.textproto"
    return files.read(path.read_bytes(), str(path))


# Files that XLA of jaxlib 0.11.2 wrote on an H200 for ``jnp.tanh(a @ a).sum()``, ``a`` of bfloat16[256, 256], and text
# that it printed of choices that were made up for it: see tests/test_xla_deviceless.py.
WRITTEN = [f"h200_{layout}{suffix}" for layout in ("new", "legacy") for suffix in (".textproto", ".pb")]
PRINTED = ["legacy_0.10.2.textproto", "legacy_0.11.2.textproto"]


@pytest.mark.parametrize("name", WRITTEN + PRINTED)
def test_converting_xla_files_there_and_back_keeps_every_byte(name: str, tmp_path: Path) -> None:
    """Each file goes through every format of ours and of XLA, and back."""
    suffix = Path(name).suffix
    other = tmp_path / ("other.pb" if suffix == ".textproto" else "other.textproto")
    back, again = tmp_path / f"back{suffix}", tmp_path / f"again{suffix}"
    for ours in ("ours.textproto", "ours.pb", "ours.yaml", "ours.json", "folder/"):
        cache = f"{tmp_path}/{ours}"
        assert cli.main(["convert", str(DATA / name), cache, "--from=xla"]) == 0
        assert cli.main(["convert", cache, str(back), "--to=xla"]) == 0
        assert cli.main(["convert", cache, str(other), "--to=xla"]) == 0
        assert cli.main(["convert", str(other), str(again), "--from=xla", "--to=xla"]) == 0
        assert back.read_bytes() == again.read_bytes() == (DATA / name).read_bytes()


def test_fields_of_a_newer_xla_are_kept_only_in_binary_files() -> None:
    """A text file cannot hold unknown fields, so writing it is an error."""
    newer = XlaEntry(XlaLayout.NEW, new_entry().raw + b"\xea\x04\x05newer")

    assert files.read(files.write([newer], XlaLayout.NEW, False), "x")[0].raw == newer.raw
    with pytest.raises(CacheError, match=r"cannot hold an entry with fields of another version of XLA \(end the"):
        files.write([newer], XlaLayout.NEW, True)


def test_an_entry_whose_name_is_a_path_with_dots_is_not_written(tmp_path: Path) -> None:
    """The hash of an HLO or the name of a device may contain `..`."""
    folder = tmp_path / "entries"
    folder.mkdir()
    bad = [new_entry(hlo="../../evil"), new_entry(device="..")]

    assert files.write_folder(folder, bad) == len(bad)
    assert list(tmp_path.rglob("*")) == [folder]


def test_xla_bytes_of_another_problem_raise_a_cache_error() -> None:
    ours = entries.to_entry(new_entry("a" * 32), H200)
    other = entries.to_entry(new_entry("b" * 32), H200)

    with pytest.raises(CacheError, match="holds an entry of XLA for another problem"):
        entries.to_xla(type(ours)(other.problem, other.fingerprint, native=ours.native))


def test_a_legacy_entry_has_operations_versions_and_choice() -> None:
    converted = [entries.to_entry(entry, H200) for entry in legacy_entries()]

    dot = next(entry for entry in converted if entry.label.startswith("dot"))
    assert dot.label == "dot: bf16[512,4,128], bf16[4,128,512] -> f32[4,512,512]"
    assert {value.name: value.value for value in dot.fingerprint} == {"cudnn": "9.10.0", "entry_version": 52}
    assert str(dot.choice).startswith("backend=TRITON, block_m=32, block_n=64, block_k=32")


LOG = """device: "ed0e56ab8b2a0ecb"
codegen_version: "ef00bdc5c7995cbf"
per_backend_versions { key: "CUDNN" value: "9.10.0" }
instruction_profiles {
  hlo_fingerprint: "aa"
  config_profiles { config { backend: TRITON backend_config { triton { block_m: 64 } } } run_time { nanos: 12500 } }
  failed_configs { config { backend: CUDNN } kind: COMPILATION_FAILED message: "no plan\\nmore" }
  hlo_text: "{ ROOT %d = f32[8,8]{1,0} dot(f32[8,4]{1,0} %a, f32[4,8]{1,0} %b) }"
  a_field_of_a_newer_xla: 1
}
"""


def test_times_failures_and_versions_are_read_from_the_xla_log() -> None:
    """The log has several modules. Each fusion has its candidates with their times or failures."""
    log = entries.read_log(LOG + LOG.replace('"aa"', '"bb"').replace("9.10.0", "9.11.0"))

    profiles = log.profiles
    assert profiles.keys() == {("ed0e56ab8b2a0ecb", "aa"), ("ed0e56ab8b2a0ecb", "bb")}
    fast, failed = profiles["ed0e56ab8b2a0ecb", "aa"].candidates
    assert (str(fast), fast.time_us) == ("backend=TRITON, block_m=64", 12.5)
    assert (str(failed), failed.failed) == ("backend=CUDNN", "compilation failed: no plan")
    assert log.backend_versions == {"CUDNN": "9.11.0"}


def test_fusions_and_candidate_times_are_read_from_a_real_log() -> None:
    """Each fusion has at least three candidates, and its recorded choice is among them."""
    profiles = entries.read_log((DATA / "h200_log.textproto").read_text()).profiles
    tuned = files.read((DATA / "h200_new.pb").read_bytes(), "h200_new.pb")
    choices = {str(entries.to_entry(entry, H200).choice) for entry in tuned}

    assert sorted(entries.describe_hlo(profile.hlo_text) for profile in profiles.values()) == [
        "gemm_fusion_dot: f32[4,256,256]; jit(<lambda>)/dot_general",
        "input_reduce_fusion: bf16[]; jit(<lambda>)/convert_element_type",
        "input_reduce_fusion: f32[256]; jit(<lambda>)/reduce_sum",
        "loop_reduce_fusion: f32[256,256]; jit(<lambda>)/tanh",
    ]
    for profile in profiles.values():
        assert len(profile.candidates) >= 3
        assert all(candidate.time_us or candidate.failed for candidate in profile.candidates)
        assert choices & {str(candidate) for candidate in profile.candidates}


def test_a_legacy_log_is_empty_and_a_cut_off_log_is_an_error() -> None:
    assert entries.read_log("logs {\n  fusion_name: 'x'\n}\n") == entries.TuningLog()
    with pytest.raises(ValueError, match="XLA's tuning log cannot be read"):
        entries.read_log(LOG[:-40])


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("ROOT %d = f32[8,8]{1,0} dot(f32[8,4]{1,0} %a, f32[4,8]{1,0} %b)", "dot: f32[8,4], f32[4,8] -> f32[8,8]"),
        (
            "%g = (f16[8,8]{1,0}, s8[32]{0}) custom-call(f16[8,4]{1,0} %a, f16[4,8]{1,0} %b), "
            'custom_call_target="__cublas$lt$matmul", backend_config={"a":"b"}',
            "__cublas$lt$matmul: f16[8,4], f16[4,8] -> f16[8,8], s8[32]",
        ),
        ("ROOT c = f32[4]{0} copy(f32[4]{0} p)", "copy: f32[4] -> f32[4]"),
        (
            "%gemm_fusion_dot.3 = bf16[8,8]{1,0} fusion(%a, %b), kind=kCustom, calls=%gemm_fusion_dot.3_computation, "
            'metadata={op_name="jit(dense)/jit(main)/dot_general" source_file="x.py"}, backend_config={"kind":"x"}',
            "gemm_fusion_dot: bf16[8,8]; jit(dense)/dot_general",
        ),
        ("no HLO at all", ""),
    ],
)
def test_an_xla_fusion_is_described_by_its_operations_and_shapes(text: str, summary: str) -> None:
    assert entries.describe_hlo(text) == summary


# The command


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``pytest-autotune convert`` in a folder; returns exit status, standard output and error."""

    def convert(*arguments: str) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            try:
                status = cli.main(["convert", *arguments])
            except SystemExit as stopped:
                status = int(stopped.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return convert


def test_convert_prints_how_many_entries_it_wrote_and_omitted(
    convert: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    ours = [entries.to_entry(entry, H200) for entry in (new_entry(), *legacy_entries())]
    update_store(stores.open_store(tmp_path / "a.textproto"), lambda now: Cache(tuple(ours)))

    assert convert("a.textproto", "a.yaml") == (0, "5 entries written to a.yaml\n", "")
    message = "1 entry written to new.pb in XLA's new format; 4 entries of other tuners or formats left out\n"
    assert convert("a.yaml", "new.pb", "--to=xla", "--xla-format=new") == (0, message, "")


@pytest.mark.parametrize("name", ["out.txt", "out.pb"])
def test_convert_keeps_a_file_with_results_that_the_cache_lacks(
    convert: Callable[..., tuple[int, str, str]], tmp_path: Path, name: str
) -> None:
    """A file whose results are all in the cache is replaced, also by other choices."""
    ours = [entries.to_entry(entry, H200) for entry in (new_entry("1" * 32, block=32), new_entry("2" * 32))]
    update_store(stores.open_store(tmp_path / "all.textproto"), lambda now: Cache(tuple(ours)))
    other_choice = entries.to_entry(new_entry("1" * 32), H200)
    update_store(stores.open_store(tmp_path / "one.textproto"), lambda now: Cache((other_choice,)))
    assert convert("one.textproto", name, "--to=xla")[0] == 0
    assert convert("all.textproto", name, "--to=xla")[0] == 0
    before = (tmp_path / name).read_bytes()

    status, _, errors = convert("one.textproto", name, "--to=xla")

    assert status == 4
    assert f"{name}: was not overwritten, because it holds 1 problem that IN lacks" in errors
    assert (tmp_path / name).read_bytes() == before


def test_convert_command_accepts_a_device_name_with_a_comma(
    convert: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "new.pb").write_bytes(files.write((new_entry(),), XlaLayout.NEW, False))

    assert convert("new.pb", "a.pb", "--from=xla", "--device=NVIDIA H200, NVL,sm_90,132")[0] == 0

    (converted,) = stores.read_cache(tmp_path / "a.pb").entries
    assert converted.problem.device == Device("NVIDIA H200, NVL", "sm_90", 132)


def bad_inputs() -> list[tuple[tuple[str, ...], str]]:
    return [
        ((), "Missing argument 'IN'"),
        (("a.textproto",), "Missing argument 'OUT'"),
        (("a.textproto", "b.txt", "--to=triton"), "Invalid value for '--to': 'triton' is not 'xla'"),
        (("missing.pb", "b.pb"), "missing.pb: no such file"),
        (("missing.pb", "b.pb", "--from=xla"), "missing.pb: no such file"),
        (("a.textproto", "b.docx"), 'b.docx: the suffix ".docx" is unknown'),
        (("a.textproto", "b.pb", "--from=xla"), "a.textproto: is not a file of XLA's autotuning results"),
        (("empty.pb", "b.pb"), "empty.pb: is empty"),
        (("xla.textproto", "b.pb"), "xla.textproto: is a file of XLA, not a cache (add --from=xla)"),
        (("noise.pb", "b.pb", "--from=xla"), "noise.pb: is not a file of XLA's autotuning results"),
        (("cut.pb", "b.pb", "--from=xla"), "cut.pb: is damaged"),
        (("old.textproto", "b.pb", "--from=xla"), "old.textproto: is in version 2 of XLA's file format, not 3"),
        (("a.textproto", "b.pb", "--to=xla"), "a.textproto: has entries in both of XLA's formats (add --xla-format="),
        (("none.textproto", "b.pb", "--to=xla"), "none.textproto: has no entries of XLA to write"),
        (
            ("xla.textproto", "a.textproto", "--from=xla", "--to=xla"),
            "a.textproto: was not overwritten, because it is not a file of XLA",
        ),
        (("a.textproto", "xla.textproto"), "xla.textproto:"),
        (("a.textproto", "b.pb", "--device=x"), "--device: is only for files of XLA (add --from=xla)"),
        (
            ("xla.textproto", "b.pb", "--from=xla", "--device=x"),
            "--device: expected NAME,ARCH,MULTIPROCESSORS such as NVIDIA H200,sm_90,132, not 'x'",
        ),
        (("a.textproto", "b.pb", "--xla-format=new"), "--xla-format: is only for output for XLA (add --to=xla)"),
        (("a.textproto", "file/b.pb"), "file/b.pb: cannot be written"),
        (("xla.textproto", "x/", "--from=xla", "--to=xla"), "x/: is a folder"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"), bad_inputs(), ids=[" ".join(arguments_of_case) for arguments_of_case, _ in bad_inputs()]
)
def test_convert_exits_with_4_and_one_line_for_invalid_input(
    convert: Callable[..., tuple[int, str, str]], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ours = [entries.to_entry(entry, H200) for entry in (new_entry(), *legacy_entries())]
    update_store(stores.open_store(tmp_path / "a.textproto"), lambda now: Cache(tuple(ours)))
    update_store(stores.open_store(tmp_path / "none.textproto"), lambda now: Cache())
    legacy = (DATA / "legacy_0.11.2.textproto").read_bytes()
    binary = files.write(legacy_entries(), XlaLayout.LEGACY, False)
    inputs = {
        "xla.textproto": legacy,
        "noise.pb": b"\xff\xfe noise",
        "cut.pb": binary[:-5],
        "old.textproto": legacy.replace(b"version: 3", b"version: 2", 1),
        "file": b"",
        "empty.pb": b"",
    }
    for name, data in inputs.items():
        (tmp_path / name).write_bytes(data)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    status, output, errors = convert(*arguments)

    assert (status, output) == (4, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
