"""A JAX suite from dump to stale, over a toy XLA that follows XLA's rules (tests/toy_jax)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Device
from tests.conftest import Suite

JAX_SUITE = """
import jax
import pytest

@pytest.mark.parametrize("epilogue", ["tanh", "logistic"])
def test_dot(epilogue):
    jax.compile("copy", epilogue)

def test_softmax():
    jax.compile("exponential", "tanh")
"""
H200 = Device("NVIDIA H200", "sm_90", 132)


@pytest.fixture
def jax_suite(suite: Suite) -> Suite:
    return with_toy_jax(suite)


@pytest.fixture
def serial(serial_suite: Suite) -> Suite:
    return with_toy_jax(serial_suite)


def with_toy_jax(suite: Suite) -> Suite:
    """The suite with the toy JAX beside its tests, where it hides a real one, in xdist's workers too."""
    for package in ("jax", "jaxlib"):
        (suite.folder / package).symlink_to(Path(__file__).parent.parent / "toy_jax" / package)
    return suite.write(test_jax=JAX_SUITE)


def test_loading_the_cache_of_a_jax_suite_gives_only_hits(jax_suite: Suite) -> None:
    dumped = jax_suite.dump()
    tunings = set(jax_suite.tunings)
    loaded = jax_suite.report("--autotune-load=cache.textproto", "--autotune-max-misses=0")

    dumped.assert_outcomes(passed=3)
    assert tunings == {"copy", "tanh", "logistic", "exponential"}
    assert jax_suite.tunings == []
    assert {name: count for name, count in loaded["counts"].items() if count} == {"hit": 4}
    assert loaded["complete"]


def test_an_entry_has_gpu_operations_versions_choice_and_time(serial: Suite) -> None:
    """The label names the operations and the shapes."""
    serial.dump()

    entries = stores.read_cache(serial.cache).entries
    tanh = next(entry for entry in entries if "tanh" in entry.label)
    assert tanh.problem.device == H200
    assert tanh.label == "dot, tanh: f16[64,4], f16[4,64] -> f32[64,64]"
    versions = "CUDNN 9.10.0, TRITON a77e7c793abc0d0c923a9afb275058e2fe57a198"
    assert str(tanh.versions) == f"jax 0.11.2, jaxlib 0.11.2, {versions}"
    assert str(tanh.choice) == "backend=TRITON, block_m=64"
    assert tanh.choice is not None
    assert tanh.choice.time_us == 10.0
    assert tanh.candidates == ()


def test_option_keep_candidates_adds_the_time_of_each_candidate(serial: Suite) -> None:
    serial.dump("-oautotune_keep_candidates=true")

    entry = next(entry for entry in stores.read_cache(serial.cache).entries if entry.candidates)
    times = {str(candidate): candidate.time_us for candidate in entry.candidates}
    assert times == {
        "backend=TRITON, block_m=32": 42.0,
        "backend=TRITON, block_m=64": 10.0,
        "backend=TRITON, block_m=128": 74.0,
    }


