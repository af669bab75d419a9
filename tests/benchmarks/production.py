"""What a shipped cache costs and saves in production, without pytest: the example suite's kernels on an NVIDIA H200.

    python tests/benchmarks/production.py [ROUNDS]

Each way of launching is a process of its own with an empty compile cache. Without a GPU, only what needs none is
measured: imports, and a pick.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, median, table

EXAMPLE = REPOSITORY / "example_suite"
WAYS = ("plain", "exported", "untimed", "use", "alone")


def first_calls() -> Iterator[tuple[str, Any, Callable[[], object]]]:
    """Each kernel's name and autotuner, and a call of it that the committed cache knows."""
    import torch
    from example_kernels import add, attention, layer_norm, matmul, softmax

    def made(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
        return torch.rand(shape, dtype=dtype, device="cuda", requires_grad=grad)

    x, y = made(2**24), made(2**24)
    yield "add", add.add_kernel, lambda: add.add(x, y)
    rows = made(4, 2048, 4096)
    yield "softmax", softmax.softmax_kernel, lambda: softmax.softmax(rows)
    a, b = made(1024, 1024), made(1024, 1024)
    yield "matmul", matmul.matmul_kernel, lambda: matmul.matmul(a, b)
    q, k, v = (made(2, 16, 2048, 64) for _ in range(3))
    yield "attention", attention.attention_kernel, lambda: attention.attention(q, k, v)
    inputs = made(4096, 1024, grad=True), made(1024, grad=True), made(1024, grad=True)
    results: list[Any] = []
    normed = layer_norm.layer_norm_forward_kernel
    yield "layer norm", normed, lambda: results.append(layer_norm.layer_norm(*inputs))
    dy = made(4096, 1024)
    backward = layer_norm.layer_norm_backward_kernel
    yield "layer norm, backward", backward, lambda: torch.autograd.grad(results[-1], inputs, dy)


def with_only_the_best(autotuner: Any, prune: Any) -> None:
    """Leave an autotuner the one candidate that is the best, so that it tunes nothing, whatever Triton's version."""
    run = autotuner.run

    def run_the_best(*args: Any, **kwargs: Any) -> Any:
        if len(autotuner.configs) > 1:
            autotuner.configs = prune(autotuner.configs, dict(zip(autotuner.arg_names, args, strict=False)), **kwargs)
            assert len(autotuner.configs) == 1
        return run(*args, **kwargs)

    autotuner.run = run_the_best


def child(way: str, folder: str) -> None:
    sys.path[:0] = [folder, str(EXAMPLE)]
    import torch

    torch.rand(1, device="cuda")  # CUDA begins
    if way == "use":
        import pytest_autotune

        pytest_autotune.use("example_kernels", str(EXAMPLE / "autotune.textproto"), on_miss="error")
    import _autotuned

    seconds, launches = {}, 0.0
    for name, autotuner, call in first_calls():
        kernel = f"{autotuner.base_fn.__module__}.{autotuner.base_fn.__qualname__}"
        prune = _autotuned.pick(kernel)
        if way in ("exported", "untimed"):
            autotuner.early_config_prune = prune
        if way == "untimed":  # as with do_bench=picked.do_bench
            autotuner._do_bench = prune.do_bench
        if way == "alone":
            with_only_the_best(autotuner, prune)
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - started
        if name == "add":
            launches = launch_us(call)
    print(json.dumps({"seconds": seconds, "launch_us": launches}))


def launch_us(call: Callable[[], object]) -> float:
    """The time of a later call, of which 20 are not waited for."""
    import torch

    times = []
    for _ in range(101):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            call()
        times.append((time.perf_counter() - started) / 20)
    return median(times) * 1e6


def python(script: str, *arguments: str, **environment: str) -> str:
    paths = os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, *(["-c", script] if script else [__file__]), *arguments],
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
loaded._picker("triton", ("NVIDIA H200", "sm_90", 132))
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
choices = _autotuned.choices_here("example_kernels.matmul.matmul_kernel", False)[1]
M, N, K = 1024, 1024, 1024
known = next(params for key, params in choices.items() if dict(key)["M"] == M and dict(key)["a_ptr.dtype"] == "float16")
configs = [one for one in configs if one.all_kwargs() != known][:9]
own = dict(known)
options = {{name: own.pop(name) for name in ("num_warps", "num_stages", "num_ctas")}}
configs.append(triton.Config(own, **options))
named = dict(zip("a_ptr b_ptr c_ptr M N K s1 s2 s3 s4 s5 s6".split(), (a, a, a, M, N, K, 1, 2, 3, 4, 5, 6)))
times = []
for _ in range(2000):
    started = time.perf_counter()
    left = prune(configs, named, ACTIVATION=None, grid=None, warmup=False)
    times.append(time.perf_counter() - started)
