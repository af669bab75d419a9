"""`pytest_autotune.use`: a shipped cache answers in production. Each test starts a process without pytest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions
from pytest_autotune.tuners.function.identity import key_values
from tests.stores import update_store

HERE = Device("Here", "chip", 4)

LIBRARY = """
import pytest_autotune
from pytest_autotune import Device

def scale(n, device=Device("Here", "chip", 4), kernel="mylib.scale", key=None):
    asked = []
    chosen = pytest_autotune.tune(
        kernel, key=key or {"n": n, "kind": "a"}, space=[1, 2, 4], run=asked.append, device=device,
    )
    return chosen, len(asked)
"""


def entry(n: int, choice: int, device: Device = HERE, kernel: str = "mylib.scale", kind: Scalar = "a") -> Entry:
    problem = Problem("function", kernel, (Value("n", n), Value("kind", kind)), device)
    candidate = Candidate(params=(Value("config", choice),), time_us=1.0)
    return Entry(
        problem, (Value("space", "any", "digest"),), candidate, versions=Versions.parse("pytest-autotune 0.1.0")
    )


class Library:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ships(self, *entries: Entry, resource: str = "autotune.textproto", options: str = "") -> Library:
        package = self.folder / "mylib"
        package.mkdir(exist_ok=True)
        used = f"\nloaded = pytest_autotune.use(__name__, {resource!r}, {options})\n"
        (package / "__init__.py").write_text(LIBRARY + used)
        update_store(stores.open_store(str(package / "autotune.textproto")), lambda now: Cache(entries))
        return self

    def run(self, script: str, prelude: str = "") -> tuple[Any, str]:
        """Return what a script gives, and its warnings.

        :param prelude: statements before the library is imported.
        """
        whole = f"{prelude}\nimport json, sys, mylib\nfrom pytest_autotune import Device\nprint(json.dumps({script}))"
        done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path)


def test_a_library_uses_its_shipped_choice_without_tuning(library: Library) -> None:
    shipped = library.ships(entry(64, 4), entry(128, 2), entry(64, 1, kernel="other.scale"))
    results, warned = shipped.run("[mylib.scale(64), mylib.scale(128), len(mylib.loaded.misses)]")

    assert results == [[4, 0], [2, 0], 0]
    assert warned == ""


def test_a_shipped_choice_is_used_in_pytest_without_any_option(library: Library) -> None:
    test = "import mylib\ndef test(): assert mylib.scale(64) == (4, 0)"
    (library.ships(entry(64, 4)).folder / "test_mylib.py").write_text(test)

    command = [sys.executable, "-m", "pytest", "-Werror", "-ppytest_autotune.plugin"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins take a second
    assert subprocess.run(command, cwd=library.folder, env=environment).returncode == 0


@pytest.mark.parametrize(
    ("on_miss", "chosen", "used"), [("first", 1, "first"), ("nearest", 4, "nearest"), ("tune", None, "tune")]
)
def test_each_miss_is_logged_and_only_the_first_one_warns(
    library: Library, on_miss: str, chosen: int | None, used: str
) -> None:
    shipped = library.ships(entry(16, 2), entry(4096, 4), options=f"on_miss={on_miss!r}, report='misses.jsonl'")

    ((value, runs), _, misses), warned = shipped.run(
        "[mylib.scale(300), mylib.scale(301), [[one.key['n'], one.used] for one in mylib.loaded.misses]]"
    )

    assert misses == [[300, used], [301, used]]
    assert chosen is None or value == chosen
    assert (runs > 1) == (on_miss == "tune")
    assert warned.count("UserWarning") == (on_miss != "tune")
    assert on_miss == "tune" or "pytest --autotune-load=mylib/autotune.textproto --autotune-update=all" in warned
    (line, _) = (library.folder / "misses.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "tuner": "function",
        "kernel": "mylib.scale",
        "key": {"n": 300, "kind": "a"},
        "device": ["Here", "chip", 4],
        "used": used,
    }


def test_a_lookup_does_not_slow_down_after_6000_misses(library: Library) -> None:
    shipped = library.ships(entry(16, 2), options="report='misses.jsonl'")
    timed = "(t := __import__('time').perf_counter(), [mylib.scale(n) for n in range({}, {})], t - __import__('time')"
    timed += ".perf_counter())[2]"

    first, _, last = shipped.run(f"[{timed.format(100, 600)}, {timed.format(600, 6000)}, {timed.format(6000, 6500)}]")[
        0
    ]

    assert last / first < 3


def test_a_miss_is_logged_on_a_new_line_after_a_cut_off_line(library: Library) -> None:
    shipped = library.ships(entry(16, 2), options="report='misses.jsonl'")
    report = library.folder / "misses.jsonl"
    report.write_text('{"tuner": "func')

    shipped.run("mylib.scale(17)")

    torn, whole = report.read_text().splitlines()
    assert torn == '{"tuner": "func'
    assert json.loads(whole)["key"] == {"n": 17, "kind": "a"}


FORKS = """
import os, sys, threading, time
from pytest_autotune.cache import codec
import mylib

