"""torch.compile under max-autotune: plain, dump, load, each in a fresh process with empty caches of Inductor.

    python tests/benchmarks/torch_compile.py [gpu] [cpu] [cpu-isa]

``gpu``: two blocks of a transformer with what is done to their result. ``cpu``: ten
products of batches, C++ templates or ATen, one thread, nothing else to compile.
``cpu-isa``: the same without Inductor's own trial compilations for each vector
instruction set, by its setting ``TORCHINDUCTOR_VEC_ISA_OK``. Seconds are from the
first call of the compiled function to its result; what is counted as a measurement
is a call of Inductor's benchmarker.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import machine, pytest_seconds, table

COUNTED = """
import functools, json, os, re, time
import torch
from torch._inductor import config, graph
from torch._inductor.runtime import benchmarking

measured, codes, inside = [], [], []

def counted(original):
    @functools.wraps(original)
    def benchmark(self, *args, **kwargs):
        if not inside:
            measured.append(1)
        inside.append(1)
        try:
            return original(self, *args, **kwargs)
        finally:
            inside.pop()
    return benchmark

for cls in type(benchmarking.benchmarker).__mro__:
    for name in ("benchmark", "benchmark_gpu", "benchmark_cpu"):
        if name in vars(cls):
            setattr(cls, name, counted(vars(cls)[name]))

compile_to_module = graph.GraphLowering.compile_to_module

def keep_code(self):
    module = compile_to_module(self)
    with open(module.__file__) as file:
        codes.append(re.sub(r"#.*", "", re.sub(r"/\\S+\\.py", "", file.read())))
    return module

graph.GraphLowering.compile_to_module = keep_code

def first_result(compiled, *args):
    started = time.perf_counter()
    result = compiled(*args)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    torch.save(result, os.environ["RESULT"] + ".pt")
    kernels = sum(code.count("async_compile.triton(") for code in codes)
    templates = sum(len(re.findall(r"^triton_tem_\\w+ = ", code, re.M)) for code in codes)
    calls = sum(code.count("extern_kernels.") for code in codes)
    facts = {"seconds": seconds, "measured": len(measured), "codes": codes,
             "kernels": f"{kernels} kernels, {templates} of them matrix products, and {calls} library calls"}
    with open(os.environ["RESULT"] + ".json", "w") as file:
        json.dump(facts, file)
"""

GPU = """
def attention(x, qkv, out):
    q, k, v = (x @ qkv).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (16, 64)).transpose(1, 2) for part in (q, k, v))
    weights = torch.softmax(q @ k.transpose(-1, -2) * 0.125, dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2) @ out

ACTIVATIONS = [torch.nn.functional.gelu, torch.nn.functional.silu]

def block(x, p, activation):
    x = x + attention(torch.nn.functional.layer_norm(x, x.shape[-1:]), p["qkv"], p["out"])
    hidden = activation(torch.nn.functional.layer_norm(x, x.shape[-1:]) @ p["up"] + p["up_bias"])
    return x + (hidden @ p["down"] + p["down_bias"])

def model(x, blocks):
    for p, activation in zip(blocks, ACTIVATIONS):
        x = block(x, p, activation)
    y = x.float()
    return (torch.softmax(y, dim=-1), (y * y).sum(dim=(0, 1)), y.amax(dim=1) - y.amin(dim=1),
            torch.tanh(y).transpose(1, 2).contiguous())

def test_model():
    generator = torch.Generator("cuda").manual_seed(0)
    def random(*shape):
        tensor = torch.randn(shape, device="cuda", generator=generator) / shape[0] ** 0.5
        return tensor.half()
    shapes = {"qkv": (1024, 3072), "out": (1024, 1024), "up": (1024, 4096), "up_bias": (4096,),
              "down": (4096, 1024), "down_bias": (1024,)}
    blocks = [{name: random(*shape) for name, shape in shapes.items()} for _ in range(2)]
    x = torch.randn(4, 512, 1024, device="cuda", generator=generator).half()
    first_result(torch.compile(model, mode="max-autotune-no-cudagraphs"), x, blocks)
"""

CPU = """
def products(pairs):
    return [torch.bmm(a, b) for a, b in pairs]

def test_products():
    generator = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(8, 64 + 16 * n, 96, generator=generator), torch.randn(8, 96, 64, generator=generator))
             for n in range(10)]
    options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}
    first_result(torch.compile(products, options=options), pairs)
"""

RUNS = {
    "plain": ["-pno:autotune"],
    "dump": ["--autotune-dump=cache.textproto"],
    "load": ["--autotune-load=cache.textproto", "--autotune-max-misses=0"],
}


def measure(case: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_case.py").write_text(COUNTED + (GPU if case == "gpu" else CPU))
        facts = {}
        for run, options in RUNS.items():
            for cache in ("inductor", "triton"):
                shutil.rmtree(folder / cache, ignore_errors=True)
            environment = {
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TRITON_CACHE_DIR": str(folder / "triton"),
                "RESULT": str(folder / run),
            }
            if case != "gpu":
                environment["OMP_NUM_THREADS"] = "1"
            if case == "cpu-isa":
                environment["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
            wall, _ = pytest_seconds(folder, "-q", *options, **environment)
            facts[run] = json.loads((folder / f"{run}.json").read_text()) | {"wall": wall}
            print(run, f"{facts[run]['seconds']:.1f} s to the first result", f"{wall:.1f} s", flush=True)
        print(f"\n{case}: {facts['dump']['kernels']}\n")
        rows = []
        for run, found in facts.items():
            speed = facts["plain"]["seconds"] / found["seconds"]
            same_code = found["codes"] == facts["dump"]["codes"]
            same_result = _same(folder / f"{run}.pt", folder / "dump.pt")
            row = [run, f"{found['seconds']:.1f} s", f"{speed:.1f}", f"{found['wall']:.1f} s", found["measured"]]
            rows.append([*row, _word(same_code), _word(same_result)])
        head = ["run", "to first result", "times faster", "pytest", "measurements", "code as dump", "result as dump"]
        table(head, rows)


def _same(one: Path, other: Path) -> bool:
    import torch

    first, second = torch.load(one), torch.load(other)
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _word(yes: bool) -> str:
    return "equal" if yes else "differs"


if __name__ == "__main__":
    print(machine("torch", "triton"))
    for case in sys.argv[1:] or ["cpu", "cpu-isa"]:
        measure(case)