assert len(left) == 1
print(sorted(times)[1000] * 1e6)
"""


def thousand_entries(path: Path) -> None:
    from pytest_autotune.cache import stores
    from pytest_autotune.cache.model import Cache

    entries = [
        one for one in stores.read_cache(str(EXAMPLE / "autotune.textproto")).entries if one.problem.tuner == "triton"
    ]
    from dataclasses import replace

    many = [
        replace(one, problem=replace(one.problem, kernel=f"lib.kernel_{number}.{one.problem.kernel}"))
        for number in range(1000 // len(entries) + 1)
        for one in entries
    ]
    with stores.open_store(str(path)).open_for_update() as opened:
        opened.write(Cache(tuple(many[:1000])))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    print(machine("torch", "triton"), "\n")
    with tempfile.TemporaryDirectory() as folder:
        export = [
            str(EXAMPLE / "autotune.textproto"),
            "--to=python",
            "--device=NVIDIA*",
            "-o",
            f"{folder}/_autotuned.py",
        ]
        python("from pytest_autotune.cli import main; import sys; sys.exit(main())", "export", *export)
        thousand = Path(folder) / "thousand.textproto"
        thousand_entries(thousand)
        bare = [float(python(IMPORT_EXPORT.format(folder=folder, before=""))) for _ in range(7)]
        beside = [float(python(IMPORT_EXPORT.format(folder=folder, before="import torch"))) for _ in range(3)]
        used = [list(map(float, python(IMPORT_USE.format(path=str(thousand))).split())) for _ in range(5)]
        picks = [float(python(PICK.format(folder=folder))) for _ in range(3)]
        table(
            ["what", "time"],
            [
                ["import of the exported module, nothing else imported", f"{median(bare) * 1e3:.1f} ms"],
                ["import of the exported module after torch", f"{median(beside) * 1e3:.1f} ms"],
                [
                    "import of `use`, and its call with 1,000 entries",
                    f"{median([one for one, _ in used]) * 1e3:.0f} ms",
                ],
                [
                    "reading the 1,000 entries, at the first question",
                    f"{median([two for _, two in used]) * 1e3:.0f} ms",
                ],
                ["a pick of one of 10 candidates, known problem", f"{median(picks):.1f} us"],
            ],
        )
        print(flush=True)
        if python("import torch; print(torch.cuda.is_available())").strip() != "True":
            return
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS[1 if number else 0 :]:
                with tempfile.TemporaryDirectory() as empty:
                    found[way].append(json.loads(python("", way, folder, TRITON_CACHE_DIR=empty)))
        first_call_tables(found)


def first_call_tables(found: dict[str, list[dict[str, Any]]]) -> None:
    def seconds(way: str, name: str) -> float:
        return min(one["seconds"][name] for one in found[way])

    names = list(found["alone"][0]["seconds"])
    rows = [[name, *(f"{seconds(way, name):.3f} s" for way in WAYS)] for name in names]
    sums = [sum(seconds(way, name) for name in names) for way in WAYS]
    rows.append(["all", *(f"{one:.3f} s" for one in sums)])
    rows.append(["times the best alone", *(f"{one / sums[-1]:.2f}" for one in sums)])
    table(["first call, nothing compiled", *WAYS], rows)
    print(flush=True)
    launches = [f"{min(one['launch_us'] for one in found[way]):.1f} us" for way in WAYS]
    table(["later launches of add", *WAYS], [["each", *launches]])


if __name__ == "__main__":
    if len(sys.argv) == 3:
        child(*sys.argv[1:])
    else:
        main()
