"""Real XLA without a GPU: what it does with the files that are made for it.

It needs JAX's CUDA plugin, of which only the library is used: ``make test-jax``. Without a device XLA tunes and
dumps nothing, so XLA's own count of hits and misses is what is compared.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.tuners.xla import entries, files
from pytest_autotune.tuners.xla.files import XlaEntry, XlaLayout
from tests.stores import update_store

HARNESS = Path(__file__).parent / "xla_deviceless"
#: The version with the new format whose fingerprints stand below, and one that knows the legacy format only.
NEW_JAXLIB, LEGACY_JAXLIB = "0.11.2", "0.10.2"
H200 = Device("NVIDIA H200", "sm_90", 132)
# XLA 0.11.2's name of the H200 of h200.txtpb, the versions of its backends, and the four fusions of dot_with_epilogue.
DEVICE = "ed0e56ab8b2a0ecb"
CODEGEN = "ef00bdc5c7995cbf"
TRITON = "a77e7c793abc0d0c923a9afb275058e2fe57a198"
REDUCTIONS = (
    "73b79c30567f996232457548770aa33d",
    "9e544d3f8843fbb06d3fd348b8cac3b8",
    "9f265533f4344939f034791e4b32d031",
)
DOT = "caf9d643c21ac9d70af876c77a8fb7b1"
SUITE = """
import harness
import pytest

@pytest.fixture(scope="session")
def gpu():
    return harness.gpu_sharding()

def test_dot(gpu):
    print("TILE", harness.compiled(harness.dot_with_epilogue, 512, gpu).count('"sizes":["1","32","64"]'))
"""


def _unavailable() -> str:
    if not os.environ.get("XLA_CUDA_PLUGIN"):
        return "needs XLA's CUDA plugin, named by XLA_CUDA_PLUGIN: make test-jax"
    if _jaxlib() not in (NEW_JAXLIB, LEGACY_JAXLIB):
        return f"needs jaxlib {NEW_JAXLIB} or {LEGACY_JAXLIB}, whose fusions are known here, not {_jaxlib()}"
    return ""


def _jaxlib() -> str:
    try:
        return importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return "none"


pytestmark = pytest.mark.skipif(bool(_unavailable()), reason=_unavailable() or "-")
new_format = pytest.mark.skipif(_jaxlib() != NEW_JAXLIB, reason=f"needs jaxlib {NEW_JAXLIB}")


@dataclass(frozen=True)
class XlaRun:
    """The results that XLA printed for one compilation.

    :param keys: of a legacy run: (device, HLO text, version) of what was looked up.
    """

    hits: int
    misses: int
    output: str
    keys: tuple[tuple[str, str, int], ...]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., XlaRun]:
    """Runs the suite with real XLA and these options and flags."""
    (tmp_path / "test_dot.py").write_text(SUITE)

    def run(*args: str, flags: str = "") -> XlaRun:
        environment = {
            **os.environ,
            "PYTHONPATH": str(HARNESS),
            "XLA_FLAGS": flags,
            # JAX sets a level of its own where none is set.
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TF_CPP_VMODULE": "config_assigner_pass=1,autotuner_pass=1,autotuner_cache=2",
        }
        command = [sys.executable, "-m", "pytest", "-s", "-pno:xdist", *args]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        xla_run = done.stdout + done.stderr
        stats = re.search(r"cache stats: hits=(\d+), misses=(\d+)", xla_run)
        assert stats is not None, xla_run[-3000:]
        keys = re.findall(r"key = <key model='(.*?)', hlo='(.*?)', version=(\d+)>", xla_run, re.DOTALL)
        return XlaRun(
            int(stats[1]), int(stats[2]), xla_run, tuple((d, hlo, int(v)) for d, hlo, v in dict.fromkeys(keys))
        )

    return run


LEGACY_FLAG = "--xla_gpu_use_new_autotune_cache_format=false" if _jaxlib() == NEW_JAXLIB else ""


def new_entry(hlo: str, codegen: str = CODEGEN, version: str = TRITON, device: str = DEVICE) -> XlaEntry:
    message = files.new_message("xla.autotuner.AutotuneEntry")
    message.key.target.device, message.key.target.hlo_fingerprint = device, hlo
    message.key.environment.codegen_version = codegen
    config = message.value.optimal_config
    if hlo == DOT:
        config.backend = 2
        triton = config.backend_config.triton
        triton.block_m, triton.block_n, triton.block_k = 32, 64, 32
        triton.num_stages, triton.num_warps, triton.num_ctas, triton.group_size = 2, 4, 1, 1
        message.value.optimal_backend_version = version
    else:
        config.backend = 10
        config.backend_config.native_emitter.SetInParent()
        message.value.optimal_backend_version = "v1" if version == TRITON else version
    return XlaEntry(XlaLayout.NEW, message.SerializeToString())


def legacy_entry(device: str, hlo: str, version: int) -> XlaEntry:
    message = files.new_message("xla.AutotuneResultsEntry")
    message.device, message.hlo, message.version = device, hlo, version
    if " dot(" in hlo:
        triton = message.result.triton
        triton.block_m, triton.block_n, triton.block_k = 32, 64, 32
        triton.num_stages, triton.num_warps, triton.num_ctas = 2, 4, 1
    else:
        old = _jaxlib() == LEGACY_JAXLIB
        name = "xla.gpu.NativeEmitterBackendConfig" if old else "xla.autotuner.BackendConfig"
        config = files.new_message(name)
        if not old:
            config.native_emitter.SetInParent()
        message.result.other.name = "NATIVE_EMITTER"
        message.result.other.config.type_url = f"type.googleapis.com/{name}"
        message.result.other.config.value = config.SerializeToString()
    return XlaEntry(XlaLayout.LEGACY, message.SerializeToString())


def cache(path: Path, xla_entries: Sequence[XlaEntry]) -> str:
    """Writes a cache of ours with these entries; returns the option that loads it."""
    update_store(
        stores.open_store(path), lambda now: Cache(tuple(entries.to_entry(entry, H200) for entry in xla_entries))
    )
    return f"--autotune-load={path}"


def convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_autotune.cli", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@new_format
def test_xla_counts_a_hit_for_every_entry_that_the_plugin_loaded(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    xla_run = run(cache(tmp_path / "cache.textproto", [new_entry(hlo) for hlo in (*REDUCTIONS, DOT, "0" * 32)]))

    assert (xla_run.hits, xla_run.misses) == (4, 0)
    assert "TILE 1" in xla_run.output


@new_format
def test_xla_counts_a_miss_for_a_fusion_without_an_entry(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    xla_run = run(cache(tmp_path / "cache.textproto", [new_entry(hlo) for hlo in REDUCTIONS]))

    assert (xla_run.hits, xla_run.misses) == (3, 1)


@new_format
def test_xla_counts_entries_of_another_backend_version_as_misses(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    stale = [new_entry(hlo, codegen="deadbeefdeadbeef", version="old") for hlo in (*REDUCTIONS, DOT)]

    xla_run = run(cache(tmp_path / "cache.textproto", stale))

    assert (xla_run.hits, xla_run.misses) == (0, 4)
    assert "version_mismatch=4" in xla_run.output


@new_format
def test_xla_itself_accepts_entries_of_another_codegen_version(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    """The backend's version is equal. XLA counts hits, but no strict hits."""
    xla_run = run(
        cache(tmp_path / "cache.pb", [new_entry(hlo, codegen="deadbeefdeadbeef") for hlo in (*REDUCTIONS, DOT)])
    )

    assert (xla_run.hits, xla_run.misses) == (4, 0)
    assert "strict_hits=0" in xla_run.output


