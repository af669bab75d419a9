"""JAX on a real GPU: dump, load, workers, and XLA's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.tuners.xla import files

pytestmark = pytest.mark.gpu

SUITE = """
import jax, jax.numpy as jnp, pytest

@pytest.mark.parametrize("n", [256, 512])
def test_dot(n):
    a = jnp.ones((n, n), jnp.bfloat16)
    assert jax.jit(lambda a: jnp.tanh(a @ a))(a).shape == (n, n)

def test_softmax():
    x = jnp.ones((300, 1000))
    assert jax.jit(lambda x: jax.nn.softmax(x, axis=-1) @ x.T)(x).shape == (300, 300)
"""
# No test may hold the GPU's memory: JAX is only ever imported in processes of their own.
ENVIRONMENT = {
    **os.environ,
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_ADDOPTS": "",
}
ENVIRONMENT.pop("PYTEST_XDIST_WORKER", None)


@pytest.fixture(scope="module")
def jax_gpu() -> None:
    """Skip where JAX has no GPU."""
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    if done.stdout.strip() != "gpu":
        pytest.skip("needs JAX with a GPU")


Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(jax_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JAX suite with its dump, ``cache.textproto``."""
    folder = tmp_path_factory.mktemp("jax")
    (folder / "test_jax.py").write_text(SUITE)
    run(folder, "--autotune-dump=cache.textproto")
    return folder


def run(folder: Path, *args: str, flags: str = "") -> str:
    """Run the suite; returns what was printed."""
    command = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "-v", *args]
    environment = {**ENVIRONMENT, "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def convert(folder: Path, *args: str) -> None:
    subprocess.run([sys.executable, "-m", "pytest_autotune.cli", "convert", *args], cwd=folder, check=True)


def keys(path: Path) -> list[tuple[object, ...]]:
    return [entry.sort_key for entry in stores.read_cache(path).entries]


def test_a_jax_dump_has_choices_times_and_names_of_operations(folder: Path) -> None:
    entries = stores.read_cache(folder / "cache.textproto").entries
    dots = [entry for entry in entries if "dot" in entry.label.partition(":")[0]]

    assert dots, [entry.label for entry in entries]
    assert all(entry.problem.device.arch.startswith("sm_") for entry in entries)
    assert all(entry.choice is not None and entry.choice.params for entry in entries)
    assert all(entry.choice is not None and entry.choice.time_us for entry in dots)
    assert "CUDNN" in dict(entries[0].versions.libraries)


def test_loading_a_jax_dump_on_the_gpu_gives_only_hits(folder: Path) -> None:
    entries = len(stores.read_cache(folder / "cache.textproto").entries)

    output = run(folder, "--autotune-load=cache.textproto", "--autotune-max-misses=0")

    assert f"{entries} hits" in output
    assert " tuned" not in output


def test_a_jax_program_without_an_entry_is_a_miss_of_its_test(folder: Path) -> None:
    run(folder, "--autotune-dump=hole.textproto", "-kdot")

    output = run(folder, "--autotune-load=hole.textproto")

    missed = [line for line in output.splitlines() if line.startswith("MISS")]
    assert missed
    assert all("test_jax.py::test_softmax" in line for line in missed)
    assert all("xla:hlo (" in line for line in missed)
    assert any("[" in line.partition("xla:hlo (")[2] for line in missed), "none has a shape"


def test_four_workers_dump_the_same_xla_keys_as_one_process(folder: Path) -> None:
    run(folder, "-pxdist", "-n4", "--autotune-dump=sharded.textproto")

    assert keys(folder / "sharded.textproto") == keys(folder / "cache.textproto")


def test_a_dump_in_the_old_format_of_xla_loads_with_hits_only(folder: Path) -> None:
    flag = "--xla_gpu_use_new_autotune_cache_format=false"
    run(folder, "--autotune-dump=legacy.textproto", flags=flag)

    output = run(folder, "--autotune-load=legacy.textproto", "--autotune-max-misses=0", flags=flag)

    entries = stores.read_cache(folder / "legacy.textproto").entries
    assert {entry.problem.kernel for entry in entries} == {"hlo.legacy"}
    assert f"{len(entries)} hits" in output


@pytest.mark.parametrize("layout", ["new", "legacy"])
@pytest.mark.parametrize("suffix", ["pb", "textproto"])
def test_converting_an_xla_file_there_and_back_keeps_its_bytes(folder: Path, layout: str, suffix: str) -> None:
    name = f"own-{layout}.{suffix}"
    flags = f"--xla_gpu_use_new_autotune_cache_format={'true' if layout == 'new' else 'false'}"
    run(folder, flags=f"{flags} --xla_gpu_dump_autotune_results_to={folder / name}")

    convert(folder, name, f"back-{layout}.json", "--from=xla")
    convert(folder, f"back-{layout}.json", f"again-{layout}.{suffix}", "--to=xla")

    assert (folder / f"again-{layout}.{suffix}").read_bytes() == (folder / name).read_bytes()


def test_xla_without_the_plugin_uses_a_converted_cache(folder: Path) -> None:
    convert(folder, "cache.textproto", "for-xla.pb", "--to=xla")

    flags = (
        f"--xla_gpu_load_autotune_results_from={folder}/for-xla.pb --xla_gpu_dump_autotune_results_to={folder}/out.pb"
    )
    run(folder, flags=flags)

    def read(name: str) -> set[bytes]:
        return {entry.raw for entry in files.read((folder / name).read_bytes(), name)}

    assert read("out.pb") == read("for-xla.pb")
