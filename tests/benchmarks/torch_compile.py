"""torch.compile under max-autotune: plain, dump, load, each in a fresh process with empty compile caches of its own.

    python tests/benchmarks/torch_compile.py [gpu] [quick] [cpu] [cpu-isa]

``gpu``: two blocks of a transformer with what is done to their result, in 240 s. ``quick``: half of one, in 120 s.
``cpu``: ten products of batches, C++ templates or ATen, one thread, nothing else to compile. ``cpu-isa``: the same
without Inductor's own trial compilations for each vector instruction set, by its setting ``TORCHINDUCTOR_VEC_ISA_OK``.
Seconds are from the first call of the compiled function to its result; what is counted as a measurement is a call of
Inductor's benchmarker.

It is told when the steps of compiling began, and what the main thread did, by a sampler of its stack. On a GPU the load
compiles some of its kernels again, in threads and in forked children, with empty caches; and it is told how good the
choices are: a fourth run, which loads those of the dump, compiles for each kernel what plain and dump chose and the
three that each found fastest, and launches them in turn, up to 400 times each. Loss: the time of a choice over the best
of these. Of templates, what the two found fastest is measured again in turn, by Inductor's own benchmark.
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

#: Seconds that a case may take; the parts that come last are left out.
LIMITS_S = {"gpu": 235.0, "quick": 115.0, "cpu": 1200.0, "cpu-isa": 1200.0}
#: What the comparison of choices takes at least, with the start of its process.
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
#: In the order in which they run: what is left out for lack of time comes last.
RUNS = {"dump": [DUMP], "load": [LOAD, "--autotune-max-misses=0"], "plain": ["-pno:autotune"]}


def measure(case: str) -> None:
    ends = time.time() + LIMITS_S[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_case.py").write_text(HEAD + CASES[case])
        facts: dict[str, Any] = {}
        for run, options in RUNS.items():
            children = {"CHILDREN": "1"} if run == "load" and not case.startswith("cpu") else {}
            found = _run(case, run, folder, options, ends, **children)
            if found is not None:
                facts[run] = found
                print(f"{run}: {found['seconds']:.1f} s to the first result, {found['wall']:.1f} s", flush=True)
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
        for told in (_tell_events, _tell_phases, partial(_tell_quality, compared), partial(_tell, case, folder)):
            try:
                told(facts)
            except Exception:
                traceback.print_exc()


def _run(
    case: str, run: str, folder: Path, options: list[str], ends: float, **environment: str
) -> dict[str, Any] | None:
    """One run of pytest with empty caches of its own, and what it noted; None where it has not come to its end."""
    caches = "load" if run == "compared" else run
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{caches}"),
        "TRITON_CACHE_DIR": str(folder / f"triton-{caches}"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "RESULT": str(folder / run),
        **environment,
    }
    if case.startswith("cpu"):
        own["OMP_NUM_THREADS"] = "1"
    if case == "cpu-isa":
        own["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
    registered = any(entry.name == "autotune" for entry in importlib.metadata.entry_points(group="pytest11"))
    plugin = [] if registered or run == "plain" else ["-ppytest_autotune.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-s", *plugin, *options]
    began = time.time()
    log = folder / f"{run}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **own}, stdout=output, stderr=output, start_new_session=True
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
    found: dict[str, Any] = json.loads(noted.read_text())
    for note in found["notes"]:
        print(f"{run}: {note}")
    return {**found, "wall": wall - found.get("after", 0.0)}


def _tell_events(facts: dict[str, Any]) -> None:
    """When what began, and what compiling took."""
    for arm, found in facts.items():
        if not found.get("events"):
            continue
        print(f"\n{arm}, by seconds since the first call (what is in another thread with a +):\n")
        ends: list[float] = []
        for began, took, is_main, text in found["events"]:
            if is_main:
                while ends and began >= ends[-1] - 0.005:
                    ends.pop()
                shown = "  " * len(ends)
                ends.append(began + took)
            else:
                shown = "+ "
            print(f"{began:7.2f} {took:6.2f}  {shown}{text}")
        print(f"busy cores, second by second: {' '.join(map(str, found['busy']))}")
        for where, (number, wall_s, own_s) in found["compilations"].items():
            print(f"{number} compilations {where}, or from the cache: {wall_s:.1f} s, of which {own_s:.1f} s ran")
        print("of them:", ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in found["stages"].items()))
        print("kernels in compile workers, seconds each:", *found["in_workers"])
        if "children" in found:
            print("forking, and compiling again (seconds, seconds that this process ran):", found["children"])


def _tell_phases(facts: dict[str, Any]) -> None:
    """Where the time to the first result went."""
    print("\nSeconds of the main thread until the first result, by a sampler:\n")
    phases = sorted({phase for found in facts.values() for phase in found["phases"]})
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


def _tell_quality(compared: dict[str, Any] | None, facts: dict[str, Any]) -> None:
    """How good the choices are."""
    if compared is None:
        return
    kernels, products = compared.get("compared", {}), compared.get("compared_templates", {})
    chosen = {arm: facts[arm]["chosen"].keys() for arm in ("plain", "dump")}
    both = len(chosen["plain"] & chosen["dump"])
    print(f"\nKernels: plain {len(chosen['plain'])}, dump {len(chosen['dump'])}, the same in both {both}", end="")
    print(f", compared {len(kernels)}; decisions among templates compared {len(products)}\n")
    rows: list[list[object]] = []
    losses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, one in [*kernels.items(), *products.items()]:
        kind = "kernels" if name in kernels else "templates"
        times = {str(key): time_us for key, time_us in one["times_us"].items()}
        if not times or any(str(number) not in times for number in one["chose"].values()):
            continue
        best = min(times.values())
        lost = {arm: times[str(number)] / best - 1 for arm, number in one["chose"].items()}
        for arm, loss in lost.items():
            losses[kind, arm].append(loss)
        if max(lost.values()) > 0.01:
            params = [one["params"][one["chose"][arm]] if "params" in one else {} for arm in ("plain", "dump")]
            shown = [" ".join(f"{key}={value}" for key, value in own.items()) for own in params]
            told = [f"{lost[arm]:.1%} {text}" for arm, text in zip(("plain", "dump"), shown, strict=True)]
            rows.append([name[:60], f"{best:.2f} us", *told, f"{one.get('halves', 0.0):.2%}"])
    table(["over 1 % slower than the best", "best", "plain", "dump", "halves differ"], rows)
    rows = []
    for (kind, arm), found in sorted(losses.items()):
        found.sort()
        most = [f"{sum(found) / len(found):.2%}", f"{found[int(len(found) * 0.95)]:.1%}", f"{found[-1]:.1%}"]
        rows.append([kind, arm, len(found), *most, sum(loss > 0.02 for loss in found)])
    print()
    table(["choices of", "run", "problems", "loss: mean", "95th percentile", "most", "over 2 %"], rows)


def _tell(case: str, folder: Path, facts: dict[str, Any]) -> None:
    print(f"\n{case}: {facts.get('dump', {}).get('kernels')}\n")
    rows = []
    for run in ("plain", "dump", "load"):
        found = facts.get(run)
        if found is None:
            rows.append([run, "did not end"])
            continue
        plain = facts.get("plain")
        speed = f"{plain['seconds'] / found['seconds']:.1f}" if plain else ""
        share = f"{found['wall'] / plain['wall']:.2f}" if plain else ""
        code = _word("dump" in facts and found["codes"] == facts["dump"]["codes"])
        same = _word(_same(folder / f"{run}.pt", folder / "dump.pt"))
        call = f"{found['call_us']:.0f} us" if "call_us" in found else ""
        if "device_us" in found:
            call += f" (GPU {found['device_us']:.0f}, host {found['host_us']:.0f})"
        row = [run, f"{found['seconds']:.1f} s", speed, f"{found['wall']:.1f} s", share, found["measured"], code, same]
        rows.append([*row, call])
    head = ["run", "to first result", "times faster", "pytest", "of plain", "measurements", "code as dump"]
    table([*head, "result as dump", "a call later"], rows)


def _same(one: Path, other: Path) -> bool:
    import torch

    if not one.exists() or not other.exists():
        return False
    first, second = torch.load(one), torch.load(other)
    return len(first) == len(second) and all(map(torch.equal, first, second))


def _word(yes: bool) -> str:
    return "equal" if yes else "differs"


if __name__ == "__main__":
    print(machine("torch", "triton"), flush=True)
    for case in sys.argv[1:] or ["cpu", "cpu-isa"]:
        measure(case)
