"""torch.compile on a real GPU: dump and load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.test_inductor import DUMP, LOAD, Run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def start(folder: Path, *args: str) -> Run:
    # A process that imports Inductor on a machine with a GPU initialises CUDA, and its children cannot use the GPU.
    how = {"imports": True, "timeout_s": 150.0, "TORCHINDUCTOR_COMPILE_THREADS": None}
    return Run(folder, "-ofaulthandler_timeout=60", *args, **how)  # type: ignore[arg-type]


SUITE = """
import functools, json, os, re, pytest, torch, triton, triton.language as tl
from torch._inductor import async_compile, config, graph
from torch._inductor.runtime import benchmarking

measured, codes, FACTS = [], [], {}

def counted(original):
    @functools.wraps(original)
    def benchmark(self, *args, **kwargs):
        measured.append(1)
        return original(self, *args, **kwargs)
    return benchmark

for cls in type(benchmarking.benchmarker).__mro__:
    if "benchmark_gpu" in vars(cls):
        cls.benchmark_gpu = counted(cls.benchmark_gpu)

compile_to_module = graph.GraphLowering.compile_to_module

def keep_code(self):
    module = compile_to_module(self)
    with open(module.__file__) as file:
        codes.append(re.sub(r"#.*", "", re.sub(r"/\\S+\\.py", "", file.read())))
    return module

graph.GraphLowering.compile_to_module = keep_code

@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 1024)], key=["n"])
@triton.jit
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

def double(x):
    y = torch.empty_like(x)
    double_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y + 1

@pytest.fixture(autouse=True)
def facts(request):
    before, first = len(measured), len(codes)
    yield
    pool = config.compile_threads > 1 and async_compile.AsyncCompile.process_pool()
    forked = getattr(pool, "is_alive", False)
    FACTS[request.node.name] = {"measured": len(measured) - before, "codes": codes[first:], "forked": forked}
    with open(os.environ["FACTS"] + os.environ.get("PYTEST_XDIST_WORKER", ""), "w") as file:
        json.dump(FACTS, file)

def random(*shape, dtype=torch.float16):
    generator = torch.Generator("cuda").manual_seed(0)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)

MODE = "max-autotune-no-cudagraphs"

def test_mlp():
    x, w, b = random(1024, 512), random(512, 768) / 20, random(768)
    def mlp(x, w, b):
        return torch.relu(x @ w + b)
    torch.testing.assert_close(torch.compile(mlp, mode=MODE)(x, w, b), mlp(x, w, b), rtol=0.05, atol=0.05)

def test_a_reduction_of_many_rows():
    x = random(512, 16384, dtype=torch.float32)
    def reduced(x):
        return torch.softmax(x, -1).sum(0), (x * x).mean(-1)
    torch.testing.assert_close(torch.compile(reduced, mode=MODE)(x), reduced(x), rtol=1e-3, atol=1e-3)

def test_backward():
    x, w = random(512, 256, dtype=torch.float32), random(256, 256, dtype=torch.float32).requires_grad_()
    torch.compile(lambda x, w: torch.tanh(x @ w).sum(), mode=MODE)(x, w).backward()
    assert torch.isfinite(w.grad).all()

def test_a_convolution():
    x, w = random(4, 32, 64, 64), random(32, 32, 3, 3) / 10
    def convolved(x, w):
        return torch.relu(torch.nn.functional.conv2d(x, w, padding=1))
    torch.testing.assert_close(torch.compile(convolved, mode=MODE)(x, w), convolved(x, w), rtol=0.05, atol=0.05)

def test_odd_sizes_that_padding_may_help():
    a, b = random(2047, 4093), random(4093, 2049)
    torch.testing.assert_close(torch.compile(torch.mm)(a, b), a @ b, rtol=0.05, atol=1.0)

def test_cuda_graphs():
    x = random(1000, 333, dtype=torch.float32)
    compiled = torch.compile(lambda x: torch.softmax(x + 1, -1), mode="max-autotune")
    for _ in range(3):
        torch.testing.assert_close(compiled(x).clone(), torch.softmax(x + 1, -1))

def test_kernel_of_the_user():
    x = random(5000, dtype=torch.float32)
    torch.testing.assert_close(torch.compile(double)(x), 2 * x + 1)
"""


def dump_and_load(folder: Path, *options: str) -> tuple[Run, Run]:
    """A dump and its load, with empty caches of Inductor and Triton in each."""
    dump = start(folder, *options, DUMP)
    for cache in ("inductor", "triton"):
        (folder / cache).rename(folder / f"{cache} of the dump")
    return dump, start(folder, *options, LOAD, "--autotune-max-misses=0")


def each(run: Run, fact: str) -> dict[str, Any]:
    return {test: test_facts[fact] for tests in run.facts.values() for test, test_facts in tests.items()}


@pytest.mark.parametrize(
    ("tests", "tuners"),
    [
        ("test_mlp or test_a_reduction", {"inductor.config", "inductor.template"}),
        ("test_backward or test_cuda_graphs or test_kernel_of_the_user", {"inductor.config", "inductor.template"}),
        ("test_a_convolution or test_odd_sizes", {"inductor.template"}),
    ],
)
def test_a_torch_compile_load_on_the_gpu_measures_nothing(tmp_path: Path, tests: str, tuners: set[str]) -> None:
    (tmp_path / "test_compiled.py").write_text(SUITE)
    dump, load = dump_and_load(tmp_path, "-k", tests)

    assert dump.counts["tuned"] == load.counts["hit"] > 0
    assert {row["tuner"] for row in dump.report["lookups"]} >= tuners
    assert set(each(load, "measured").values()) == {0}
    assert all(each(load, "codes").values())
    assert each(load, "codes") == each(dump, "codes")
    assert set(each(dump, "forked").values()) == {True}
    assert load.report["notes"] == dump.report["notes"] == []

    if "test_mlp" in tests:
        (tmp_path / "inductor").rename(tmp_path / "inductor of the load")
        again = start(tmp_path, "-k", tests, LOAD, "--autotune-verify=all")
        raced = {row["tuner"] for row in again.report["lookups"] if row["verdict"] and row["verdict"]["raced"]}
        assert raced == tuners
        assert again.counts["hit"] == load.counts["hit"]
        assert each(again, "codes") == each(load, "codes")


def test_two_workers_tune_each_inductor_problem_once_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(SUITE)
    dump, load = dump_and_load(tmp_path, "-pxdist", "-n2", "--dist=loadfile", "-k", "test_mlp")

    assert dump.cache.count("entries {") == dump.counts["tuned"] == load.counts["hit"]
    assert [facts["test_mlp"]["measured"] for facts in load.facts.values()] == [0, 0]


def test_a_torch_compile_sweep_on_the_gpu_measures_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_compiled.py").write_text(SUITE)

    sweep = start(tmp_path, "-k", "test_a_reduction", "--autotune-sweep=1")

    swept = [row for row in sweep.report["lookups"] if row["tuner"] == "inductor.config"]
    assert swept
    assert all(row["choice"] and not row["tuned"] for row in swept)
