"""Measure a shipped cache in production, without pytest: the example suite's kernels on an NVIDIA H200.

    python tests/benchmarks/production.py [ROUNDS]

1. The imports of the exported module and of ``use``, and one pick among ten candidates: medians of new processes.
2. With an H200, for each of five ways to launch: the first call of each kernel, in a new process with an empty compile
   cache. A figure is the lowest wall time of the rounds (default 2; "plain" runs once).
3. A later launch of the ``add`` kernel in each way: microseconds, the median of 101 x 20 launches.

The ways: "plain" tunes; "exported" uses the exported pruner; "untimed" uses the exported ``do_bench``, too; "use" calls
``pytest_autotune.use``; "alone" gives each autotuner only its best candidate, so that Triton has nothing to tune.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, median, table

EXAMPLE = REPOSITORY / "example_suite"
WAYS = ("plain", "exported", "untimed", "use", "alone")


@dataclass(frozen=True)
class FirstCall:
    """A kernel of the example suite, and a call whose problem is in the committed cache."""

    name: str
    autotuner: Any
    call: Callable[[], object]


def list_first_calls() -> Iterator[FirstCall]:
    """Yield a call of each kernel. Make the call before the next kernel: the backward pass needs the forward pass."""
    import torch
    from example_kernels import add, attention, layer_norm, matmul, softmax

    def random(*shape: int, grad: bool = False) -> Any:
        return torch.rand(shape, dtype=torch.float16, device="cuda", requires_grad=grad)

    x, y = random(2**24), random(2**24)
    yield FirstCall("add", add.add_kernel, partial(add.add, x, y))
    rows = random(4, 2048, 4096)
    yield FirstCall("softmax", softmax.softmax_kernel, partial(softmax.softmax, rows))
    a, b = random(1024, 1024), random(1024, 1024)
    yield FirstCall("matmul", matmul.matmul_kernel, partial(matmul.matmul, a, b))
    q, k, v = random(2, 16, 2048, 64), random(2, 16, 2048, 64), random(2, 16, 2048, 64)
    yield FirstCall("attention", attention.attention_kernel, partial(attention.attention, q, k, v))
    inputs = random(4096, 1024, grad=True), random(1024, grad=True), random(1024, grad=True)
    outputs: list[Any] = []

    def call_layer_norm() -> None:
        outputs.append(layer_norm.layer_norm(*inputs))

    yield FirstCall("layer norm", layer_norm.layer_norm_forward_kernel, call_layer_norm)
    dy = random(4096, 1024)

    def call_backward() -> None:
        torch.autograd.grad(outputs[-1], inputs, dy)

    yield FirstCall("layer norm, backward", layer_norm.layer_norm_backward_kernel, call_backward)


def keep_only_best(autotuner: Any, prune: Any) -> None:
    """Leave an autotuner only its best candidate, so that no version of Triton tunes."""
    run = autotuner.run

    def run_best(*args: Any, **kwargs: Any) -> Any:
        if len(autotuner.configs) > 1:
            autotuner.configs = prune(autotuner.configs, dict(zip(autotuner.arg_names, args, strict=False)), **kwargs)
            assert len(autotuner.configs) == 1
        return run(*args, **kwargs)

    autotuner.run = run_best


def run_way(way: str, folder: str) -> None:
    """Make the first call of each kernel in one way, in this process, and print the times as JSON.

    :param folder: has the exported module.
    """
    sys.path[:0] = [folder, str(EXAMPLE)]
    import torch

    # The first tensor initialises CUDA, before any time is taken.
    torch.rand(1, device="cuda")
    if way == "use":
        import pytest_autotune

        pytest_autotune.use("example_kernels", str(EXAMPLE / "autotune.textproto"), on_miss="error")
    import _autotuned

    seconds: dict[str, float] = {}
    launch_us = 0.0
    for first in list_first_calls():
        autotuner = first.autotuner
        prune = _autotuned.pick(f"{autotuner.base_fn.__module__}.{autotuner.base_fn.__qualname__}")
        if way in ("exported", "untimed"):
            autotuner.early_config_prune = prune
        # A user would write do_bench=picked.do_bench.
        if way == "untimed":
            autotuner._do_bench = prune.do_bench
        if way == "alone":
            keep_only_best(autotuner, prune)
        torch.cuda.synchronize()
        started = time.perf_counter()
        first.call()
        torch.cuda.synchronize()
        seconds[first.name] = time.perf_counter() - started
        if first.name == "add":
            launch_us = measure_launch_us(first.call)
    print(json.dumps({"seconds": seconds, "launch_us": launch_us}))


def measure_launch_us(call: Callable[[], object]) -> float:
    """Return the microseconds of a later call, as the host sees it: 20 launches follow without a wait for the GPU."""
    import torch

    times_s = []
    for _ in range(101):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            call()
        times_s.append((time.perf_counter() - started) / 20)
    return median(times_s) * 1e6


def run_python(*arguments: str, **environment: str) -> str:
    """Run Python in a new process, and return its output.

    :raises SystemExit: if the process fails.
    """
    paths = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "", **environment},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


IMPORT_EXPORT = """
import sys, time
sys.path.insert(0, {folder!r})
{before}
started = time.perf_counter()
import _autotuned
print(time.perf_counter() - started)
"""
IMPORT_USE = """
import sys, time
started = time.perf_counter()
import pytest_autotune
loaded = pytest_autotune.use("lib", {path!r})
used = time.perf_counter()
loaded._find_picker("triton", ("NVIDIA H200", "sm_90", 132))
print(used - started, time.perf_counter() - used)
"""
PICK = """
import sys, time
sys.path.insert(0, {folder!r})
import torch, triton
import _autotuned
_autotuned.device = lambda: ("NVIDIA H200", "sm_90", 132, "3.6")
prune = _autotuned.pick("example_kernels.matmul.matmul_kernel")
a = torch.zeros(4, dtype=torch.float16)
configs = []
for m, n, k in [(128, 256, 32), (128, 128, 64), (128, 128, 32), (128, 64, 64), (64, 128, 64), (64, 64, 64)]:
    params = dict(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8)
    configs += [triton.Config(params, num_warps=w, num_stages=s) for w in (2, 4, 8) for s in (3, 4, 5)]
