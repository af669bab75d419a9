"""An exported module picks at a launch, and `check` compares it with its cache; without Triton and a GPU."""

from __future__ import annotations

import enum
import importlib.util
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pytest_autotune
from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions
from tests.stores import update_store

H200 = Device("NVIDIA H200", "sm_90", 132)
H100 = Device("NVIDIA H100 80GB HBM3", "sm_90", 132)
PCIE = Device("NVIDIA H100 PCIe", "sm_90", 114)
A100 = Device("NVIDIA A100", "sm_80", 108)


def entry(m: Scalar, block: Scalar, device: Device = H200, dtype: str = "fp16", **more: Any) -> Entry:
    key = (Value("M", m), Value("CAUSAL", 1), Value("a.dtype", dtype, "dtype"))
    params = (Value("BLOCK", block), Value("num_warps", 4))
    problem = Problem("triton", more.pop("kernel", "lib.add"), key, device)
    source = Value("source", more.pop("source", "s"), "digest")
    versions = Versions.parse("triton 3.7.1, torch 2.13.0")
    return Entry(problem, (source,), Candidate(params=params, time_us=10.0), versions=versions, **more)


@dataclass(frozen=True)
class Config:
    BLOCK: Any

    @property
    def kwargs(self) -> dict[str, Any]:
        return {"BLOCK": self.BLOCK}

    def all_kwargs(self) -> dict[str, Any]:
        return {"BLOCK": self.BLOCK, "num_warps": 4}


class Mode(enum.IntEnum):
    FAST = 3


class Color(enum.Enum):
    RED = 3


class Int64(int):
    """An integer that has a dtype, as numpy's integers do."""

    dtype = "int64"


COMMAND = "pytest-autotune export c.textproto --to=python --output=_tuned.py"
TUNE_HERE = "tune on this GPU with this Triton: pytest --autotune-load= --autotune-dump=c.textproto"
CONFIGS = [Config(block) for block in (16, 32, 64, 128)]


@dataclass(frozen=True)
class constexpr:
    """A value as Triton's ``tl.constexpr`` wraps it, which equals the value itself."""

    value: object

    def __eq__(self, other: object) -> bool:
        return self.value == other


class Exported:
    """An exported module in a process with a GPU."""

    def __init__(self, folder: Path, module: Any) -> None:
        self.folder = folder
        self.module = module

    def pick(
        self,
        m: object,
        dtype: str = "torch.float16",
        ACTIVATION: object = None,
        DTYPE: object = ...,
        candidates: Sequence[Config] = CONFIGS,
        **options: Any,
    ) -> tuple[list[Any], list[str]]:
        """Return the blocks of the candidates that are left of a launch, and the warnings."""
        prune = self.module.pick("lib.add", **options)
        dtype_argument = {} if DTYPE is ... else {"DTYPE": DTYPE}
        a = SimpleNamespace(dtype=type("dtype", (), {"__str__": lambda self: dtype})())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            configs = prune(
                candidates,
                {"a": a, "M": m, "ACTIVATION": ACTIVATION, **dtype_argument},
                CAUSAL=True,
                grid=lambda meta: (1,),
            )
        return [config.BLOCK for config in configs], [str(warning.message) for warning in caught]