def test_the_row_of_a_miss_names_its_test_operations_and_shapes(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    serial.dump("-knot softmax")

    lines = section(serial.load())

    missed = next(line for line in lines if line.startswith("MISS"))
    assert missed.startswith("MISS test_jax.py::test_softmax - xla:hlo (")
    assert "dot, exponential: f16[64,11], f16[11,64] -> f32[64,64]" in missed
    assert missed.endswith("no entry for this HLO: new or changed code")
    assert "3 hits, 1 miss; 1 tuned" in lines


def test_the_row_of_an_unmeasured_miss_names_the_jax_program(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    serial.dump("-ksoftmax")

    lines = section(serial.load())

    assert any(
        line.startswith("MISS test_jax.py::test_dot") and "xla:hlo (in jit_program): no entry" in line for line in lines
    )


def test_a_stale_row_names_the_changed_cudnn_and_triton(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    serial.dump()

    lines = section(serial.load("-v", TOY_XLA_CUDNN="9.19.0", TOY_XLA_TRITON="b" * 40))

    stale = [line for line in lines if line.startswith("STALE")]
    assert len(stale) == 4
    changed = "XLA codegen changed: CUDNN 9.10.0 -> 9.19.0, TRITON a77e7c793abc -> bbbbbbbbbbbb"
    assert all(line.endswith(changed) for line in stale)


def test_stale_rows_of_the_legacy_format_name_changed_versions(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    serial.dump(TOY_XLA_LAYOUT="legacy")

    lines = section(serial.load("-v", TOY_XLA_LAYOUT="legacy", TOY_XLA_CUDNN="9.19.0", TOY_XLA_ENTRY_VERSION="52"))

    stale = [line for line in lines if line.startswith("STALE")]
    assert len(stale) == 4
    assert all(line.endswith(": cuDNN 9.10.0 -> 9.19.0, XLA's entry version 50 -> 52") for line in stale)


def test_misses_say_that_loaded_entries_have_the_legacy_format(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    serial.dump(TOY_XLA_LAYOUT="legacy")

    lines = section(serial.load("-v"))

    assert sum(line.endswith("those that are loaded are of XLA's legacy (jax <= 0.11.1) format") for line in lines) == 4


def test_one_file_gives_hits_for_both_xla_formats_and_two_gpus(serial: Suite) -> None:
    other = {"TOY_XLA_DEVICE": "a4baa03864db7cfb", "TOY_DEVICE": "NVIDIA H100 80GB HBM3"}
    serial.dump()
    serial.dump(TOY_XLA_LAYOUT="legacy")
    serial.dump(**other)

    assert len(stores.read_cache(serial.cache).entries) == 12
    for environment in ({}, {"TOY_XLA_LAYOUT": "legacy"}, other):
        loaded = serial.report("--autotune-load=cache.textproto", **environment)
        assert (loaded["counts"]["hit"], loaded["counts"]["tuned"]) == (4, 0)
        assert loaded["unused"] == []


def test_a_miss_says_how_xla_tells_two_gpus_of_one_name_apart(
    serial: Suite, section: Callable[[pytest.RunResult], list[str]]
) -> None:
    """Two GPUs have one name and different XLA descriptions. The row names the part that differs."""
    serial.dump(TOY_XLA_LAYOUT="legacy")
    other = "CUDA: 9.0, Cores: 132, L2 cache: 50 MB"

    lines = section(serial.load("-v", TOY_XLA_LAYOUT="legacy", TOY_XLA_DESCRIPTION=other))

    message = "XLA tells this NVIDIA H200 from the one it was tuned on: L2 cache: 60 MB -> L2 cache: 50 MB"
    assert sum(line.endswith(message) for line in lines) == 4


def test_option_on_miss_error_fails_the_jax_test_with_a_miss(serial: Suite) -> None:
    serial.dump("-knot softmax")

    result = serial.load("--autotune-on-miss=error")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*autotune: MISS xla:hlo (*): no entry for this HLO: new or changed code*"])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ('overrides=[("xla_gpu_autotune_level", 0)]', "with --xla_gpu_autotune_level=0, XLA tunes nothing"),
        ('flags={"xla_gpu_deterministic_ops": 1}', "with --xla_gpu_deterministic_ops, XLA tunes nothing and"),
        (
            'overrides=[("xla_gpu_exclude_nondeterministic_ops", "true")]',
            "with --xla_gpu_exclude_nondeterministic_ops, XLA tunes",
        ),
        (
            'flags={"xla_gpu_dump_autotune_results_to": "x.pb"}',
            "XLA's flag --xla_gpu_dump_autotune_results_to is set, and --autotune-dump does the same: remove the flag",
        ),
        ('overrides=[("xla_gpu_per_fusion_autotune_cache_dir", "d")]', "the compiler option xla_gpu_per_fusion_"),
    ],
)
def test_if_xla_flags_turn_off_the_tuning_of_xla_the_gate_fails(serial: Suite, call: str, reason: str) -> None:
    """The adapter leaves the program to XLA and reports it as untracked, with the setting."""
    serial.dump()
    serial.write(test_jax=f"import jax\ndef test_a(): jax.compile('tanh', {call})")

    result = serial.load("--autotune-max-misses=0")

    result.stdout.fnmatch_lines(["*1 passed*"])
    assert f"UNTRACKED xla:JAX programs ({reason}" in result.stdout.str()
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_with_unreadable_results_tests_pass_but_the_gate_fails(serial: Suite) -> None:
    """The tests pass, and the summary has a line about the error."""
    serial.dump()
    conftest = serial.folder / "conftest.py"
    unread = "def read(data, where): raise OSError('unread')"
    conftest.write_text(
        f"{conftest.read_text()}\nfrom pytest_autotune.tuners.xla import files\n{unread}\nfiles.read = read\n"
    )
    serial.pytester._method = "subprocess"

    result = serial.load("--autotune-max-misses=0")

    result.stdout.fnmatch_lines(["*3 passed*"])
    assert (
        "xla: internal error in backend_compile_and_load(): OSError: unread; xla tuned by itself" in result.stdout.str()
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_the_summary_says_why_jax_distributed_records_nothing(serial: Suite) -> None:
    result = serial.dump(TOY_JAX_DISTRIBUTED="1")

    result.assert_outcomes(passed=3)
    assert "UNTRACKED xla:JAX programs (under jax.distributed XLA itself shares its tuning" in result.stdout.str()


def test_a_line_says_that_xla_tunes_no_kernel_of_jax_on_the_cpu(serial: Suite) -> None:
    result = serial.dump(TOY_JAX_PLATFORM="cpu")

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["xla: JAX runs on the CPU here, where XLA tunes nothing; it tunes on GPUs"])


def test_a_dump_turns_off_the_jax_compilation_cache_and_says_so(serial: Suite) -> None:
    result = serial.dump(TOY_JAX_CACHE_DIR="jax-cache")

    assert len(serial.tunings) == 4
    assert "xla: JAX's persistent compilation cache is off in this run" in result.stdout.str()


def test_a_line_warns_if_a_conftest_uses_jax_before_the_tests(serial: Suite) -> None:
    conftest = serial.folder / "conftest.py"
    conftest.write_text(conftest.read_text() + "\nimport jax\njax.compile('early')\n")

    result = serial.dump()

    result.assert_outcomes(passed=3)
    assert "xla: JAX was in use before the tests ran" in result.stdout.str()


def test_a_jax_test_with_the_marker_enabled_false_gets_no_entry(serial: Suite) -> None:
    serial.write(
        test_jax="""
import jax, pytest

@pytest.mark.autotune_cache(enabled=False)
def test_alone(): jax.compile("exponential")

def test_tuned(): jax.compile("exponential", "tanh")
"""
    )

    serial.dump()

    assert len(stores.read_cache(serial.cache).entries) == 1


def test_a_jax_with_a_changed_signature_tunes_without_the_plugin(serial: Suite) -> None:
    conftest = serial.folder / "conftest.py"
    conftest.write_text(
        conftest.read_text()
        + "\nimport jax._src.compiler as c\nc.backend_compile_and_load = lambda client, module: None\n"
    )

    result = serial.dump()

    assert (
        "xla tunes without the plugin: compiler.backend_compile_and_load of jax 0.11.2 has another signature"
        in result.stdout.str()
    )


def test_a_dump_leaves_environment_variable_xla_flags_unchanged(serial: Suite) -> None:
    serial.write(
        test_jax="""
import os, jax

def test_a(monkeypatch):
    before = os.environ.get("XLA_FLAGS")
    jax.compile("tanh")
    assert os.environ.get("XLA_FLAGS") == before == "--xla_dump_to=elsewhere"
"""
    )

    serial.dump(XLA_FLAGS="--xla_dump_to=elsewhere").assert_outcomes(passed=1)
