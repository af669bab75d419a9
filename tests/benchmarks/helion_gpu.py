"""Run a suite of three Helion kernels on a GPU through all steps of a cache.

    python tests/benchmarks/helion_gpu.py

The script runs a dump, a load, a verification (a race of the loaded choices), a dump with two workers, and a load after
an edit of a helper function, which must fail. It prints the exit status, the seconds and the last 25 lines of each run,
and the cache of the first dump. It needs Helion and a GPU, and judges nothing: the reader compares the summaries.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

KERNELS = """
import helion
import helion.language as hl
import torch


def scale_and_add(alpha, x, y):
    return alpha * x + y


@helion.kernel(configs=[helion.Config(block_sizes=[size], num_warps=4) for size in (256, 1024, 4096)])
def axpy(alpha: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = scale_and_add(alpha, x[tile], y[tile])
    return out


TILES = [(64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8)]


@helion.kernel(configs=[helion.Config(block_sizes=[m, n, 64], num_warps=warps) for m, n, warps in TILES])
def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    m, k = a.size()
    _, n = b.size()
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, a[tile_m, tile_k], b[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(autotune_effort="quick")
def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out
"""
TESTS = """
import kernels
import pytest
import torch


@pytest.mark.parametrize("size", [100_000, 10_000_000])
def test_axpy(size):
    x = torch.rand(size, device="cuda")
    torch.testing.assert_close(kernels.axpy(2.0, x, x), 3 * x)


@pytest.mark.parametrize("size", [512, 2048])
def test_matmul(size):
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.float16)
    torch.testing.assert_close(kernels.matmul(a, b), a @ b, rtol=2e-2, atol=2e-1)


def test_row_sum():
    x = torch.rand(4096, 1000, device="cuda")
    torch.testing.assert_close(kernels.row_sum(x), x.sum(-1))
"""
LOAD = "--autotune-load=cache.textproto"


def run(folder: Path, title: str, *options: str) -> None:
    """Run pytest on the suite, and print its last lines."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin_options(), *options]
    started_s = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    print(f"== {title}: exit status {done.returncode}, {time.perf_counter() - started_s:.1f} s", flush=True)
    print("\n".join(lines[-25:]), flush=True)


def plugin_options() -> list[str]:
    """Return the options that load the plugin where it is not installed."""
    from importlib.metadata import entry_points

    if any(entry_point.value == "pytest_autotune.plugin" for entry_point in entry_points(group="pytest11")):
        return []
    return ["-p", "pytest_autotune.plugin"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kernels = folder / "kernels.py"
        kernels.write_text(KERNELS)
        (folder / "test_kernels.py").write_text(TESTS)
        run(folder, "dump", "--autotune-dump=cache.textproto")
        run(folder, "load", LOAD, "--autotune-max-misses=0", "--durations=3")
        run(folder, "verify", LOAD, "--autotune-verify")
        run(folder, "two workers, dump", "-n2", "--autotune-dump=other.textproto")
        kernels.write_text(KERNELS.replace("return alpha * x + y", "return y + alpha * x"))
        run(folder, "load after an edit of scale_and_add", LOAD, "--autotune-max-misses=0")
        print((folder / "cache.textproto").read_text())


if __name__ == "__main__":
    main()
