"""Measure torch.compile under max-autotune: a dump, a load and a plain run, each a new process with empty caches.

    python tests/benchmarks/torch_compile.py [gpu] [quick] [cpu] [cpu-isa]

- ``gpu``: two blocks of a transformer with reductions of their result, in 240 s. ``quick``: half a block, in 120 s.
- ``cpu``: ten batched matrix products by C++ templates or ATen, in one thread. ``cpu-isa``: the same, but Inductor
  compiles no trial programs for the vector instruction sets (``TORCHINDUCTOR_VEC_ISA_OK``).

Times are seconds from the first call of the compiled function to its result. A "measurement" is a call of Inductor's
benchmarker. The script prints the steps of compiling with their begin, and the phases of the main thread, from samples
of its stack (``inductor_facts.py`` notes both).

On a GPU there are two further parts. The load compiles some of its kernels again in threads and in forked children,
with empty caches. A fourth run compares the choices of plain and dump. For each kernel it compiles both choices and the
three fastest configs of each run, and launches them in turn, up to 400 times each. For templates, Inductor's benchmark
measures both choices in turn. The loss of a choice is its time over the best of these times, minus 1.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, table

#: The seconds that a case may take. If they do not suffice, the last parts are left out.
LIMITS_S = {"gpu": 235.0, "quick": 115.0, "cpu": 1200.0, "cpu-isa": 1200.0}
#: The least time for the comparison of choices, with the start of its process.
COMPARING_S = 20.0
HEAD = (
    "from inductor_facts import first_result\nimport torch\nDEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
)

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
    generator = torch.Generator(DEVICE).manual_seed(0)
    def random(*shape):
        tensor = torch.randn(shape, device=DEVICE, generator=generator) / shape[0] ** 0.5
        return tensor.half()
    shapes = {"qkv": (1024, 3072), "out": (1024, 1024), "up": (1024, 4096), "up_bias": (4096,),
              "down": (4096, 1024), "down_bias": (1024,)}
    blocks = [{name: random(*shape) for name, shape in shapes.items()} for _ in range(2)]
    x = torch.randn(4, 512, 1024, device=DEVICE, generator=generator).half()
    first_result(torch.compile(model, mode="max-autotune-no-cudagraphs"), x, blocks)
"""