reads = threading.Event()
decode = codec.decode

def decode_slowly(*args):
    reads.set()
    time.sleep(1)
    return decode(*args)

codec.decode = decode_slowly
thread = threading.Thread(target=mylib.scale, args=[64])
thread.start()
reads.wait()
child = os.fork()
if not child:
    os._exit(mylib.scale(64) != (4, 0))
thread.join()
sys.exit(os.waitpid(child, 0)[1])
"""


def test_forking_while_a_shipped_cache_is_read_does_not_hang(library: Library) -> None:
    folder = library.ships(entry(64, 4)).folder

    assert subprocess.run([sys.executable, "-c", FORKS], cwd=folder, timeout=30).returncode == 0


def test_with_on_miss_error_a_miss_raises_miss_error(library: Library) -> None:
    shipped = library.ships(entry(64, 4), options="on_miss='error'")
    script = "import mylib\nmylib.scale(65)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=shipped.folder)
    assert "MissError: mylib: autotune.textproto, digest" in done.stderr
    assert "no tuned choice is shipped for function:mylib.scale (n=65, kind=a) on Here" in done.stderr

    script = "import mylib\nmylib.scale(64, key={'n': 64, 'kind': 'a', 'x': object()})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=shipped.folder)
    assert "MissError: mylib: autotune.textproto, digest" in done.stderr
    assert "(n=64, kind=a, uncacheable=x is a object, which has no stable form)" in done.stderr

    library.ships(entry(64, 4))
    failing = "mylib.pytest_autotune.tune('mylib.f', space=[0, 1, 2], run=lambda n: 1 / n, strict=False)"
    assert library.run(failing)[0] == 1


#: Values of ``n`` that are different keys of ``tune()``. Python or the text in a cache makes some of them look alike.
LOOKALIKES = (
    *("1", "True", "1.0", "0.0", "-0.0", "(1, 1)", "(1, True)"),
    *("uuid.SafeUUID.safe", "'SafeUUID.safe'", "('SafeUUID.safe',)", "(uuid.SafeUUID.safe,)"),
)


def lookalike_entry(expression: str, choice: int) -> Entry:
    """Return an entry for the key of ``tune()`` whose ``n`` is the value of an expression."""
    problem = Problem("function", "mylib.scale", key_values({"n": eval(expression, {"uuid": uuid})}), HERE)
    return Entry(problem, choice=Candidate(params=(Value("config", choice),), time_us=1.0))


def test_keys_of_tune_that_look_alike_have_their_own_choices(library: Library) -> None:
    choices = [(1, 2, 4)[index % 3] for index in range(len(LOOKALIKES))]
    shipped = library.ships(*map(lookalike_entry, LOOKALIKES, choices), options="on_miss='error'")

    calls = [f"mylib.scale(0, key={{'n': {expression}}})[0]" for expression in LOOKALIKES]
    results, warned = shipped.run(f"[{', '.join(calls)}]", prelude="import uuid")

    assert results == choices
    assert warned == ""


@pytest.mark.parametrize("shipped_value", ["1", "uuid.SafeUUID.safe"])
@pytest.mark.parametrize(("on_miss", "choice"), [("first", 1), ("nearest", 4)])
def test_the_choice_of_a_key_that_looks_alike_is_a_miss(
    library: Library, shipped_value: str, on_miss: str, choice: int
) -> None:
    """With ``"nearest"`` the choice may be used, because it is the nearest. The user is told so."""
    shipped = library.ships(lookalike_entry(shipped_value, 4), options=f"on_miss={on_miss!r}")
    alike = {"1": ["True", "1.0"], "uuid.SafeUUID.safe": ["'SafeUUID.safe'"]}[shipped_value]

    calls = [f"mylib.scale(0, key={{'n': {expression}}})" for expression in (shipped_value, *alike)]
    (results, uses), warned = shipped.run(
        f"[[{', '.join(calls)}], [miss.used for miss in mylib.loaded.misses]]", prelude="import uuid"
    )

    assert results[0] == [4, 0]
    assert [result[0] for result in results[1:]] == [choice] * len(alike)
    assert uses == [on_miss] * len(alike)
    assert warned.count("UserWarning") == 1


def test_misses_that_look_alike_are_each_in_the_list_of_misses(library: Library) -> None:
    shipped = library.ships(entry(64, 4))
    calls = [f"mylib.scale(0, key={{'n': {expression}}})" for expression in LOOKALIKES]

    count, _ = shipped.run(f"[{', '.join(calls)}] and len(mylib.loaded.misses)", prelude="import uuid")

    assert count == len(LOOKALIKES)


def test_functions_of_a_factory_in_keys_of_tune_are_told_apart(library: Library) -> None:
    factory = library.ships().folder / "mylib" / "factory.py"
    factory.write_text("def scaled(factor):\n    return lambda x: x * factor\n")
    prelude = "from pytest_autotune.tuners.function.identity import key_values\nfrom mylib.factory import scaled"
    texts, _ = library.run("[key_values({'f': scaled(factor)})[0].value for factor in (2, 3)]", prelude)
    entries = []
    for text, choice in zip(texts, (2, 4), strict=True):
        problem = Problem("function", "mylib.scale", (Value("f", text, "function"),), HERE)
        entries.append(Entry(problem, choice=Candidate(params=(Value("config", choice),), time_us=1.0)))
    shipped = library.ships(*entries)

    results, warned = shipped.run("[mylib.scale(0, key={'f': scaled(factor)})[0] for factor in (2, 3, 5)]", prelude)

    assert results == [2, 4, 1]
    assert "no tuned choice is shipped for function:mylib.scale (f=mylib.factory.scaled.<locals>.<lambda>())" in warned


def test_a_choice_is_used_on_gpus_of_equal_architecture_and_size(library: Library) -> None:
    shipped = library.ships(entry(64, 4), options="aliases={'Small': 'Here', 'Strange': 'Here'}")
    devices = [("OEM", "chip", 4), ("Small", "chip", 2), ("Other", "chip", 2), ("Strange", "other", 4)]

    blocks, _ = shipped.run(f"[mylib.scale(64, Device(*one))[0] for one in {devices}]")

    assert blocks == [4, 4, 1, 1]
    blocks, warned = shipped.run("[mylib.scale(n, Device('OEM', 'chip', 4))[0] for n in (64, 65)]")
    assert (blocks, warned.count("UserWarning")) == ([4, 1], 2)
    library.ships(entry(64, 4), entry(64, 2, device=Device("Small", "chip", 2)), options="aliases={'Small': 'Here'}")
    assert library.run("mylib.scale(64, Device('Small', 'chip', 2))[0]")[0] == 2


def test_a_cache_is_not_used_for_kernels_of_other_packages(library: Library) -> None:
    shipped = library.ships(entry(64, 4, kernel="mylibrary.scale"))
    assert shipped.run("mylib.scale(64, kernel='mylibrary.scale')[1] > 1")[0] is True


#: The dependencies of this package that only tests need.
NOT_ADVICE = ["pytest", "_pytest", "pluggy", "click", "filelock", "yaml", "google.protobuf"]
HIDE = f"import sys\nsys.modules.update(dict.fromkeys({NOT_ADVICE}))"


def test_a_shipped_cache_is_used_without_pytest_installed(library: Library) -> None:
    shipped = library.ships(entry(64, 4))

    results, warned = shipped.run("[mylib.scale(64), mylib.scale(65)[0]]", HIDE)

    assert results == [[4, 0], 1]
    assert warned.count("UserWarning") == 1


def test_triton_kernels_use_a_cache_without_pytest_installed(library: Library) -> None:
    pytest.importorskip("triton")
    shipped = library.ships(factory_entry(32), options="on_miss='error'")
    (shipped.folder / "mylib" / "factory.py").write_text(FACTORY)

    expression = "(f := __import__('mylib.factory').factory).left(f.made(f.tl.constexpr('relu')))"

    assert shipped.run(expression, HIDE)[0] == [32]


def test_an_interpreted_triton_kernel_uses_the_nearest_choice(library: Library) -> None:
    """The interpreter compiles nothing, so each choice fits."""
    pytest.importorskip("triton")
    shipped = library.ships(factory_entry(32, n=4), options="on_miss='nearest'")
    (shipped.folder / "mylib" / "factory.py").write_text(FACTORY)

    chosen, _ = shipped.run("(f := __import__('mylib.factory').factory).left(f.made(f.tl.constexpr('relu')))")

    assert chosen == [32]


def test_printing_a_cache_in_one_line_does_not_import_torch(library: Library) -> None:
    shipped = library.ships(entry(64, 4))
    heavy = {*NOT_ADVICE, "torch", "numpy"}

    (imported, line), _ = shipped.run(f"[mylib.scale(64) and sorted({heavy} & set(sys.modules)), str(mylib.loaded)]")

    assert imported == []
    assert line == shipped.run("str(mylib.loaded)")[0]
    assert re.fullmatch("mylib: autotune.textproto, digest [0-9a-f]{16}", line)
    assert library.ships(entry(64, 2)).run("str(mylib.loaded)")[0] != line


@pytest.mark.parametrize("text", [None, "entries {", ""], ids=["missing", "damaged", "empty"])
def test_an_unreadable_shipped_cache_warns_and_kernels_are_tuned(library: Library, text: str | None) -> None:
    shipped = library.ships(entry(64, 4), resource="autotune.textproto" if text is not None else "gone.textproto")
    if text is not None:
        (library.folder / "mylib" / "autotune.textproto").write_text(text)

    (_, runs), warned = shipped.run("mylib.scale(64)")

    assert runs > 1
    assert warned.count("UserWarning: mylib: ") == 1


FACTORY = """
import os
os.environ["TRITON_INTERPRET"] = "1"  # says which device it is
import triton, triton.language as tl