Export = Callable[..., Exported]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Export:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # that of a module written a moment ago would be taken
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(pytest_autotune, "ACTIVE_RUNS", set())  # as outside of a run

    def export(*entries: Entry, on: Device = H200, triton: str = "3.7.1", options: tuple[str, ...] = ()) -> Exported:
        major, minor = on.arch.removeprefix("sm_")
        found = SimpleNamespace(name=on.name, major=major, minor=minor, multi_processor_count=on.multiprocessors)
        cuda = SimpleNamespace(current_device=lambda: 0, get_device_properties=lambda index: found)
        compiler = SimpleNamespace(is_compiling=lambda: False)
        torch = SimpleNamespace(cuda=cuda, compiler=compiler, version=SimpleNamespace(hip=None))
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__=triton))
        update_store(stores.open_store("c.textproto"), lambda now: Cache(entries))
        assert cli.main(["export", "c.textproto", "--to=python", "-o", "_tuned.py", *options]) == 0, capsys.readouterr()
        return Exported(tmp_path, imported(tmp_path / "_tuned.py"))

    return export


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("_tuned", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_exported_module_picks_the_choice_of_a_known_problem(export: Export) -> None:
    exported = export(entry(64, 32), entry(128, 64), entry(64, 128, dtype="fp32"), entry(64, 16, kernel="lib.other"))

    assert exported.pick(64) == ([32], [])
    assert exported.pick(128) == ([64], [])
    assert exported.pick(64, "torch.float32") == ([128], [])


def test_triton_tunes_a_problem_the_export_lacks_and_warns_once(export: Export) -> None:
    exported = export(entry(64, 32), options=("--kernel=lib.*", "--device=NVIDIA*"))

    blocks, warned = exported.pick(65)

    assert blocks == [16, 32, 64, 128]
    assert warned == [
        "lib.add: no choice is known for {'CAUSAL': True, 'M': 65, 'a.dtype': 'float16'}, so Triton tunes "
        "(cover it in the tests, then: "
        "pytest-autotune export c.textproto --to=python '--kernel=lib.*' '--device=NVIDIA*' --output=_tuned.py)"
    ]
    assert exported.pick(66) == ([16, 32, 64, 128], [])
    assert exported.module.pick("lib.none")(CONFIGS, {}) is CONFIGS


def test_an_exported_module_uses_only_active_runs_of_the_plugin(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other libraries ship the line, so the name never changes."""
    exported = export(entry(64, 32))
    lines = (exported.folder / "_tuned.py").read_text().splitlines()
    (asking_line,) = [line.strip() for line in lines if "pytest_autotune" in line]
    assert asking_line == 'return bool(getattr(sys.modules.get("pytest_autotune"), "ACTIVE_RUNS", ()))'

    monkeypatch.setattr(pytest_autotune, "ACTIVE_RUNS", {"a run"})
    assert exported.pick(64) == ([16, 32, 64, 128], [])
    monkeypatch.delattr(pytest_autotune, "ACTIVE_RUNS")
    assert exported.pick(64) == ([32], [])
    docs = Path(__file__).parent.parent / "docs"
    assert "`pytest_autotune.ACTIVE_RUNS`" in (docs / "compatibility.md").read_text()


@pytest.mark.parametrize("output", ["nope/../p.py", "~/p.py"])
def test_export_paths_with_dots_or_tilde_overwrite_no_users_file(
    export: Export, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    folder = export(entry(64, 32)).folder
    monkeypatch.setenv("HOME", str(folder))
    (folder / "p.py").write_text("mine")

    assert cli.main(["export", "c.textproto", "--to=python", "-o", output]) == 4

    assert (folder / "p.py").read_text() == "mine"


def test_an_exported_choice_that_the_pruner_drops_is_not_used(export: Export) -> None:
    exported = export(entry(64, 32), entry(128, 128))

    def small(configs: Any, named_args: Any, **others: Any) -> Any:
        largest = named_args["M"] // 2
        yield from (config for config in configs if largest >= config.BLOCK)

    assert exported.pick(64, prune=small) == ([32], [])
    assert exported.pick(32, prune=small) == ([16], [])  # nothing is there to be tuned
    blocks, warned = exported.pick(128, prune=small)
    assert blocks == [16, 32, 64]
    assert len(warned) == 1


@pytest.mark.parametrize("block", [True, 1, 1.0, 0.0, -0.0], ids=repr)
def test_an_export_tells_candidates_apart_by_value_and_type(export: Export, block: Scalar) -> None:
    """Python calls some of these candidates equal. A test run and ``use()`` tell all of them apart."""
    candidates = [Config(value) for value in (True, 1, 1.0, 0.0, -0.0)]

    blocks, warned = export(entry(64, block)).pick(64, candidates=candidates)

    assert [repr(value) for value in blocks] == [repr(block)]
    assert warned == []


def test_an_exported_choice_needs_a_candidate_of_its_own_type(export: Export) -> None:
    blocks, warned = export(entry(64, 1.0)).pick(64, candidates=[Config(1), Config(2)])

    assert blocks == [1, 2]
    assert "{'BLOCK': 1.0, 'num_warps': 4} is no candidate any more" in warned[0]


def test_an_export_picks_candidates_of_numpy_and_constexpr(export: Export) -> None:
    """The entry of such a candidate has the plain value."""
    numpy = pytest.importorskip("numpy")
    exported = export(entry(64, 32), entry(128, numpy.float32(0.1).item()))

    for wrap in (numpy.int64, constexpr):
        candidates = [Config(wrap(value)) for value in (16, 32, 64)]
        assert exported.pick(64, candidates=candidates) == ([32], [])
    fractions = [Config(numpy.float32(value)) for value in (0.1, 0.2)]
    assert exported.pick(128, candidates=fractions) == ([numpy.float32(0.1)], [])


def test_a_thread_that_uses_an_exported_choice_runs_no_benchmark(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked = export(entry(64, 32)).module.pick("lib.add")
    driver = SimpleNamespace(active=SimpleNamespace(get_benchmarker=lambda: lambda call, quantiles: [5.0] * 3))
    monkeypatch.setattr(sys.modules["triton"], "runtime", SimpleNamespace(driver=driver), raising=False)

    def first_time(m: int) -> float:
        picked(CONFIGS, {"a": SimpleNamespace(dtype="torch.float16"), "M": m}, CAUSAL=True)
        picks.wait()
        return float(picked.do_bench(lambda: None, quantiles=(0.5, 0.2, 0.8))[0])

    picks = threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads, pytest.warns(UserWarning, match="so Triton tunes"):
        assert list(threads.map(first_time, (64, 65))) == [0.0, 5.0]


def test_argument_nearest_picks_the_choice_of_the_closest_size(export: Export) -> None:
    exported = export(entry(16, 16), entry(4096, 128), entry(300, 64, dtype="fp32"))

    blocks, warned = exported.pick(300, nearest=["M"])

    assert blocks == [128]  # 3.8 doublings away, and 16 is 4.2, though in numbers it is the nearer one
    assert warned[0].startswith("lib.add: the choice of {'CAUSAL': 1, 'M': 4096, 'a.dtype': 'float16'} is used for {")
    assert exported.pick(100, nearest=["M"])[0] == [16]
    assert len(exported.pick(300, nearest=["CAUSAL"])[0]) == 4
    assert len(exported.pick(300, "torch.bfloat16", nearest=["M"])[0]) == 4

    odd = export(entry(0, 32), entry(1, 64), entry(float("inf"), 128), entry("16", 16))
    assert [odd.pick(m, nearest=["M"])[0] for m in (2, 10**4000)] == [[64], [64]]
    assert [len(odd.pick(m, nearest=["M"])[0]) for m in ("15", None)] == [4, 4]

    is_gone = export(entry(64, 999), entry(256, 64))
    blocks, warned = is_gone.pick(65, nearest=["M"])
    assert len(blocks) == 4
    assert "{'BLOCK': 999, 'num_warps': 4} is no candidate any more" in warned[0]


@pytest.mark.parametrize(
    ("on", "options", "other_devices", "expected"),
    [
        (H100, (), False, [32]),
        (replace(H100, name="OEM H800"), (), False, [32]),
        (PCIE, (), False, [16, 32, 64, 128]),
        (PCIE, (), True, [32]),
        (PCIE, ("--alias=NVIDIA H100 PCIe = NVIDIA H200",), False, [64]),
        (A100, ("--alias=NVIDIA A100 = NVIDIA H200",), True, [16, 32, 64, 128]),
    ],
    ids=["exact", "same size", "another size", "another size, if wanted", "alias", "never another architecture"],
)
def test_a_choice_is_used_on_a_gpu_of_equal_size_or_if_allowed(
    export: Export, on: Device, options: tuple[str, ...], other_devices: bool, expected: list[int]
) -> None:
    # The first is the nearest to all of them in size.
    aliased = H200 if options else replace(H200, name="NVIDIA H20", multiprocessors=78)
    exported = export(entry(64, 32, H100), entry(64, 64, aliased), on=on, options=options)

    blocks, warned = exported.pick(64, other_devices=other_devices)

    assert blocks == expected
    is_exact = on == H100 or (options and on == PCIE)
    assert len(warned) == (0 if is_exact else 1)


def test_a_damaged_export_or_another_triton_version_warns_once(export: Export) -> None:
    exported = export(entry(64, 32), triton="3.8.0")

    blocks, warned = exported.pick(64)

    assert blocks == [32]
    tuned_on = "('NVIDIA H200', 'sm_90', 132, '3.7') and not on ('NVIDIA H200', 'sm_90', 132, '3.8.0')"
    assert warned[0].startswith("lib.add: the choice of {'CAUSAL': True, 'M': 64, 'a.dtype': 'float16'} on " + tuned_on)
    assert warned[0].endswith(f"({TUNE_HERE}, then: {COMMAND})"), "an update keeps what was tuned with another Triton"
    assert exported.pick(64) == ([32], [])
    blocks, warned = exported.pick(65, nearest=["M"])
    assert blocks == [32]
    assert len(warned) == 1
    assert len(exported.pick(65)[1]) == 1

    edited = export(entry(64, 32))
    edited.module.CHOICES = {"lib.add": {("NVIDIA H200", "sm_90"): []}}
    blocks, warned = edited.pick(64)
    assert blocks == [16, 32, 64, 128]
    assert warned[0].startswith("lib.add: no choice can be picked (ValueError(")


@pytest.mark.parametrize("triton", ["3.7.1", "3.8.0"])
def test_all_triton_versions_in_an_export_pick_without_a_warning(export: Export, triton: str) -> None:
    newer = replace(entry(65, 64), versions=Versions.parse("triton 3.8.0"))
    exported = export(entry(64, 32), newer, triton=triton)

    assert exported.pick(64) == ([32], [])
    assert exported.pick(65) == ([64], [])


def test_on_a_gpu_the_export_lacks_triton_tunes_with_a_warning(export: Export, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, warned = export(entry(64, 32), on=A100).pick(64)
    assert blocks == [16, 32, 64, 128]
    assert "no choice is known for ('NVIDIA A100', 'sm_80', 108, '3.7.1'), so Triton tunes" in warned[0]
    assert warned[0].endswith(f"({TUNE_HERE}, then: {COMMAND})"), "a test is there, and this GPU is not"

    exported = export(entry(64, 32))
    monkeypatch.delitem(sys.modules, "torch")
    blocks, warned = exported.pick(64)
    assert blocks == [16, 32, 64, 128]
    assert "no choice can be picked (KeyError('torch')), so Triton tunes" in warned[0]


def test_an_export_omits_a_problem_with_two_different_choices(export: Export, capsys: Any) -> None:
    exported = export(entry(64, 32), entry(64, 64, source="other"), entry(128, 64), entry(128, 64, source="other"))

    assert exported.pick(64)[0] == [16, 32, 64, 128]
    assert exported.pick(128)[0] == [64]
    assert "1 problem left out, because each has several choices: triton:lib.add (M=64" in capsys.readouterr().out


def test_an_export_omits_entries_with_keys_it_could_not_compare(export: Export, capsys: Any) -> None:
    def keyed(m: Any, block: int, *more: Value) -> Entry:
        known_entry = entry(1, block)
        return replace(
            known_entry, problem=replace(known_entry.problem, key=(Value("M", *m), *known_entry.problem.key[1:], *more))
        )

    exported = export(
        keyed(("9" * 5000, "int"), 128),
        keyed((float("nan"),), 128),
        keyed(("[('int', '1', '')]", "tuple"), 128),
        keyed((3,), 16),
        keyed(("3",), 32),
        keyed((4,), 64, Value("ACTIVATION", f"{__name__}.check@0", "function")),
        keyed((6,), 32, Value("ACTIVATION.1.dtype", "int64")),
        keyed((6,), 64, Value("M.dtype", "int64")),
        keyed((7,), 64),
        keyed((7,), 32, Value("DTYPE", "fp16", "dtype")),
        keyed((8,), 32, Value("ACTIVATION.dtype", "fp8e5", "dtype")),
        keyed((9,), 32, Value("ACTIVATION.class", "lib.Activation")),
    )

    assert "; 4 entries not exported, because an export cannot hold their values" in capsys.readouterr().out
    assert exported.pick(Mode.FAST, ACTIVATION=constexpr(None))[0] == [16]
    assert exported.pick("3")[0] == [32]
    assert exported.pick(6, ACTIVATION=(1, Int64()))[0] == [32]
    assert exported.pick(Int64(6))[0] == [64]
    reinterpreted = SimpleNamespace(dtype="fp8e5", base=SimpleNamespace(dtype="torch.int8"))
    assert exported.pick(8, ACTIVATION=reinterpreted)[0] == [32]
    unknown = [(3, constexpr(check)), (3, (check,)), (4, check), (4, None), ((1,), None), (Color.RED, None)]
    for m, activation in unknown:
        assert exported.pick(m, ACTIVATION=activation)[0] == [16, 32, 64, 128]
    assert exported.pick(7)[0] == [64]
    assert exported.pick(7, DTYPE="fp16")[0] == [16, 32, 64, 128]


def test_the_exported_module_omits_kernels_that_a_factory_made(export: Export, capsys: Any) -> None:
    known_entry = entry(64, 32, kernel="lib.made")
    of_none = replace(
        known_entry, problem=replace(known_entry.problem, key=(*known_entry.problem.key, Value("closure.FN", None)))
    )

    exported = export(known_entry, of_none, entry(64, 32))

    assert (
        "1 choice of 1 kernel for NVIDIA H200; 2 entries not exported, because an export "
        "cannot hold their values" in capsys.readouterr().out
    )
    assert list(exported.module.CHOICES) == ["lib.add"]


def test_the_exported_bytes_do_not_depend_on_the_entry_order(export: Export, capsys: Any) -> None:
    evil = 'lib.add"}\n__import__("os").abort()\n#\u202e\''
    entries = entry(64, 32), entry(64, 16, kernel=evil, device=replace(H200, name="x\n1/0"))
    exported = export(*entries)
    first = (exported.folder / "_tuned.py").read_bytes()

    head, *each = (cache := exported.folder / "c.textproto").read_text().split("entries {")
    cache.write_text("entries {".join([head, *reversed(each)]))
    assert cli.main(["export", "c.textproto", "--to=python", "-o", "_tuned.py"]) == 0
    assert (exported.folder / "_tuned.py").read_bytes() == first
    assert (export(*reversed(entries)).folder / "_tuned.py").read_bytes() == first
    assert first.isascii()
    assert evil in exported.module.CHOICES
    assert "_tuned.py is up to date" in capsys.readouterr().out


def test_export_refuses_a_wrong_alias_and_to_replace_users_files(export: Export, capsys: Any) -> None:
    folder = export(entry(64, 32)).folder
    (folder / "mine.py").write_text("COMMAND = 1\n")

    assert cli.main(["export", "c.textproto", "--to=python", "-o", "mine.py"]) == 4
    assert "mine.py: is not an export of pytest-autotune" in capsys.readouterr().err
    assert cli.main(["export", "c.textproto", "--to=python", "-o", "_tuned.py", "--alias=OEM = NVIDIA H20O"]) == 4
    assert "FILE has no choice for the device NVIDIA H20O (write a bare name: NVIDIA H200)" in capsys.readouterr().err
    assert cli.main(["export", "c.textproto", "--to=python", "-o", "_tuned.py", "--alias=NVIDIA H200=NVIDIA H200"]) == 4
    assert "the device NVIDIA H200 has its own choices in FILE" in capsys.readouterr().err


def check(capsys: Any) -> tuple[int, list[str]]:
    capsys.readouterr()
    status = cli.main(["check", "c.textproto", "--exported=_tuned.py"])
    return status, capsys.readouterr().out.splitlines()


def test_check_command_fails_for_an_export_older_than_its_cache(export: Export, capsys: Any) -> None:
    module = export(entry(64, 32), entry(128, 64), options=("--kernel=lib.*",)).folder / "_tuned.py"
    assert check(capsys) == (0, ["1 cache, 2 entries: fine"])

    changed = Cache((entry(64, 16), entry(128, 64), entry(8, 8, kernel="other")))
    update_store(stores.open_store("c.textproto"), lambda now: changed)
    status, lines = check(capsys)
    assert status == 1
    command = "pytest-autotune export c.textproto --to=python '--kernel=lib.*' --output=_tuned.py"
    (line,) = (at for at, text in enumerate(module.read_text().splitlines(), 1) if '"BLOCK": 32' in text)
    assert lines == [
        f"_tuned.py:{line}: differs from a new export of c.textproto (run: {command})",
        "1 cache, 3 entries: _tuned.py differs from a new export",
    ]

    assert cli.main(["export", "c.textproto", "--to=python", "--kernel=lib.*", "-o", "_tuned.py"]) == 0
    module.write_text(module.read_text().replace("pytest-autotune export", "rm -rf"))
    assert check(capsys)[1][0].startswith("_tuned.py: its COMMAND is not a command of pytest-autotune export: rm -rf")
    module.write_text(module.read_text().replace("COMMAND = ", "COMMAND = 7 #"))
    assert check(capsys)[1][0].startswith("_tuned.py: its COMMAND is not a command of pytest-autotune export: 7")
    module.write_text("import os\nos.abort()\n")
    assert check(capsys)[1][0].startswith("_tuned.py: is not an export of pytest-autotune: it has no COMMAND")


def test_the_example_export_is_up_to_date_and_imports_no_pytest(capsys: Any) -> None:
    example = Path(__file__).parent.parent / "example_suite"
    needed = "{'pytest', 'pytest_autotune', 'torch', 'triton'} & set(sys.modules)"
    script = f"import sys; from example_kernels._autotuned import pick, CHOICES; print(len(CHOICES), {needed})"
    done = subprocess.run([sys.executable, "-c", script], cwd=example, capture_output=True, text=True, check=True)
    assert done.stdout == "6 set()\n"

    cache, module = str(example / "autotune.textproto"), str(example / "example_kernels" / "_autotuned.py")
    assert cli.main(["check", cache, f"--exported={module}"]) == 0, capsys.readouterr().out
