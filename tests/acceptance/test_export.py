"""A library ships its choices: an export picks in production, and never in a run of the library's test suite."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.runtime.interpreter  # what a run is the first to import, it forgets
from triton.runtime.autotuner import Autotuner

from pytest_autotune import cli
from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache
from tests.conftest import Suite
from tests.stores import update_store
from tests.test_picker import entry

pytestmark = pytest.mark.usefixtures("forget_choices")

LIBRARY = """
import torch, triton, triton.language as tl

@triton.jit
def double(x):
    return 2 * x

def at_least_32(configs, named_args, **kwargs):
    assert named_args["n"] and kwargs["MODE"]
    yield from [config for config in configs if config.kwargs["BLOCK"] >= 32]

PRUNE = {prune}
DO_BENCH = {do_bench}
BENCHED = []

def bench(kernel_call, quantiles=None):
    cells = dict(zip(kernel_call.__code__.co_freevars, kernel_call.__closure__))
    block = cells["config"].cell_contents.kwargs["BLOCK"]
    BENCHED.append(block)
    kernel_call()
    return [1.0 if block == 64 else 2.0] * 3

CONFIGS = [triton.Config({{"BLOCK": block}}) for block in (16, 32, 64, 128)]

@triton.autotune(CONFIGS, key=["n", "FLAG", "KIND", "MODE"], do_bench=DO_BENCH or bench, prune_configs_by=PRUNE)
@triton.jit
def copy_kernel(
    x, {y}, n, FLAG: tl.constexpr, KIND: tl.constexpr, MODE: tl.constexpr, FN: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store({result} + at, double(tl.load(x + at, mask=at < n)), mask=at < n)

def copy(n):
    x = torch.arange(128.0)
    y = torch.zeros_like(x)
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    copy_kernel[grid](x, {argument}, n, True, KIND={kind}, MODE="fast", FN={function})
    assert torch.equal(y[:n], 2 * x[:n])
    return copy_kernel.best_config.kwargs["BLOCK"]
"""
#: Arguments that every form of export supports, and arguments that only the tuner can distinguish.
PLAIN = {"y": "y", "result": "y", "argument": "y", "kind": "1.5", "function": "None"}
ANY = {"y": "pair", "result": "pair[1]", "argument": "(x, y)", "kind": "tl.float16", "function": "double"}
TESTS = """
import pytest, lib

@pytest.mark.parametrize("n", [100, 50, 100])
def test_copy(n):
    assert lib.copy(n) in (16, 32, 64, 128)
"""
IN_PRODUCTION = """
import os, sys, warnings, triton, lib, _tuned
warnings.simplefilter("error")
lib.copy(100), lib.copy(100)
assert lib.copy_kernel.best_config.kwargs["BLOCK"] == 64
print(lib.BENCHED, sorted({"pytest", "pytest_autotune"} & set(sys.modules)))
"""


def write(suite: Suite, prune: str, arguments: dict[str, str] = PLAIN, do_bench: str = "None") -> None:
    suite.pytester.makepyfile(lib=LIBRARY.format(prune=prune, do_bench=do_bench, **arguments), test_lib=TESTS)


#: A program that imports torch and Triton once, and nothing of pytest. It runs each script that it reads in a child.
SERVER = """
import atexit, json, os, sys, traceback
import torch, triton.language, triton.runtime.interpreter

for line in sys.stdin:
    folder, script = json.loads(line)
    if os.fork() == 0:
        os.chdir(folder)
        for number, name in ((1, "output"), (2, "errors")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        status = 0
        try:
            exec(script, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            status = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """The process for all scripts of this file. An import of torch and Triton takes two seconds of a core."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def in_production(server: subprocess.Popen[str], suite: Suite, script: str = IN_PRODUCTION) -> str:
    """Run a script in the suite's folder, with Triton's interpreter and without pytest, and return its output."""
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([str(suite.folder), script]), file=server.stdin, flush=True)
    status = int(server.stdout.readline())
    assert status == 0, (suite.folder / "errors").read_text()
    return (suite.folder / "output").read_text().strip()


def test_a_run_lists_the_misses_that_were_logged_in_production(
    serial_suite: Suite, server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(Autotuner, "prune_configs", Autotuner.prune_configs)  # undoes what use() puts there
    suite = serial_suite
    write(suite, OWN, ANY)
    suite.dump()
    use = f"__import__('pytest_autotune').use('lib', {str(suite.cache)!r}, report='misses.jsonl')"

    script = "print(lib.copy(100), lib.copy(50), lib.copy(77), lib.copy(77), lib.BENCHED, len(loaded.misses))"
    output = in_production(server, suite, f"import lib; loaded = {use}; {script}")
    assert output == "64 64 32 32 [] 1"

    write(suite, f"{use} and {OWN}", ANY)
    report = suite.report("--autotune-dump=anew.textproto", "--autotune-problems=misses.jsonl")
    assert [len(row["candidates"]) for row in report["lookups"]] == [3, 3]
    assert digests(suite.folder / "anew.textproto") == digests(suite.cache)
    (row,) = report["uncovered"]
    assert row["nearest_test"].startswith("test_lib.py::test_copy[100")
    assert row["reason"] == "used in production, but by no test; the nearest test has n=100"


PICK = '{"early_config_prune": __import__("_tuned").pick("lib.copy_kernel")}'
BOTH = '{"early_config_prune": __import__("_tuned").pick("lib.copy_kernel", prune=at_least_32)}'
OWN = '{"early_config_prune": at_least_32}'


UNTIMED = 'PRUNE["early_config_prune"].do_bench'


@pytest.mark.parametrize(
    ("plain", "with_pick", "do_bench", "all_blocks", "distribution"),
    [("None", PICK, "None", 4, []), (OWN, BOTH, "None", 3, ["-pxdist", "-n1"]), ("None", PICK, UNTIMED, 4, [])],
    ids=["alone", "composed, with a worker", "untimed"],
)
def test_an_export_makes_choices_only_in_runs_without_the_plugin(
    serial_suite: Suite,
    server: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    plain: str,
    with_pick: str,
    do_bench: str,
    all_blocks: int,
    distribution: list[str],
) -> None:
    if distribution:
        pytest.importorskip("xdist")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    suite = serial_suite
    write(suite, plain)
    suite.dump()
    assert cli.main(["export", "cache.textproto", "--to=python", "-o", "_tuned.py"]) == 0

    once = [int(part) for part in triton.__version__.split(".")[:2]] < [3, 8] and do_bench == "None"
    write(suite, with_pick, do_bench=do_bench)
    assert in_production(server, suite) == ("[64] []" if once else "[] []")
    suite.run().assert_outcomes(passed=3)  # where no GPU is, each kind of benchmark is that of the interpreter

    suite.load("--autotune-dump=again.textproto", "--autotune-on-miss=error").assert_outcomes(passed=3)
    assert (suite.folder / "again.textproto").read_text() == suite.cache.read_text()
    report = suite.report("--autotune-dump=anew.textproto", *distribution)
    assert [len(row["candidates"]) for row in report["lookups"]] == [all_blocks] * 2
    assert digests(suite.folder / "anew.textproto") == digests(suite.cache)
    swept = [suite.report(f"--autotune-sweep={part}/3")["lookups"] for part in (1, 2)]
    assert len({json.dumps(row["choice"]) for lookups in swept for row in lookups}) > 1


def test_triton_tunes_a_problem_that_the_exported_module_lacks(
    serial_suite: Suite, server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    suite = serial_suite
    write(suite, "None")
    suite.dump()
    assert cli.main(["export", "cache.textproto", "--to=python", "-o", "_tuned.py"]) == 0
    write(suite, PICK, do_bench=UNTIMED)

    driver = "type('Driver', (), {'get_benchmarker': lambda self: lib.bench})()"
    as_on_a_gpu = (
        "_tuned.interprets = lambda: False\n_tuned.device = lambda: ('Triton interpreter', 'interpreter', 0, '')"
    )
    unknown = (
        f"{IN_PRODUCTION}\n{as_on_a_gpu}\nwarnings.simplefilter('ignore')\ntriton.runtime.driver.set_active({driver})\n"
    )
    output = in_production(server, suite, f"{unknown}print(lib.copy(77), lib.BENCHED, lib.copy(50), lib.BENCHED)")
    assert output.splitlines()[1] == "64 [16, 32, 64, 128] 64 [16, 32, 64, 128]"


def test_under_the_interpreter_a_gpu_export_picks_without_timing(
    serial_suite: Suite, server: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A laptop can run a library whose choices are for GPUs alone. Nothing is measured there."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    suite = serial_suite
    write(suite, "None")
    suite.dump()
    for_gpus = suite.cache.read_text().replace("Triton interpreter", "NVIDIA H200").replace('"interpreter"', '"sm_90"')
    (suite.folder / "gpu.textproto").write_text(for_gpus)
    assert cli.main(["export", "gpu.textproto", "--to=python", "-o", "_tuned.py"]) == 0
    write(suite, PICK, do_bench=UNTIMED)

    output = in_production(
        server, suite, "import lib, warnings; warnings.simplefilter('error'); print(lib.copy(100), lib.BENCHED)"
    )

    assert output == "16 []"


def digests(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if "fingerprint" in line or "key" in line]


COMPILED = """
import torch, triton, triton.language as tl, torch.utils._triton
import _tuned, pytest_autotune
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

torch.utils._triton.has_triton = lambda: True  # as where there is a GPU
_tuned.device = lambda: ("NVIDIA H200", "sm_90", 132, "3.7.1")
picked = _tuned.pick("lib.add")

@triton.autotune(
    [triton.Config({"BLOCK": block}, num_stages=None, num_ctas=None) for block in (16, 32, 64)],
    key=["M"], prune_configs_by={"early_config_prune": picked}, do_bench=picked.do_bench,
)
@triton.jit
def add_kernel(a, M, CAUSAL: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(a, M)

def launch(a, m):
    add_kernel[lambda meta: (triton.cdiv(m, meta["BLOCK"]),)](a, m, CAUSAL=1)
    return a

def captured(graph, inputs):
    nodes = [node for node in graph.graph.nodes if "kernel_idx" in node.kwargs]
    kernels = [kernel_side_table.get_kernel(node.kwargs["kernel_idx"]) for node in nodes]
    print([config.kwargs["BLOCK"] for kernel in kernels for config in kernel.configs])
    return lambda *inputs: [torch.zeros(1)]

for m, pytest_autotune.ACTIVE_RUNS in ((64, set()), (65, set()), (64, {1})):
    torch._dynamo.reset()
    torch.compile(launch, backend=captured, fullgraph=True)(torch.empty(16, dtype=torch.float16), m)
"""


def test_torch_compile_captures_only_the_exported_choice(tmp_path: Path) -> None:
    update_store(stores.open_store(str(tmp_path / "c.textproto")), lambda now: Cache((entry(64, 32),)))
    assert cli.main(["export", str(tmp_path / "c.textproto"), "--to=python", "-o", str(tmp_path / "_tuned.py")]) == 0
    (tmp_path / "compiled.py").write_text(COMPILED)
    paths = os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])

    command = [sys.executable, "-Wignore", "compiled.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )

    assert done.stdout.splitlines() == ["[32]", "[16, 32, 64]", "[16, 32, 64]"], done.stderr


EXAMPLE = """
import sys, types, torch, triton
from importlib import import_module
from example_kernels import _autotuned, add

picked = []
for kernel, by_device in _autotuned.CHOICES.items():
    module, _, name = kernel.rpartition(".")
    autotuner = getattr(import_module(module), name)
    for on, rows in by_device.items():
        _autotuned.device = lambda: on
        for key, choice in rows:
            launch = {name: value for name, value in key.items() if "." not in name}
            dtypes = {name.partition(".")[0]: getattr(torch, value) for name, value in key.items() if "." in name}
            launch |= {name: types.SimpleNamespace(dtype=dtype) for name, dtype in dtypes.items()}
            left = _autotuned.pick(kernel)(autotuner.configs, launch)
            picked.append([one.all_kwargs() for one in left] == [choice])
print(len(picked), all(picked))

add.add_kernel.early_config_prune = prune = _autotuned.pick("example_kernels.add.add_kernel")
add.add_kernel._do_bench = prune.do_bench
print(add.add(torch.ones(1), torch.ones(1)).item(), add.add_kernel.best_config.kwargs)
print({"pytest", "pytest_autotune"} & set(sys.modules))
"""


def test_exported_choices_of_example_suite_work_without_pytest() -> None:
    done = subprocess.run(
        [sys.executable, "-Werror::UserWarning:example_kernels", "-c", EXAMPLE],
        cwd=Path(__file__).parent.parent.parent / "example_suite",
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["35 True", "2.0 {'BLOCK': 512}", "set()"], done.stderr