@new_format
def test_of_two_loaded_caches_xla_uses_entries_of_the_last_one(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    """The first cache has stale entries for the same fusions. XLA uses the entries of the second cache."""
    stale = [new_entry(hlo, codegen="deadbeefdeadbeef", version="old") for hlo in (*REDUCTIONS, DOT)]
    current = [new_entry(hlo) for hlo in (*REDUCTIONS, DOT)]

    xla_run = run(cache(tmp_path / "old.pb", stale), cache(tmp_path / "new.pb", current))

    assert (xla_run.hits, xla_run.misses) == (4, 0)


def test_xla_with_the_old_format_flag_hits_old_format_entries(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    empty = cache(tmp_path / "empty.pb", [])
    missed = run(empty, "--autotune-tuners=xla", flags=LEGACY_FLAG)
    assert (missed.hits, len(missed.keys)) == (0, 4)
    loaded = cache(tmp_path / "cache.textproto", [legacy_entry(*key) for key in missed.keys])

    xla_run = run(loaded, flags=f"{LEGACY_FLAG} --xla_dump_to={tmp_path / 'xla'}")

    assert (xla_run.hits, xla_run.misses) == (4, 0)
    assert "TILE 1" in xla_run.output
    # XLA has printed the choices that it took over: a text that it wrote itself.
    written = next((tmp_path / "xla").glob("*.autotune_results.pbtxt"))
    back, again = tmp_path / "back.textproto", tmp_path / "again.pbtxt"
    assert convert(written, back, "--from=xla").returncode == 0
    assert convert(back, again, "--to=xla").returncode == 0
    assert again.read_bytes() == written.read_bytes()
    assert stores.read_cache(back).entries
    assert {entry.native for entry in stores.read_cache(back).entries} == {
        legacy_entry(*key).raw for key in missed.keys
    }


@new_format
@pytest.mark.parametrize("name", ["results.pb", "results.textproto"])
def test_xla_loads_a_converted_cache_by_its_own_flag(run: Callable[..., XlaRun], tmp_path: Path, name: str) -> None:
    entries = [new_entry(hlo) for hlo in (*REDUCTIONS, DOT)]
    cache(tmp_path / "cache.textproto", entries)
    assert convert(tmp_path / "cache.textproto", tmp_path / name, "--to=xla").returncode == 0

    xla_run = run(flags=f"--xla_gpu_load_autotune_results_from={tmp_path / name}")

    assert (xla_run.hits, xla_run.misses) == (4, 0)
    data = (tmp_path / name).read_bytes()
    assert {entry.raw for entry in files.read(data, name)} == {entry.raw for entry in entries}


@new_format
def test_xla_without_the_old_format_flag_misses_those_entries(run: Callable[..., XlaRun], tmp_path: Path) -> None:
    description = "CUDA: 9.0, Cores: 132, DNN version: 9.10.0"

    xla_run = run(cache(tmp_path / "cache.textproto", [legacy_entry(description, "{ dot }", 52)]))

    assert (xla_run.hits, xla_run.misses) == (0, 4)
