"""The Triton tests of the example suite on this machine: plain, dump, load, and the floor.

    python tests/benchmarks/example_times.py

The floor is the suite with every autotuner pinned to what the dump chose, by
candidate lists of one, so that Triton has nothing to choose. Compile caches are
empty in every run.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import REPOSITORY, machine, median, pytest_seconds, table

PIN = '''
"""Pins every autotuner to the candidate that the cache holds, with Triton's own means only."""
import json, os
from triton.runtime.autotuner import Autotuner

rows = {}
for row in json.load(open(os.environ["PINS"]))["lookups"]:
    rows.setdefault(row["kernel"], []).append(row)

def run(self, *args, **kwargs):
    name = f"{self.base_fn.__module__}.{self.base_fn.__qualname__}"
    named = {**dict(zip(self.arg_names, args)), **kwargs}
    pins = self.__dict__.setdefault("_pins", {})
    key = tuple(named[k] for k in self.keys) + tuple(str(v.dtype) for v in named.values() if hasattr(v, "dtype"))
    config = pins.get(key)
    if config is None:
        def fits(row):
            values = {k: v for k, v in row["key"].items() if not k.endswith(".dtype")}
            short = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.bfloat16": "bf16"}
            types = {f"{k}.dtype": short[str(v.dtype)] for k, v in named.items() if hasattr(v, "dtype")}
            return all(named[k] == v for k, v in values.items()) and all(row["key"][k] == t for k, t in types.items())
        row = next(row for row in rows[name] if fits(row))
        config = next(c for c in self.configs if c.all_kwargs() == row["choice"]["params"])
        pins[key] = config
    self.pre_hook({**named, **config.all_kwargs()}, reset_only=True)
    self.best_config = config
    return self.fn.run(*args, **kwargs, **config.all_kwargs())

Autotuner.run = run
'''
TRITON_TESTS = [f"tests/test_{kernel}.py" for kernel in ("add", "attention", "layer_norm", "matmul", "softmax")]
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


def main() -> None:
    print(machine("torch", "triton"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = folder / "example_suite"
        shutil.copytree(REPOSITORY / "example_suite", suite)
        (suite / "pin.py").write_text(PIN)
        runs = {
            "plain": ["-pno:autotune"],
            "dump": ["--autotune-dump=cache.textproto", "--autotune-report=dump.json"],
            "load": ["--autotune-load=cache.textproto", "--autotune-max-misses=0", "--autotune-report=load.json"],
            "floor": ["-pno:autotune", "-ppin"],
        }
        seconds: dict[str, list[float]] = {run: [] for run in runs}

        def time_run(run: str) -> None:
            compiled = folder / "compiled"
            shutil.rmtree(compiled, ignore_errors=True)
            environment = {"TRITON_CACHE_DIR": str(compiled), "PINS": str(suite / "dump.json"), "PYTHONPATH": "."}
            seconds[run].append(pytest_seconds(suite, "-q", *TRITON_TESTS, *runs[run], **environment)[0])

        time_run("plain")
        time_run("dump")
        for _ in range(REPEATS):
            time_run("load")
            time_run("floor")
        load = json.loads((suite / "load.json").read_text())
    paired = median([one / other for one, other in zip(seconds["load"], seconds["floor"], strict=True)])
    rows: list[tuple[object, ...]] = [(run, f"{median(found):.1f} s", len(found)) for run, found in seconds.items()]
    rows.append(("load / floor, median of pairs", f"{paired:.3f}", REPEATS))
    rows.append(("tuning_seconds of the load run", load["tuning_seconds"], ""))
    rows.append(("hits of the load run", load["counts"]["hit"], ""))
    table(("example_suite", "wall", "runs"), rows)


if __name__ == "__main__":
    main()
