"""cuTile's exhaustive search: its choices are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.adapter_suites import IS_REAL, AdapterSuite, counts_of

CACHE = "cache.textproto"
LOAD = [f"--autotune-load={CACHE}", "--autotune-max-misses=0"]


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a suite that was dumped."""
    suite = AdapterSuite(tmp_path_factory.mktemp("cutile"), "cutile", "toy_cutile")
    done = suite.run("test_kernels.py", f"--autotune-dump={CACHE}")
    assert done.returncode == 0, done.stdout + done.stderr
    return suite.folder


@pytest.fixture
def suite(dumped: Path, tmp_path: Path) -> AdapterSuite:
    copy = AdapterSuite(tmp_path, "cutile", "toy_cutile")
    shutil.copy(dumped / CACHE, copy.folder)
    return copy


def test_the_conformance_tests_pass_for_the_cutile_adapter(tmp_path: Path) -> None:
    done = AdapterSuite(tmp_path, "cutile", "toy_cutile").run("test_conformance.py")

    assert done.returncode == 0, done.stdout + done.stderr
    assert " 2 skipped" in done.stdout


def test_a_loaded_cache_gives_only_hits_and_is_readable_text(suite: AdapterSuite) -> None:
    loaded = suite.report("test_kernels.py", *LOAD)
    text = (suite.folder / CACHE).read_text()

    assert loaded["status"] == 0, loaded["output"]
    assert counts_of(loaded) == {"hit": 3}
    assert 'key { name: "a.shape" text: "[256, 64]" type: "json" }' in text
    assert 'params { name: "tile" text: "[' in text
    assert 'environment: "cuda.tile 1.7.0"' in text


def test_a_stale_row_names_the_edited_cutile_kernel(suite: AdapterSuite) -> None:
    suite.edit("tile_kernels.py", "* 2.0", "* 3.0")
    loaded = suite.report("test_kernels.py", f"--autotune-load={CACHE}")

    stale = [lookup for lookup in loaded["lookups"] if lookup["outcome"] == "stale"]
    assert [lookup["reason"] for lookup in stale] == ["source changed (scale)"] * 2
    assert counts_of(loaded)["hit"] == 1


def test_editing_an_option_of_a_kernel_makes_its_entry_stale(suite: AdapterSuite) -> None:
    suite.edit("tile_kernels.py", "occupancy=2", "occupancy=4")
    loaded = suite.report("test_kernels.py", f"--autotune-load={CACHE}")

    [stale] = [lookup for lookup in loaded["lookups"] if lookup["outcome"] == "stale"]
    assert stale["kernel"] == "tile_kernels.matmul"
    assert stale["reason"].startswith("options changed")


@pytest.mark.parametrize("on_miss", ["first", "nearest"])
def test_with_on_miss_first_or_nearest_a_search_of_cutile_is_no_tuning(suite: AdapterSuite, on_miss: str) -> None:
    suite.edit("tile_kernels.py", "* 2.0", "* 3.0")
    loaded = suite.report("test_kernels.py", f"--autotune-load={CACHE}", f"--autotune-on-miss={on_miss}")

    assert loaded["status"] == 0, loaded["output"]
    assert counts_of(loaded) == {"hit": 1, "stale": 2, "fallback": 2}


FAILING = """
import cuda.tile.tune, host, pytest, tile_kernels

def test_failing():
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    with pytest.raises(ValueError, match="Return code 5"):
        cuda.tile.tune.exhaustive_search(
            [{"T": 3}], 0, lambda config: (1,), tile_kernels.scale, lambda config: (x, y, config["T"])
        )
"""


@pytest.mark.skipif(IS_REAL, reason="the stand-in fails as tileiras does with another libnvvm")
def test_a_failure_by_a_wrong_libnvvm_is_shown_with_a_remedy(suite: AdapterSuite) -> None:
    """The compiler tileiras loads the libnvvm of another CUDA."""
    (suite.folder / "test_failing.py").write_text(FAILING)
    report = suite.report("test_failing.py", "--autotune-dump=new.textproto")

    assert report["status"] == 0, report["output"]
    assert "unset CUDA_HOME" in report["output"]


