"""Both tuners of CuTe DSL: their choices are kept, and their flaws are not copied."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pytest_autotune.tuners.cute.internals import AutotunedFunction, Iterations
from tests.adapter_suites import IS_REAL, AdapterSuite, counts_of

CACHE = "cache.textproto"
LOAD = [f"--autotune-load={CACHE}", "--autotune-max-misses=0"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite that was dumped, and its report."""
    folder = tmp_path_factory.mktemp("cute")
    suite = AdapterSuite(folder, "cute", "toy_cutlass")
    done = suite.run("test_kernels.py", f"--autotune-dump={CACHE}", "--autotune-report=dump.json")
    assert done.returncode == 0, done.stdout + done.stderr
    return suite.folder


@pytest.fixture
def suite(dumped: Path, tmp_path: Path) -> AdapterSuite:
    copy = AdapterSuite(tmp_path, "cute", "toy_cutlass")
    shutil.copy(dumped / CACHE, copy.folder)
    return copy


def test_the_adapter_conformance_tests_pass_for_the_cute_adapter(tmp_path: Path) -> None:
    done = AdapterSuite(tmp_path, "cute", "toy_cutlass").run("test_conformance.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 2 skipped" in done.stdout


def test_a_load_has_only_hits_and_measures_nothing(suite: AdapterSuite) -> None:
    suite.edit(
        "test_kernels.py",
        "import host\n",
        "import host\nimport atexit\natexit.register(lambda: print('measured', host.count_measured()))\n",
    )
    loaded = suite.report("test_kernels.py", *LOAD)

    assert loaded["status"] == 0, loaded["output"]
    assert counts_of(loaded) == {"hit": 5}
    assert "measured 0" in loaded["output"]


def test_a_config_that_does_not_compile_is_recorded_as_failed(dumped: Path) -> None:
    lookups = json.loads((dumped / "dump.json").read_text())["lookups"]
    [lookup, _] = [lookup for lookup in lookups if lookup["kernel"] == "test_kernels.scale_tuned"]
    failed = [candidate for candidate in lookup["candidates"] if candidate.get("failed")]

    assert len(lookup["candidates"]) == 8
    if not IS_REAL:  # CuTe compiles a V of 5
        assert [candidate["failed"] for candidate in failed] == ["ValueError: V must be a power of two"] * 2


def test_the_row_of_a_stale_entry_names_the_edited_kernel(suite: AdapterSuite) -> None:
    suite.edit("scale_kernels.py", "cutlass.Float32(2.0)", "cutlass.Float32(3.0)")
    loaded = suite.report("test_kernels.py", f"--autotune-load={CACHE}")

    assert counts_of(loaded)["stale"] == 5
    for lookup in loaded["lookups"]:
        assert lookup["reason"] == "source changed (scale_kernel)"


@pytest.mark.parametrize("on_miss", ["first", "nearest"])
def test_with_on_miss_first_or_nearest_no_problem_of_cute_is_tuned(suite: AdapterSuite, on_miss: str) -> None:
    suite.edit("scale_kernels.py", "cutlass.Float32(2.0)", "cutlass.Float32(3.0)")
    loaded = suite.report("test_kernels.py", f"--autotune-load={CACHE}", f"--autotune-on-miss={on_miss}")

    assert loaded["status"] == 0, loaded["output"]
    assert counts_of(loaded) == {"stale": 5, "fallback": 5}


EXPLICIT = """
import cutlass.cute as cute, host, scale_kernels

tuned = cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)(scale_kernels.scale)

def test_twice():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    tuned(src, dst)
    once = host.count_measured()
    tuned(src, dst, 2)
    assert host.count_measured() == 2 * once
    tuned(src, dst, 2)
    assert host.count_measured() == 2 * once
    tuned(src, dst, V=4)
    assert host.count_measured() == 3 * once
"""


def test_a_constexpr_that_a_call_passes_is_in_the_problem_key(suite: AdapterSuite) -> None:
    """Each value of the constexpr is tuned once."""
    (suite.folder / "test_explicit.py").write_text(EXPLICIT)
    report = suite.report("test_explicit.py", "--autotune-dump=explicit.textproto")

    assert report["status"] == 0, report["output"]
    assert sorted(lookup["key"].get("V", 0) for lookup in report["lookups"]) == [0, 2, 4]


COMPILED_IN = """
from typing import Optional
import cutlass, cutlass.cute as cute, host, scale_kernels

@cute.testing.autotune_jit({"V": [1, 2], "T": [64]}, iterations=1)
@cute.jit
def scale(
    src: cute.Tensor, dst: cute.Tensor, dtype, bias: Optional[cute.Tensor] = None,
    V: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128,
):
    size = cute.size(src)
    scale_kernels.scale_kernel(src, dst, V, T).launch(grid=[(size + V * T - 1) // (V * T), 1, 1], block=[T, 1, 1])

def test_each():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    for _ in range(2):
        scale(src, dst, cutlass.Float32)
        scale(src, dst, cutlass.Float32, None)
        scale(src, dst, cutlass.Float16)
        scale(src, dst, cutlass.Float32, src)
    assert host.count_measured() == 3 * 2
"""


def test_a_call_with_another_dtype_or_class_is_another_problem(suite: AdapterSuite) -> None:
    """No kernel is launched for a call with another class, or with a tensor in place of None."""
    (suite.folder / "test_compiled_in.py").write_text(COMPILED_IN)
    report = suite.report("test_compiled_in.py", "--autotune-dump=compiled.textproto")

    assert report["status"] == 0, report["output"]
    keys = [lookup["key"] for lookup in report["lookups"]]
    assert sorted((key["dtype"].partition("@")[0], "bias.dtype" in key) for key in keys) == [
        ("cutlass.Float16", False),
        ("cutlass.Float32", False),
        ("cutlass.Float32", True),
    ]


REMEMBERED = """
import dataclasses, threading, cutlass, cutlass.cute as cute, host, scale_kernels

LOCK = threading.Lock()

@dataclasses.dataclass
class Mutable:
    size: int = 1

@cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)
@cute.jit
def scale(
    src: cute.Tensor, dst: cute.Tensor, M: cutlass.Constexpr = 1, N: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128
):
    scale_kernels.scale_kernel(src, dst, 1, T).launch(grid=[1, 1, 1], block=[T, 1, 1])

def test_calls():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    for repeat in range(REPEATS):
        for arguments in CALLS:
            scale(src, dst, **arguments)
    assert host.count_measured() == 2 * len(CALLS)
"""
#: Every call passes M and N: CuTe 4.8 tunes no function with a constexpr that a call leaves out. It passes them to the
#: kernel, too, which does not take them.
LEFT_TO_CUTE = REMEMBERED.replace(
    "scale(src, dst, **arguments)",
    "try: scale(src, dst, **arguments)\n            except TypeError as error: assert 'the kernel takes' in str(error)",
)
ALIAS = """from __future__ import annotations
from cutlass import Constexpr as CE
"""


def write_calls(suite: AdapterSuite, calls: str, text: str = REMEMBERED, repeats: int = 2) -> None:
    """Write a test that repeats some calls of a kernel. It expects one search for each of the calls."""
    (suite.folder / "test_calls.py").write_text(text.replace("CALLS", calls).replace("REPEATS", str(repeats)))


@pytest.mark.parametrize(
    "calls",
    [
        '[{"M": 64}, {"N": 64}]',
        '[{"M": 1}, {"M": True}]',
        '[{"M": 0.0}, {"M": -0.0}]',
        '[{"M": [4, 1]}, {"M": [4, 2]}]',
    ],
    ids=["another parameter", "another class", "another sign", "unhashable"],
)
def test_equal_values_of_different_problems_share_no_kernel(suite: AdapterSuite, calls: str) -> None:
    """CuTe's own memory has the values without their names, and compares them as Python does."""
    write_calls(suite, calls)
    report = suite.report("test_calls.py", "--autotune-dump=calls.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"tuned": 2}


def test_a_constexpr_under_another_name_tells_calls_apart(suite: AdapterSuite) -> None:
    """All annotations are text. The text does not have the word Constexpr."""
    write_calls(suite, '[{"M": 3}, {"M": 5}]', ALIAS + REMEMBERED.replace("cutlass.Constexpr", "CE"))
    report = suite.report("test_calls.py", "--autotune-dump=calls.textproto")

    assert report["status"] == 0, report["output"]
    assert sorted(lookup["key"]["M"] for lookup in report["lookups"]) == [3, 5]


def test_a_subclass_of_constexpr_tells_calls_apart(suite: AdapterSuite) -> None:
    text = REMEMBERED.replace("LOCK =", "class Size(cutlass.Constexpr): pass\n\nLOCK =").replace(
        "M: cutlass.Constexpr", "M: Size"
    )
    write_calls(suite, '[{"M": 3}, {"M": 5}]', text)
    report = suite.report("test_calls.py", "--autotune-dump=calls.textproto")

    assert report["status"] == 0, report["output"]


def test_constexpr_is_seen_in_annotations_that_cannot_be_resolved() -> None:
    def launch(size: cutlass.Constexpr, other: Missing) -> None:  # type: ignore[name-defined] # noqa: F821
        pass

    def tuned() -> None:
        pass

    vars(tuned).update(_original_func=launch, _autotune_params={}, _autotune_update_params=[])
    vars(tuned).update(_best_kernel={}, _best_config={})
    autotuned = AutotunedFunction(tuned, Iterations(1, 1))

    assert (autotuned.is_in_key("size", 1), autotuned.is_in_key("other", 1)) == (True, False)


@pytest.mark.parametrize("option", ["--autotune-dump=calls.textproto", f"--autotune-load={CACHE}"])
def test_an_unhashable_constexpr_is_left_to_cute(suite: AdapterSuite, option: str) -> None:
    """CuTe tunes the call. A second call would be an error of CuTe."""
    write_calls(suite, '[{"M": Mutable(), "N": 1}]', LEFT_TO_CUTE, repeats=1)
    report = suite.report("test_calls.py", option)

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"uncacheable": 1}
    assert report["lookups"][0]["reason"] == "M is a test_calls.Mutable, which has no stable form"


def test_uncacheable_calls_with_equal_values_share_no_kernel(suite: AdapterSuite) -> None:
    """CuTe tunes as without the plugin, which adds no names to CuTe's own key."""
    write_calls(suite, '[{"M": LOCK, "N": 1}, {"M": LOCK, "N": True}]', LEFT_TO_CUTE, repeats=1)
    report = suite.report("test_calls.py", "--autotune-dump=calls.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"uncacheable": 1}


FAILING = """
import cutlass, cutlass.cute as cute, host, pytest, scale_kernels

@cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)
@cute.jit
def scale(
    src: cute.Tensor, dst: cute.Tensor, M: cutlass.Constexpr = 1, V: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128
):
    pass

def test_failing():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    scale(src, dst, M=5)
    with pytest.raises(ValueError, match="V must be a power of two"):
        scale(src, dst, V=5)
"""


@pytest.mark.skipif(IS_REAL, reason="the stand-in says what does not compile")
def test_a_call_that_does_not_compile_launches_no_other_kernel(suite: AdapterSuite) -> None:
    """CuTe does not take a kernel that the adapter remembered for one of its own."""
    (suite.folder / "test_failing.py").write_text(FAILING)
    report = suite.report("test_failing.py", "--autotune-dump=failing.textproto")

    assert report["status"] == 0, report["output"]


METHOD = """
import contextlib, cutlass, cutlass.cute as cute, host, scale_kernels

class Scaler:
    def __init__(self, factor):
        self.factor = factor

    @cute.testing.autotune_jit({"V": [1, 2], "T": [64]}, iterations=1)
    @cute.jit
    def scale(self, src: cute.Tensor, dst: cute.Tensor, V: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128):
        size = cute.size(src)
        W = V * self.factor
        scale_kernels.scale_kernel(src, dst, W, T).launch(grid=[(size + W * T - 1) // (W * T), 1, 1], block=[T, 1, 1])

def test_two_objects():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    for factor in (1, 2):
        with contextlib.suppress(TypeError):  # CuTe 4.8 passes self to the kernel, too, which does not take it
            Scaler(factor).scale(src, dst)
    assert host.count_measured() == 2 * 2
"""


def test_a_method_tuned_as_a_cute_kernel_is_uncacheable(suite: AdapterSuite) -> None:
    (suite.folder / "test_method.py").write_text(METHOD)
    report = suite.report("test_method.py", "--autotune-dump=method.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"uncacheable": 1}
    [lookup] = report["lookups"]
    assert lookup["reason"] == "the kernel is a method, which depends on the attributes of self"


LIBRARY = """
import functools, cutlass.cute as cute, scale_kernels
from cutlass.testing import tune

jit_function = scale_kernels.scale
tuned = cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)(jit_function)

@functools.wraps(tuned)
def wrapper(*args):
    wrapper.count += 1
    return tuned(*args)

wrapper.count = 0
"""
USER = """
import host, library, cutlass.cute as cute, scale_kernels
from cutlass.testing import JitArguments

def build(src, dst, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, T=T)
    return lambda: compiled(src, dst)

def test_library():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    library.wrapper(src, dst)
    assert library.wrapper.count == 1
    assert scale_kernels.scale is library.jit_function
    library.tune(build, {"T": [64, 128]}, JitArguments(src, dst), iterations=1)
"""


def test_tuners_imported_early_by_a_conftest_are_still_patched(suite: AdapterSuite) -> None:
    for file, text in {"conftest.py": "import host, library\n", "library.py": LIBRARY, "test_user.py": USER}.items():
        (suite.folder / file).write_text(text)
    report = suite.report("test_user.py", "--autotune-dump=user.textproto")

    assert report["status"] == 0, report["output"]
    assert sorted(lookup["kernel"] for lookup in report["lookups"]) == ["scale_kernels.scale", "test_user.build"]


@pytest.mark.skipif(IS_REAL, reason="edits the stand-in")
def test_cute_with_a_changed_signature_tunes_without_the_plugin(suite: AdapterSuite) -> None:
    path = suite.library / "cutlass/testing.py"
    path.write_text(
        path.read_text().replace("    stream: Any = None,\n)", "    stream: Any = None,\n    prune: Any = None,\n)")
    )
    report = suite.report("test_kernels.py", "-k", "test_tune", "--autotune-dump=new.textproto")

    assert report["status"] == 0, report["output"]
    assert "cute tunes without the plugin: tune() of nvidia-cutlass-dsl" in report["output"]
    assert [lookup["kernel"] for lookup in report["lookups"]] == ["scale"]


@pytest.mark.skipif(IS_REAL, reason="the stand-in says what cannot be launched")
def test_a_cute_config_whose_launch_fails_is_recorded_as_failed(suite: AdapterSuite) -> None:
    """The candidate has the text of the error."""
    suite.edit("test_kernels.py", '{"V": [1, 2, 4], "T": [64, 128]}', '{"V": [3, 2], "T": [64]}')
    report = suite.report("test_kernels.py", "-k", "test_tune and 65536", "--autotune-dump=new.textproto")

    [lookup] = report["lookups"]
    assert [candidate.get("failed") for candidate in lookup["candidates"]] == ["RuntimeError: misaligned address", None]


@pytest.mark.skipif(IS_REAL, reason="the stand-in says what does not compile")
def test_a_cute_tuning_in_which_all_configs_fail_is_not_recorded(suite: AdapterSuite) -> None:
    """The report has the reason."""
    suite.edit("test_kernels.py", '{"V": [1, 2, 5, 4], "T": [64, 128]}', '{"V": [5], "T": [64]}')
    report = suite.report("test_kernels.py", "-k", "test_autotune_jit and 65536", "--autotune-dump=new.textproto")

    assert report["status"] == 1
    assert "ValueError: V must be a power of two" in report["output"]
    [lookup] = report["lookups"]
    assert lookup["unrecorded"] == "every candidate failed: ValueError: V must be a power of two (1 candidate)"


def test_two_workers_tune_each_cute_problem_once(suite: AdapterSuite) -> None:
    pytest.importorskip("xdist")
    report = suite.report("test_kernels.py", "-pxdist", "-n2", "--autotune-dump=workers.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report)["tuned"] == 5


HOSTILE = """
import enum, functools, cutlass, cutlass.cute as cute, host, numpy, pytest, scale_kernels
from cutlass.testing import JitArguments, tune

class StreamKMode(enum.Enum):
    ON = 1
    OFF = 2

class Wide:
    width = 4

class Narrow:
    width = 1

def relu(x):
    return max(x, 0)

def double(x):
    return 2 * x

def make_scale(factor):
    def scale(x):
        return factor * x
    return scale

PAIRS = {
    "enum": (StreamKMode.ON, StreamKMode.OFF),
    "numpy": (numpy.int32(1), numpy.int32(2)),
    "function": (relu, double),
    "factory": (make_scale(2), make_scale(3)),
    "class": (Wide, Narrow),
}

def build(src, dst, mode, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, T=T)
    return lambda: compiled(src, dst)

def make_builder(mode):
    def build_inner(src, dst, T):
        assert mode
        return build(src, dst, mode, T)
    return build_inner

@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("place", ["argument", "keyword", "partial", "partial-keyword", "closure"])
def test_hostile(place, name, index):
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    mode = PAIRS[name][index]
    builder, arguments = build, JitArguments(src, dst)
    if place == "argument":
        arguments = JitArguments(src, dst, mode)
    elif place == "keyword":
        arguments = JitArguments(src, dst, mode=mode)
    elif place == "partial":
        builder, arguments = functools.partial(build, src, dst, mode), JitArguments()
    elif place == "partial-keyword":
        builder = functools.partial(build, mode=mode)
    else:
        builder = make_builder(mode)
    tune(builder, {"T": [64, 128]}, arguments, iterations=1)
"""


def test_each_argument_value_of_a_builder_gets_its_own_entry(suite: AdapterSuite) -> None:
    """A keyword of the call or of a partial is the same argument. A partial has its own names for arguments."""
    (suite.folder / "test_hostile.py").write_text(HOSTILE)
    report = suite.report("test_hostile.py", "--autotune-dump=hostile.textproto")

    assert report["status"] == 0, report["output"]
    entries = (suite.folder / "hostile.textproto").read_text().count("\nentries {")
    # There are 5 pairs, as an argument, as an argument of a partial, and in a closure.
    assert entries == 5 * 2 * 3


KEYWORDS = """
import cutlass.cute as cute, host, scale_kernels
from cutlass.testing import JitArguments, tune

def build(src, dst, *sizes, **config):
    compiled = cute.compile(scale_kernels.scale, src, dst, T=config["T"])
    return lambda: compiled(src, dst)

def build_plain(src, dst, **config):
    return build(src, dst, **config)

def test_keywords():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    tune(build_plain, {"T": [64, 128]}, JitArguments(src, dst), iterations=1)
    for size in (1, 2):
        tune(build, {"T": [64, 128]}, JitArguments(src, dst, size, T=8, mode="fast"), iterations=1)
"""


def test_further_arguments_of_a_builder_are_in_the_problem_key(suite: AdapterSuite) -> None:
    """Each further argument and keyword is a value of the key, except for the tuned keywords."""
    (suite.folder / "test_keywords.py").write_text(KEYWORDS)
    report = suite.report("test_keywords.py", "--autotune-dump=keywords.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"tuned": 3}
    keys = [lookup["key"] for lookup in report["lookups"]]
    other_values = [{name: key[name] for name in key if name.partition(".")[0] not in ("src", "dst")} for key in keys]
    assert sorted(other_values, key=str) == [
        {"sizes.0": 1, "config.mode": "fast"},
        {"sizes.0": 2, "config.mode": "fast"},
        {},
    ]


TENSOR_LIST = """
import cutlass, cutlass.cute as cute, host, scale_kernels
from cutlass.cute.runtime import make_fake_compact_tensor

@cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)
@cute.jit
def scale(tensors, T: cutlass.Constexpr = 128):
    src, dst = tensors
    scale_kernels.scale_kernel(src, dst, 1, T).launch(grid=[1, 1, 1], block=[T, 1, 1])

def launch(dtype):
    scale([make_fake_compact_tensor(dtype, (64,)), make_fake_compact_tensor(dtype, (64,))])

def test_float(): launch(cutlass.Float32)
def test_half(): launch(cutlass.Float16)
"""


@pytest.mark.skipif(IS_REAL, reason="uses tensors of the stand-in")
def test_dtypes_of_tensors_inside_a_list_are_in_the_problem_key(suite: AdapterSuite) -> None:
    """CuTe looks at no dtype. No kernel is launched for a tensor with another dtype."""
    (suite.folder / "test_list.py").write_text(TENSOR_LIST)
    report = suite.report("test_list.py", "--autotune-dump=list.textproto")

    dtypes = [lookup["key"]["tensors.0.dtype"].partition("@")[0] for lookup in report["lookups"]]
    assert sorted(dtypes) == ["cutlass.Float16", "cutlass.Float32"]


LAYOUTS = """
import cutlass, cutlass.cute as cute, host, scale_kernels
from cutlass.testing import JitArguments, tune
from cutlass.cute.runtime import from_dlpack

@cute.testing.autotune_jit({"T": [64, 128]}, iterations=1)
@cute.jit
def scale(src: cute.Tensor, dst: cute.Tensor, T: cutlass.Constexpr = 128):
    scale_kernels.scale_kernel(src, dst, 1, T).launch(grid=[1, 1, 1], block=[T, 1, 1])

def build(src, dst, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, 1, T)
    return lambda: compiled(src, dst)

def tune_both(src, dst):
    scale(src, dst)
    tune(build, {"T": [64, 128]}, JitArguments(src, dst), iterations=1)

def make(): return from_dlpack(host.make_array(8, 16))
def test_static(): tune_both(make(), make())
def test_dynamic(): tune_both(make().mark_layout_dynamic(), make().mark_layout_dynamic())
"""


def test_tensors_with_different_layouts_are_different_problems(suite: AdapterSuite) -> None:
    """CuTe does not look at layouts. No kernel is launched for a tensor with another layout."""
    (suite.folder / "test_layouts.py").write_text(LAYOUTS)
    report = suite.report("test_layouts.py", "--autotune-dump=layouts.textproto")

    assert report["status"] == 0, report["output"]
    layouts = [(lookup["kernel"], lookup["key"].get("src.layout")) for lookup in report["lookups"]]
    assert sorted(layouts, key=str) == [
        ("test_layouts.build", "(?,?):(?{i64},1)"),
        ("test_layouts.build", None),  # the key of tune has the shape and the strides
        ("test_layouts.scale", "(8,16):(16,1)"),
        ("test_layouts.scale", "(?,?):(?{i64},1)"),
    ]


FAKE_LAYOUTS = """
import cutlass, host, pytest
from cutlass.cute import SymInt
from cutlass.cute.runtime import from_dlpack, make_fake_tensor
from pytest_autotune.tuners.shared.arguments import list_compiled_values

def make(*shape): return from_dlpack(host.make_array(*shape))
def make_fake(shape, stride): return make_fake_tensor(cutlass.Float32, shape, stride=stride)
PAIRS = [
    ("(8):(1)", make(8), make_fake((8,), (1,))),
    ("(8,16):(16,1)", make(8, 16), make_fake((8, 16), (16, 1))),
    ("(?):(1)", make(8).mark_layout_dynamic(), make_fake((SymInt(),), (1,))),
    ("(?,?):(?{i64},1)", make(8, 16).mark_layout_dynamic(),
        make_fake((SymInt(symbol="rows"), SymInt()), (SymInt(64), 1))),
]

@pytest.mark.parametrize("layout, real, fake", PAIRS, ids=[pair[0] for pair in PAIRS])
def test_layouts(layout, real, fake):
    [real_key, fake_key] = [list_compiled_values("x", tensor) for tensor in (real, fake)]
    assert real_key == fake_key
    assert real_key[-1].value == layout

def test_a_division():
    [_, layout] = list_compiled_values("x", make_fake((8, SymInt(divisibility=4)), (SymInt(64, divisibility=4), 1)))
    assert layout.value == "(8,?{div=4}):(?{i64 div=4},1)"
"""


def test_a_fake_tensor_has_the_same_problem_key_as_a_real_tensor(suite: AdapterSuite) -> None:
    """A fake tensor has no memory. A kernel that was compiled for its layout also runs on a real tensor."""
    (suite.folder / "test_fake_layouts.py").write_text(FAKE_LAYOUTS)
    done = suite.run("test_fake_layouts.py")

    assert done.returncode == 0, done.stdout + done.stderr


WRONG_CALL = """
import host, pytest
from cutlass.testing import JitArguments, tune

def build(src, T):
    raise AssertionError

def test_wrong_call():
    with pytest.raises(ValueError, match="No best kernel found"):
        tune(build, {"T": [64]}, JitArguments(1, 2, 3), iterations=1)
"""


def test_a_builder_call_with_too_many_arguments_is_uncacheable(suite: AdapterSuite) -> None:
    (suite.folder / "test_wrong.py").write_text(WRONG_CALL)
    report = suite.report("test_wrong.py", "--autotune-dump=wrong.textproto")

    assert report["status"] == 0, report["output"]
    [lookup] = report["lookups"]
    assert (
        lookup["reason"] == "test_wrong.build() cannot be called with the JitArguments: too many positional arguments"
    )
    assert "error in tune()" not in report["output"]


ENUM = """
import enum, cutlass, cutlass.cute as cute, host, scale_kernels
from cutlass.testing import JitArguments, tune

class Mode(enum.Enum):
    FAST = 1

def build(src, dst, mode, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, V=mode.value, T=T)
    return lambda: compiled(src, dst)

@cute.testing.autotune_jit({"T": [64, 128]}, update_on_change=["mode"], iterations=1)
@cute.jit
def scale(src: cute.Tensor, dst: cute.Tensor, mode: cutlass.Constexpr, T: cutlass.Constexpr = 128):
    scale_kernels.scale_kernel(src, dst, mode.value, T).launch(grid=[1, 1, 1], block=[T, 1, 1])

def test_enum():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    tune(build, {"T": [64, 128]}, JitArguments(src, dst, Mode.FAST), iterations=1)
    scale(src, dst, Mode.FAST)
"""


def test_changing_an_enum_value_in_a_key_makes_its_entries_stale(suite: AdapterSuite) -> None:
    """The key has the name of the member, and the fingerprint has its class."""
    (suite.folder / "test_enum.py").write_text(ENUM)
    assert counts_of(suite.report("test_enum.py", "--autotune-dump=enum.textproto")) == {"tuned": 2}
    assert counts_of(suite.report("test_enum.py", "--autotune-load=enum.textproto")) == {"hit": 2}
    suite.edit("test_enum.py", "FAST = 1", "FAST = 2")

    assert counts_of(suite.report("test_enum.py", "--autotune-load=enum.textproto"))["stale"] == 2


MODES = """
import enum, typing, cutlass, cutlass.cute as cute, host, scale_kernels
from cutlass.testing import JitArguments, tune

class Mode(enum.Enum):
    FAST = 1
    SLOW = 2
    def size(self): return self.value * 1

class Shape(typing.NamedTuple):
    mode: Mode = Mode.FAST
    def size(self): return self.mode.value * 1

class Other(Shape):
    pass

def build(src, dst, shape, mode, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, V=shape.size() * mode.size(), T=T)
    return lambda: compiled(src, dst)

def test_tune():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    tune(build, {"T": [64], "mode": [Mode.FAST, Mode.SLOW]}, JitArguments(src, dst, Shape()), iterations=1)

def test_closure():
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    mode = Mode.SLOW

    def build_in_mode(src, dst, T):
        compiled = cute.compile(scale_kernels.scale, src, dst, V=mode.value, T=T)
        return lambda: compiled(src, dst)

    tune(build_in_mode, {"T": [64, 128]}, JitArguments(src, dst), iterations=1)

@cute.testing.autotune_jit({"mode": [Mode.FAST, Mode.SLOW]}, iterations=1)
@cute.jit
def scale(src: cute.Tensor, dst: cute.Tensor, mode: cutlass.Constexpr = None):
    scale_kernels.scale_kernel(src, dst, mode.size(), 128).launch(grid=[64, 1, 1], block=[128, 1, 1])

def test_jit():
    scale(host.make_vector(1 << 16), host.make_vector(1 << 16))
"""


@pytest.mark.parametrize(
    ("edit", "stale_count"),
    [
        (("self.value * 1", "self.value * 2"), 3),
        (("SLOW = 2", "SLOW = 4"), 3),
        (("self.mode.value * 1", "self.mode.value * 2"), 1),
    ],
    ids=["method of a configuration", "value in a configuration", "method of an argument"],
)
def test_editing_the_class_of_a_value_makes_the_entry_stale(
    suite: AdapterSuite, edit: tuple[str, str], stale_count: int
) -> None:
    (suite.folder / "test_mode.py").write_text(MODES)
    suite.report("test_mode.py", "--autotune-dump=mode.textproto")
    loaded = suite.report("test_mode.py", "--autotune-load=mode.textproto")
    suite.edit("test_mode.py", *edit)
    edited = suite.report("test_mode.py", "--autotune-load=mode.textproto")

    assert (counts_of(loaded), counts_of(edited)["stale"]) == ({"hit": 3}, stale_count)


def test_configurations_with_equal_named_tuples_are_uncacheable(suite: AdapterSuite) -> None:
    text = MODES.replace('"mode": [Mode.FAST, Mode.SLOW]}, JitArguments(src, dst, Shape())', "MODES")
    text = text.replace("MODES", '"shape": [Shape(), Other()]}, JitArguments(src, dst, mode=Mode.FAST)')
    (suite.folder / "test_mode.py").write_text(text)
    report = suite.report("test_mode.py::test_tune", "--autotune-dump=mode.textproto")

    assert counts_of(report) == {"uncacheable": 1}