choices = _autotuned.find_choices("example_kernels.matmul.matmul_kernel", False).choice_by_key
M, N, K = 1024, 1024, 1024
for key, params in choices.items():
    if dict(key)["M"] == M and dict(key)["a_ptr.dtype"] == "float16":
        choice = dict(params)
        break
configs = [config for config in configs if config.all_kwargs() != choice][:9]
options = {{name: choice.pop(name) for name in ("num_warps", "num_stages", "num_ctas")}}
configs.append(triton.Config(choice, **options))
named = dict(zip("a_ptr b_ptr c_ptr M N K s1 s2 s3 s4 s5 s6".split(), (a, a, a, M, N, K, 1, 2, 3, 4, 5, 6)))
times = []
for _ in range(2000):
    started = time.perf_counter()
    left = prune(configs, named, ACTIVATION=None, grid=None, warmup=False)
    times.append(time.perf_counter() - started)
assert len(left) == 1
print(sorted(times)[1000] * 1e6)
"""


def write_many_entries(path: Path) -> None:
    """Write a cache of 1,000 entries: those of the example suite, under many names of kernels."""
    from pytest_autotune.cache import stores
    from pytest_autotune.cache.model import Cache

    cache = stores.read_cache(str(EXAMPLE / "autotune.textproto"))
    triton_entries = [entry for entry in cache.entries if entry.problem.tuner == "triton"]
    entries = []
    for number in range(1000 // len(triton_entries) + 1):
        for entry in triton_entries:
            problem = replace(entry.problem, kernel=f"lib.kernel_{number}.{entry.problem.kernel}")
            entries.append(replace(entry, problem=problem))
    with stores.open_store(str(path)).open_for_update() as opened:
        opened.write(Cache(tuple(entries[:1000])))


def export_choices(folder: str) -> None:
    """Write the exported module of the example suite's cache."""
    script = "from pytest_autotune.cli import main; import sys; sys.exit(main())"
    options = ["--to=python", "--device=NVIDIA*", "-o", f"{folder}/_autotuned.py"]
    run_python("-c", script, "export", str(EXAMPLE / "autotune.textproto"), *options)


def measure_imports(folder: str) -> None:
    """Print the times of the imports and of a pick."""
    many_entries = Path(folder) / "thousand.textproto"
    write_many_entries(many_entries)
    bare_s, after_torch_s, use_s, read_s, pick_us = [], [], [], [], []
    for _ in range(7):
        bare_s.append(float(run_python("-c", IMPORT_EXPORT.format(folder=folder, before=""))))
    for _ in range(3):
        after_torch_s.append(float(run_python("-c", IMPORT_EXPORT.format(folder=folder, before="import torch"))))
    for _ in range(5):
        use_time, read_time = run_python("-c", IMPORT_USE.format(path=str(many_entries))).split()
        use_s.append(float(use_time))
        read_s.append(float(read_time))
    for _ in range(3):
        pick_us.append(float(run_python("-c", PICK.format(folder=folder))))
    rows = [
        ("import of the exported module, nothing else imported", f"{median(bare_s) * 1e3:.1f} ms"),
        ("import of the exported module after torch", f"{median(after_torch_s) * 1e3:.1f} ms"),
        ("import of `use`, and its call with 1,000 entries", f"{median(use_s) * 1e3:.0f} ms"),
        ("reading the 1,000 entries, at the first question", f"{median(read_s) * 1e3:.0f} ms"),
        ("a pick of one of 10 candidates, known problem", f"{median(pick_us):.1f} us"),
    ]
    table(["measured", "time"], rows)
    print(flush=True)


def measure_ways(folder: str, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run each way in new processes, and return what each process printed. "plain" runs in the first round only."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS:
            if way == "plain" and number > 0:
                continue
            with tempfile.TemporaryDirectory() as compile_cache:
                runs[way].append(json.loads(run_python(__file__, way, folder, TRITON_CACHE_DIR=compile_cache)))
    return runs


def print_ways(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print the tables of the first calls and of the later launches."""
    rows = []
    sums = dict.fromkeys(WAYS, 0.0)
    for name in runs["alone"][0]["seconds"]:
        row = [name]
        for way in WAYS:
            seconds = min(run["seconds"][name] for run in runs[way])
            sums[way] += seconds
            row.append(f"{seconds:.3f} s")
        rows.append(row)
    rows.append(["all", *(f"{sums[way]:.3f} s" for way in WAYS)])
    rows.append(["times the best alone", *(f"{sums[way] / sums['alone']:.2f}" for way in WAYS)])
    table(["first call, nothing compiled", *WAYS], rows)
    print(flush=True)
    launches = [f"{min(run['launch_us'] for run in runs[way]):.1f} us" for way in WAYS]
    table(["later launches of add", *WAYS], [["each", *launches]])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(machine("torch", "triton"), "\n")
    with tempfile.TemporaryDirectory() as folder:
        export_choices(folder)
        measure_imports(folder)
        if run_python("-c", "import torch; print(torch.cuda.is_available())").strip() == "True":
            print_ways(measure_ways(folder, rounds))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_way(*sys.argv[1:])
    else:
        main()