def made(ACTIVATION):
    @triton.jit
    def kernel(n, BLOCK: tl.constexpr):
        tl.static_assert(ACTIVATION == ACTIVATION)
    configs = [triton.Config({"BLOCK": block}) for block in (16, 32)]
    return triton.autotune(configs, key=["n"])(kernel)

def left(kernel):
    kernel.nargs = {"n": 5}
    try:
        return [config.kwargs["BLOCK"] for config in kernel.prune_configs({})]
    except LookupError as error:
        return str(error)
"""


def factory_entry(block: int, n: int = 5) -> Entry:
    """An entry of the kernel of FACTORY that took ``"relu"``."""
    key = Value("n", n), Value("closure.ACTIVATION", "relu")
    problem = Problem("triton", "mylib.factory.made.<locals>.kernel", key, Device("Triton interpreter", "interpreter"))
    params = {"BLOCK": block, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    choice = Candidate(params=tuple(Value(name, value) for name, value in params.items()))
    return Entry(problem, choice=choice, versions=Versions.parse("triton 2.9.0"))


def test_kernels_of_one_factory_are_told_apart_by_closure_values(library: Library) -> None:
    pytest.importorskip("triton")
    shipped = library.ships(factory_entry(32), options="on_miss='error'")
    (shipped.folder / "mylib" / "factory.py").write_text(FACTORY)

    made = (
        "[(f := __import__('mylib.factory').factory).left(f.made(f.tl.constexpr(one)))"
        " for one in ('relu', 'gelu', sys)]"
    )

    (relu, gelu, without_form), warned = shipped.run(made)

    assert relu == [32]
    assert "closure.ACTIVATION=gelu) on Triton interpreter" in gelu
    assert "closure.ACTIVATION is a module, which has no stable form) on Triton interpreter" in without_form
    assert "was tuned with triton 2.9, and this is" in warned
    assert "pytest --autotune-load= --autotune-dump=mylib/autotune.textproto)" in warned  # an update keeps what hits


def test_two_choices_of_one_problem_give_a_warning_and_a_tuning(library: Library) -> None:
    """Kernels of one name with different code, say, of which a launch does not show which it is."""
    problem = entry(64, 4).problem
    other = Entry(problem, (Value("space", "other", "digest"),), Candidate(params=(Value("config", 2),), time_us=1.0))
    shipped = library.ships(entry(64, 4), other, options="on_miss='tune'")

    (_, runs), warned = shipped.run("mylib.scale(64)")

    assert runs > 1
    assert "UserWarning: mylib: several choices are shipped for function:mylib.scale (n=64, kind=a)" in warned
    assert library.ships(entry(64, 4), options="on_miss='tune'").run("mylib.scale(65)")[1] == ""


DTYPES = """
import os
os.environ["TRITON_INTERPRET"] = "1"  # says which device it is
import torch, triton, triton.language as tl

