"""torch.compile on a real GPU: dump and load."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.test_inductor import DUMP, LOAD, Run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

#: A process that imports Inductor on a machine with a GPU initialises CUDA, and its children cannot use the GPU.
start = partial(Run, imports=True)

SUITE = """
import functools, json, os, re, pytest, torch, triton, triton.language as tl
from torch._inductor import config, graph
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
    FACTS[request.node.name] = {"measured": len(measured) - before, "codes": codes[first:]}
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
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(max((os.cpu_count() or 2) // 2, 1))}
    dump = start(folder, *options, DUMP, **threads)
    for cache in ("inductor", "triton"):
        (folder / cache).rename(folder / f"{cache} of the dump")
    return dump, start(folder, *options, LOAD, "--autotune-max-misses=0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    folder: Path = tmp_path_factory.mktemp("serial")
    (folder / "test_compiled.py").write_text(SUITE)
    return dump_and_load(folder)


def test_a_load_on_the_gpu_measures_nothing(runs: tuple[Run, Run]) -> None:
    dump, load = runs
    measured = {test: found["measured"] for tests in load.facts.values() for test, found in tests.items()}

    assert dump.counts["tuned"] == load.counts["hit"] > 10
    assert {row["tuner"] for row in dump.report["lookups"]} >= {"inductor.config", "inductor.template"}
    assert set(measured.values()) == {0}
    assert load.report["notes"] == dump.report["notes"] == []


def test_a_load_on_the_gpu_makes_the_same_code(runs: tuple[Run, Run]) -> None:
    dump, load = (
        {test: found["codes"] for tests in run.facts.values() for test, found in tests.items()} for run in runs
    )

    assert load == dump
    assert all(load.values())


def test_two_workers_tune_each_problem_once_on_the_gpu(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(SUITE)
    dump, load = dump_and_load(tmp_path, "-pxdist", "-n2", "--dist=loadfile", "-k", "test_mlp")

    assert dump.report["disagreements"] == 0
    assert dump.cache.count("entries {") == dump.counts["tuned"] == load.counts["hit"]
    assert [facts["test_mlp"]["measured"] for facts in load.facts.values()] == [0, 0]


def test_loaded_choices_are_raced_again_on_the_gpu_and_the_code_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "test_compiled.py").write_text(SUITE)
    tests = ("-k", "test_mlp or test_a_reduction")
    dump, load = dump_and_load(tmp_path, *tests)
    (tmp_path / "inductor").rename(tmp_path / "inductor of the load")
    again = start(tmp_path, *tests, LOAD, "--autotune-verify=all")

    raced = {row["tuner"] for row in again.report["lookups"] if row["verdict"] and row["verdict"]["raced"]}
    assert raced == {"inductor.config", "inductor.template"} & {row["tuner"] for row in dump.report["lookups"]}
    assert again.counts["hit"] == load.counts["hit"]
    assert {test: one["codes"] for test, one in again.facts[""].items()} == {
        test: one["codes"] for test, one in load.facts[""].items()
    }


def test_a_sweep_runs_other_candidates_on_the_gpu_and_measures_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "test_compiled.py").write_text(SUITE)

    sweep = start(tmp_path, "-k", "test_a_reduction", "--autotune-sweep=1")

    swept = [row for row in sweep.report["lookups"] if row["tuner"] == "inductor.config"]
    assert swept
    assert all(row["swept"] and not row["tuned"] for row in swept)