@pytest.mark.skipif(IS_REAL, reason="edits the stand-in")
def test_cutile_with_a_new_signature_tunes_without_the_plugin(suite: AdapterSuite) -> None:
    """The summary has a single line, and cutile tunes by itself."""
    path = suite.library / "cuda/tile/tune/__init__.py"
    path.write_text(
        path.read_text().replace("flush_l2: bool = True,", "flush_l2: bool = True,\n    prune: Any = None,")
    )
    report = suite.report("test_kernels.py", "--autotune-dump=new.textproto")

    assert report["status"] == 0, report["output"]
    assert "cutile tunes without the plugin: exhaustive_search() of cuda-tile" in report["output"]


def test_a_search_imported_early_by_a_conftest_is_still_patched(suite: AdapterSuite) -> None:
    (suite.folder / "library.py").write_text("from cuda.tile.tune import exhaustive_search\n")
    (suite.folder / "conftest.py").write_text("import host, library\n")
    suite.edit(
        "test_kernels.py", "from cuda.tile.tune import exhaustive_search", "from library import exhaustive_search"
    )

    assert counts_of(suite.report("test_kernels.py", *LOAD)) == {"hit": 3}


def test_two_workers_tune_each_cutile_problem_once(suite: AdapterSuite) -> None:
    pytest.importorskip("xdist")
    report = suite.report("test_kernels.py", "-pxdist", "-n2", "--autotune-dump=workers.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report)["tuned"] == 3


FACTORY = """
import cuda.tile as ct, cuda.tile.tune, host, pytest, tile_kernels

calls = []

def make_kernel(config):
    calls.append(config)
    return tile_kernels.scale

def make_failing(config):
    calls.append(config)
    raise ValueError("T must be a power of two")

def search(kernel):
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    return cuda.tile.tune.exhaustive_search(
        [{"T": 256}, {"T": 1024}],
        host.find_stream(),
        lambda config: (1,),
        kernel,
        lambda config: (x, y, config["T"]),
        quiet=True,
    )

def test_kernel():
    search(make_kernel)
    print("calls:", len(calls))

def test_failing():
    with pytest.raises(ValueError, match="T must be a power of two"):
        search(make_failing)
    # The plugin calls it once, and then cuTile.
    assert len(calls) == 2
"""


def test_a_hit_calls_the_kernel_factory_once_not_per_config(suite: AdapterSuite) -> None:
    (suite.folder / "test_factory.py").write_text(FACTORY)
    selection = ["test_factory.py::test_kernel", "-s"]
    dumped = suite.report(*selection, "--autotune-dump=factory.textproto")
    loaded = suite.report(*selection, "--autotune-load=factory.textproto", "--autotune-max-misses=0")

    # cuTile calls the function for each of the 2 configurations.
    assert "calls: 3" in dumped["output"]
    assert loaded["status"] == 0, loaded["output"]
    assert "calls: 1" in loaded["output"]


def test_a_kernel_whose_factory_raises_an_error_is_uncacheable(suite: AdapterSuite) -> None:
    (suite.folder / "test_factory.py").write_text(FACTORY)
    report = suite.report("test_factory.py::test_failing", "--autotune-dump=factory.textproto")

    assert report["status"] == 0, report["output"]
    [lookup] = report["lookups"]
    assert lookup["kernel"] == "test_factory.make_failing"
    reason = "the function that returns the kernel failed: ValueError: T must be a power of two"
    assert lookup["reason"] == reason
    assert "left to cutile" not in report["output"]


ITERATOR = """
import cuda.tile.tune, host, pytest, tile_kernels

def test_iterator():
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    space = ({"T": size} for size in (256, 1024))
    with pytest.raises(TypeError, match="has no len"):
        cuda.tile.tune.exhaustive_search(
            space, host.find_stream(), lambda config: (1,), tile_kernels.scale, lambda config: (x, y, config["T"])
        )
    assert len(list(space)) == 2
"""


def test_an_iterator_of_configs_raises_the_error_of_cutile(suite: AdapterSuite) -> None:
    """cuTile refuses it, because it has no length. The plugin does not change that, and reads nothing from it."""
    (suite.folder / "test_iterator.py").write_text(ITERATOR)
    report = suite.report("test_iterator.py", "--autotune-dump=iterator.textproto")

    assert report["status"] == 0, report["output"]
    assert report["lookups"] == []


PADDED = """
import cuda.tile as ct, cuda.tile.tune, host, pytest

@ct.kernel
def scale(x, y, tiles, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, index=(i,), tile=ct.load(x, index=(i,), shape=(T,)) * 2.0)

@pytest.mark.parametrize("size", [4096, 8192])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_padded(size, dtype):
    def list_arguments(config):
        tiles = size // config["T"]
        padded = host.make_tensor((tiles + 1) * config["T"], dtype=dtype)
        return padded, padded, tiles, config["T"]

    cuda.tile.tune.exhaustive_search(
        [{"T": 256}, {"T": 1024}], host.find_stream(), lambda config: (1,), scale, list_arguments, quiet=True
    )
"""


@pytest.mark.skipif(IS_REAL, reason="the kernel takes a number that is no constant")
def test_arguments_computed_from_the_config_are_in_the_key(suite: AdapterSuite) -> None:
    """A padded tensor and the number of tiles depend on the problem, too. A tuned argument is in no key."""
    (suite.folder / "test_padded.py").write_text(PADDED)
    report = suite.report("test_padded.py", "--autotune-dump=padded.textproto")

    assert report["status"] == 0, report["output"]
    assert counts_of(report) == {"tuned": 4}
    keys = [lookup["key"] for lookup in report["lookups"]]
    assert {(key["x.dtype"], key["tiles"], key["tiles.last"]) for key in keys} == {
        (dtype, size // 256, size // 1024) for dtype in ("float32", "float16") for size in (4096, 8192)
    }
    assert all("T" not in key for key in keys)


CARRIED = """
import cuda.tile.tune, dataclasses, host, pytest, tile_kernels

@dataclasses.dataclass(frozen=True)
class Hints:
    occupancy: int

@pytest.mark.parametrize("occupancy", [1, 4])
@pytest.mark.parametrize("split", [1, 2])
def test_carried(occupancy, split):
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    hints, calls = Hints(occupancy), []

    def find_hints(config, scale=(1, 2)):
        calls.append(config)
        return {"occupancy": hints.occupancy}

    cuda.tile.tune.exhaustive_search(
        [{"T": 256}, {"T": 1024}],
        host.find_stream(),
        lambda config: (x.shape[0] // config["T"] // split,),
        tile_kernels.scale,
        lambda config: (x, y, config["T"]),
        find_hints,
        quiet=True,
    )
"""


@pytest.mark.skipif(IS_REAL, reason="launches a grid that leaves elements out")
def test_closure_variables_of_callbacks_are_in_the_problem_key(suite: AdapterSuite) -> None:
    """The values change the grid and the compiled kernel. A tensor and a log are not in the key."""
    (suite.folder / "test_carried.py").write_text(CARRIED)
    report = suite.report("test_carried.py", "--autotune-dump=carried.textproto")
    loaded = suite.report("test_carried.py", "--autotune-load=carried.textproto", "--autotune-max-misses=0")

    assert counts_of(report) == {"tuned": 4}
    assert counts_of(loaded) == {"hit": 4}
    names = {name for lookup in report["lookups"] for name in lookup["key"] if "_fn." in name}
    assert names == {"grid_fn.split", "hints_fn.hints", "hints_fn.scale"}


CONFIG_CLASSES = """
import cuda.tile.tune, dataclasses, enum, host, tile_kernels, typing

class Schedule(enum.Enum):
    A = 1
    B = 2

@dataclasses.dataclass(frozen=True)
class Split:
    T: int
    schedule: Schedule = Schedule.A
    def list_hints(self): return {"occupancy": self.schedule.value * 1}
    def values(self): return [self.T]

class Pair(typing.NamedTuple):
    T: int
    schedule: Schedule = Schedule.A
    def list_hints(self): return {"occupancy": self.schedule.value * 1}
    def values(self): return [self.T]

class Other(Pair):
    pass

def search(configs):
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    cuda.tile.tune.exhaustive_search(
        configs,
        host.find_stream(),
        lambda config: (x.shape[0] // config.T,),
        tile_kernels.scale,
        lambda config: (x, y, config.T),
        lambda config: config.list_hints(),
        quiet=True,
    )

def test_config():
    search(CONFIGS)
"""


@pytest.mark.parametrize("name", ["Split", "Pair"])
@pytest.mark.parametrize("edit", [("A = 1", "A = 3"), ("value * 1", "value * 2")], ids=["value", "method"])
def test_editing_the_class_of_a_configuration_makes_its_entry_stale(
    suite: AdapterSuite, name: str, edit: tuple[str, str]
) -> None:
    text = CONFIG_CLASSES.replace("CONFIGS", f"[{name}(256), {name}(1024)]")
    (suite.folder / "test_config.py").write_text(text)
    suite.report("test_config.py", "--autotune-dump=config.textproto")
    loaded = suite.report("test_config.py", "--autotune-load=config.textproto")
    suite.edit("test_config.py", *edit)
    edited = suite.report("test_config.py", "--autotune-load=config.textproto")

    assert (counts_of(loaded), counts_of(edited)["stale"]) == ({"hit": 1}, 1)


def test_configurations_that_a_cache_cannot_tell_apart_are_uncacheable(suite: AdapterSuite) -> None:
    (suite.folder / "test_config.py").write_text(CONFIG_CLASSES.replace("CONFIGS", "[Pair(256), Other(256)]"))
    report = suite.report("test_config.py", "--autotune-dump=config.textproto")

    assert counts_of(report) == {"uncacheable": 1}
    (lookup,) = report["lookups"]
    assert "apart (add a field that differs)" in lookup["reason"]


KERNELS = """
import cuda.tile as ct, cuda.tile.tune, enum, host, pytest, typing

class Hints(typing.NamedTuple):
    occupancy: int
    stages: int

@ct.kernel
def exact(x, y, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, index=(i,), tile=ct.load(x, index=(i,), shape=(T,)))

@ct.kernel(occupancy=2)
def fast(x, y, T: ct.Constant[int]):
    i = ct.bid(0)
    ct.store(y, index=(i,), tile=ct.load(x, index=(i,), shape=(T,)))

@pytest.mark.parametrize("is_exact", [True, False])
def test_kernels(is_exact):
    x, y = host.make_tensor(4096), host.make_tensor(4096)
    hints = Hints(1, 4)

    def pick(config):
        return fast if config["T"] == 1024 and not is_exact else exact

    cuda.tile.tune.exhaustive_search(
        [{"T": 256}, {"T": 1024}],
        host.find_stream(),
        lambda config: (x.shape[0] // config["T"],),
        pick,
        lambda config: (x, y, config["T"]),
        lambda config: {"occupancy": hints.occupancy},
        quiet=True,
    )
"""


def test_a_closure_variable_of_a_kernel_factory_is_in_the_key(suite: AdapterSuite) -> None:
    (suite.folder / "test_kernels_of_factory.py").write_text(KERNELS)
    report = suite.report("test_kernels_of_factory.py", "--autotune-dump=kernels.textproto")

    assert counts_of(report) == {"tuned": 2}
    assert {lookup["key"]["kernel.is_exact"] for lookup in report["lookups"]} == {True, False}


@pytest.mark.parametrize(
    "edit",
    [("occupancy=2", "occupancy=4"), ("    occupancy: int\n    stages: int", "    stages: int\n    occupancy: int")],
    ids=["option of the second kernel", "class of a closure variable"],
)
def test_what_the_callbacks_of_a_search_use_is_in_the_fingerprint(suite: AdapterSuite, edit: tuple[str, str]) -> None:
    (suite.folder / "test_kernels_of_factory.py").write_text(KERNELS)
    suite.report("test_kernels_of_factory.py", "--autotune-dump=kernels.textproto")
    loaded = suite.report("test_kernels_of_factory.py", "--autotune-load=kernels.textproto")
    suite.edit("test_kernels_of_factory.py", *edit)
    edited = suite.report("test_kernels_of_factory.py", "--autotune-load=kernels.textproto")

    assert (counts_of(loaded), counts_of(edited)["stale"]) == ({"hit": 2}, 2)


def test_the_order_of_configurations_does_not_matter(suite: AdapterSuite) -> None:
    """Each configuration has a class of its own."""
    text = CONFIG_CLASSES.replace("CONFIGS", "[Split(256), Pair(1024)]")
    (suite.folder / "test_config.py").write_text(text)
    suite.report("test_config.py", "--autotune-dump=config.textproto")
    suite.edit("test_config.py", "[Split(256), Pair(1024)]", "[Pair(1024), Split(256)]")
    loaded = suite.report("test_config.py", "--autotune-load=config.textproto")

    assert counts_of(loaded) == {"hit": 1}