@triton.jit
def kernel(n, TO: tl.constexpr, BLOCK: tl.constexpr):
    tl.static_assert(TO == TO)

kernel = triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n", "TO"])(kernel)

def left(TO):
    kernel.nargs = {"n": 5, "TO": TO}
    try:
        return [config.kwargs["BLOCK"] for config in kernel.prune_configs({})]
    except LookupError as error:
        return str(error)
"""


def test_a_shipped_cache_tells_torch_from_triton_dtypes_in_keys(library: Library) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    key = Value("n", 5), Value("TO", "int32", "dtype")
    problem = Problem("triton", "mylib.dtypes.kernel", key, Device("Triton interpreter", "interpreter"))
    params = {"BLOCK": 32, "num_warps": 4, "num_ctas": 1, "num_stages": 3}
    choice = Candidate(params=tuple(Value(name, value) for name, value in params.items()))
    shipped = library.ships(Entry(problem, choice=choice), options="on_miss='error'")
    (shipped.folder / "mylib" / "dtypes.py").write_text(DTYPES)

    module = "__import__('mylib.dtypes').dtypes"
    (tritons, torchs), _ = shipped.run(f"[(f := {module}).left(f.tl.int32), f.left(f.torch.int32)]")

    assert tritons == [32]
    assert "TO=torch.int32) on Triton interpreter" in torchs


def test_a_package_without_the_shipped_cache_file_gets_a_warning(library: Library) -> None:
    (library.ships().folder / "bare").mkdir()
    for package in ("__main__", "bare"):
        _, warned = library.run(
            f"mylib.pytest_autotune.use('{package}', __import__('pathlib').Path('a.textproto')).misses"
        )
        assert f"UserWarning: {package}: a.textproto cannot be read" in warned


def test_an_unknown_value_of_on_miss_raises_value_error() -> None:
    import pytest_autotune

    with pytest.raises(ValueError, match="on_miss takes first, nearest, tune, error, not 'sometimes'"):
        pytest_autotune.use("mylib", "autotune.textproto", on_miss="sometimes")