QUICK = """
def model(x, up, bias):
    hidden = torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:]) @ up + bias)
    y = hidden.float()
    return torch.softmax(y, dim=-1), (y * y).sum(dim=(0, 1)), torch.tanh(y).transpose(1, 2).contiguous()

def test_model():
    generator = torch.Generator(DEVICE).manual_seed(0)
    x, up, bias = (torch.randn(shape, device=DEVICE, generator=generator).half()
                   for shape in [(4, 512, 1024), (1024, 2048), (2048,)])
    first_result(torch.compile(model, mode="max-autotune-no-cudagraphs"), x, up / 32, bias)
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

CASES = {"gpu": GPU, "quick": QUICK, "cpu": CPU, "cpu-isa": CPU}
DUMP, LOAD = "--autotune-dump=cache.textproto", "--autotune-load=cache.textproto"
#: The runs in their order. A lack of time leaves out the last.
RUNS = {"dump": [DUMP], "load": [LOAD, "--autotune-max-misses=0"], "plain": ["-pno:autotune"]}


def measure(case: str) -> None:
    """Make all runs of a case, and print their tables."""
    ends = time.time() + LIMITS_S[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_case.py").write_text(HEAD + CASES[case])
        facts: dict[str, Any] = {}
        for run, options in RUNS.items():
            children = {"CHILDREN": "1"} if run == "load" and not case.startswith("cpu") else {}
            noted_facts = _run(case, run, folder, options, ends, **children)
            if noted_facts is not None:
                facts[run] = noted_facts
                print(
                    f"{run}: {noted_facts['seconds']:.1f} s to the first result, {noted_facts['wall']:.1f} s",
                    flush=True,
                )
        if case in ("gpu", "quick") and {"plain", "dump"} <= facts.keys():
            known = {arm: {name: facts[arm][name] for name in ("chosen", "templates")} for arm in ("plain", "dump")}
            (folder / "known.json").write_text(json.dumps(known))
            if time.time() + COMPARING_S < ends:
                environment = {"KNOWN": str(folder / "known.json"), "UNTIL": str(ends - 5)}
                facts["compared"] = _run(case, "compared", folder, [LOAD], ends, **environment)
            else:
                print("no time is left to compare choices")
        if out := os.environ.get("OUT"):
            (Path(out) / f"torch_compile_{case}.json").write_text(json.dumps(facts, indent=1))
        compared = facts.pop("compared", None)
        for print_part in (
            _print_events,
            _print_phases,
            partial(_print_losses, compared),
            partial(_print_runs, case, folder),
        ):
            try:
                print_part(facts)
            except Exception:
                traceback.print_exc()


def _run(
    case: str, run: str, folder: Path, options: list[str], ends: float, **environment: str
) -> dict[str, Any] | None:
    """Run pytest with empty caches, and return the facts that the run noted; None if it failed or ran out of time."""
    caches = "load" if run == "compared" else run
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{caches}"),
        "TRITON_CACHE_DIR": str(folder / f"triton-{caches}"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "RESULT": str(folder / run),
        **environment,
    }
    if case.startswith("cpu"):
        variables["OMP_NUM_THREADS"] = "1"
    if case == "cpu-isa":
        variables["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    registered = any(entry.name == "autotune" for entry in importlib.metadata.entry_points(group="pytest11"))
    plugin = [] if registered or run == "plain" else ["-ppytest_autotune.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", *plugin, *options]
    began = time.time()
    log = folder / f"{run}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=output, start_new_session=True
        )
        try:
            status = process.wait(timeout=max(ends - began, 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
    wall = time.time() - began
    noted = folder / f"{run}.json"
    if status != 0:
        text = log.read_text(errors="replace")
        print(f"{run}: ended with {status} after {wall:.1f} s\n{text[-3000:]}", flush=True)
        if status is not None or not noted.exists():
            return None
    if out := os.environ.get("OUT"):
        shutil.copy(log, Path(out) / f"torch_compile_{case}_{run}.log")
    noted_facts: dict[str, Any] = json.loads(noted.read_text())
    for note in noted_facts["notes"]:
        print(f"{run}: {note}")
    return {**noted_facts, "wall": wall - noted_facts.get("after", 0.0)}


def _print_events(facts: dict[str, Any]) -> None:
    """Print when the steps of compiling began, and how long they took."""
    for arm, noted_facts in facts.items():
        if not noted_facts.get("events"):
            continue
        print(f"\n{arm}, by seconds since the first call (what is in another thread with a +):\n")
        ends: list[float] = []
        for began, took, is_main, text in noted_facts["events"]:
            if is_main:
                while ends and began >= ends[-1] - 0.005:
                    ends.pop()
                shown = "  " * len(ends)
                ends.append(began + took)
            else:
                shown = "+ "
            print(f"{began:7.2f} {took:6.2f}  {shown}{text}")
        print(f"busy cores, second by second: {' '.join(map(str, noted_facts['busy']))}")
        for where, (number, wall_s, thread_s) in noted_facts["compilations"].items():
            print(f"{number} compilations {where}, or from the cache: {wall_s:.1f} s, of which {thread_s:.1f} s ran")
        print("of them:", ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in noted_facts["stages"].items()))
        print("kernels in compile workers, seconds each:", *noted_facts["in_workers"])
        if "children" in noted_facts:
            print("forking, and compiling again (seconds, seconds that this process ran):", noted_facts["children"])


def _print_phases(facts: dict[str, Any]) -> None:
    """Print the phases of the time to the first result."""
    print("\nSeconds of the main thread until the first result, by a sampler:\n")
    phases = sorted({phase for noted_facts in facts.values() for phase in noted_facts["phases"]})
    arms = [arm for arm in ("plain", "dump", "load") if arm in facts]
    rows = [[phase, *(f"{facts[arm]['phases'].get(phase, 0.0):.1f}" for arm in arms)] for phase in phases]
    rows.sort(key=lambda row: -float(row[1 + arms.index("dump")] if "dump" in arms else row[1]))
    table(["", *arms], [row for row in rows if any(cell != "0.0" for cell in row[1:])])
    for title, key in (("Seconds and calls of functions", "timers"), ("Inductor's own times", "own")):
        print(f"\n{title}; one may be inside another:\n")
        names = sorted({name for arm in arms for name in facts[arm].get(key, {})})
        rows = []
        for name in names:
            numbers = [(facts[arm].get(key, {}).get(name), facts[arm]["calls"].get(name)) for arm in arms]
            if max(number or 0.0 for number, _ in numbers) > 0.3:
                cells = [
                    f"{number:.1f}" + (f" ({calls})" if calls else "") if number else "" for number, calls in numbers
                ]
                rows.append([name, *cells])
        table(["", *arms], rows)
    for arm in arms:
        places = ", ".join(f"{place} {seconds:.1f}" for place, seconds in list(facts[arm]["places"].items())[:10])
        print(f"\n{arm}, innermost: {places}")


def _print_losses(compared: dict[str, Any] | None, facts: dict[str, Any]) -> None:
    """Print the losses of the choices of plain and dump."""
    if compared is None:
        return
    kernels, products = compared.get("compared", {}), compared.get("compared_templates", {})
    chosen = {arm: facts[arm]["chosen"].keys() for arm in ("plain", "dump")}
    both = len(chosen["plain"] & chosen["dump"])
    print(f"\nKernels: plain {len(chosen['plain'])}, dump {len(chosen['dump'])}, the same in both {both}", end="")
    print(f", compared {len(kernels)}; decisions among templates compared {len(products)}\n")
    rows: list[list[object]] = []
    losses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, comparison in [*kernels.items(), *products.items()]:
        kind = "kernels" if name in kernels else "templates"
        times = {str(key): time_us for key, time_us in comparison["times_us"].items()}
        if not times or any(str(number) not in times for number in comparison["chose"].values()):
            continue
        best = min(times.values())
        lost = {arm: times[str(number)] / best - 1 for arm, number in comparison["chose"].items()}
        for arm, loss in lost.items():
            losses[kind, arm].append(loss)
        if max(lost.values()) > 0.01:
            params = [
                comparison["params"][comparison["chose"][arm]] if "params" in comparison else {}
                for arm in ("plain", "dump")
            ]
            cells = []
            for arm, arm_params in zip(("plain", "dump"), params, strict=True):
                words = " ".join(f"{key}={value}" for key, value in arm_params.items())
                cells.append(f"{lost[arm]:.1%} {words}")
            rows.append([name[:60], f"{best:.2f} us", *cells, f"{comparison.get('halves', 0.0):.2%}"])
    table(["over 1 % slower than the best", "best", "plain", "dump", "halves differ"], rows)
    rows = []
    for (kind, arm), values in sorted(losses.items()):
        values.sort()
        figures = [f"{sum(values) / len(values):.2%}", f"{values[int(len(values) * 0.95)]:.1%}", f"{values[-1]:.1%}"]
        rows.append([kind, arm, len(values), *figures, sum(loss > 0.02 for loss in values)])
    print()
    table(["choices of", "run", "problems", "loss: mean", "95th percentile", "most", "over 2 %"], rows)


def _print_runs(case: str, folder: Path, facts: dict[str, Any]) -> None:
    """Print the table with a row for each run."""
    print(f"\n{case}: {facts.get('dump', {}).get('kernels')}\n")
    rows = []
    for run in ("plain", "dump", "load"):
        noted_facts = facts.get(run)
        if noted_facts is None:
            rows.append([run, "did not end"])
            continue
        plain = facts.get("plain")
        speed = f"{plain['seconds'] / noted_facts['seconds']:.1f}" if plain else ""
        share = f"{noted_facts['wall'] / plain['wall']:.2f}" if plain else ""
        code = _word("dump" in facts and noted_facts["codes"] == facts["dump"]["codes"])
        same = _word(_has_same_tensors(folder / f"{run}.pt", folder / "dump.pt"))
        call = f"{noted_facts['call_us']:.0f} us" if "call_us" in noted_facts else ""
        if "device_us" in noted_facts:
            call += f" (GPU {noted_facts['device_us']:.0f}, host {noted_facts['host_us']:.0f})"
        row = [
            run,
            f"{noted_facts['seconds']:.1f} s",
            speed,
            f"{noted_facts['wall']:.1f} s",
            share,
            noted_facts["measured"],
            code,
            same,
        ]
        rows.append([*row, call])
    head = ["run", "to first result", "times faster", "pytest", "of plain", "measurements", "code as dump"]
    table([*head, "result as dump", "a call later"], rows)


def _has_same_tensors(first_path: Path, second_path: Path) -> bool:
    import torch

    if not first_path.exists() or not second_path.exists():
        return False
    first, second = torch.load(first_path), torch.load(second_path)
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _word(is_equal: bool) -> str:
    return "equal" if is_equal else "differs"


if __name__ == "__main__":
    print(machine("torch", "triton"), flush=True)
    for case in sys.argv[1:] or ["cpu", "cpu-isa"]:
        measure(case)
