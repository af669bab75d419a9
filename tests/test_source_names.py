"""A digest follows the names outside of a function, and the first value of a name that the function assigns."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.function.identity import list_sources, source_text
from pytest_autotune.tuners.source import module_text
from pytest_autotune.tuners.source.attributes import is_descriptor
from pytest_autotune.tuners.source.source_digest import (
    digest,
    immutable_text,
    read_source,
    source_digest,
    source_parts,
)
from tests.test_source_digest import load

__all__ = ["load"]
Load = Callable[..., ModuleType]


def list_digests_of_run(module: ModuleType) -> list[str | None]:
    return [source_text(source) for source in list_sources(None, module.run)]


VARIABLES = """
d = e = i = k = 7
size = 8
def use(*values):
    return values
def kernel(x):
    call = lambda q, d=1: use(q, d)
    class Inner:
        e = 3
        area = e
        size = size
    def count(i):
        k = 0
        def step():
            nonlocal k
            k += 1
        return use(i, k, step)
    return call, Inner, count
"""


def test_changing_a_global_hidden_by_a_local_is_no_source_change(load: Load) -> None:
    digest = source_digest(load(VARIABLES).kernel)
    assert source_digest(load(VARIABLES.replace("= 7", "= 70")).kernel) == digest
    assert source_digest(load(VARIABLES.replace("size = 8", "size = 80")).kernel) != digest


def test_a_nonlocal_hides_no_global_from_the_source_digest(load: Load) -> None:
    source = """
k = 7
def read():
    return k
def kernel(x):
    k = 0
    def step():
        nonlocal k
        k += 1
    return read() + step()
"""
    assert source_digest(load(source).kernel) != source_digest(load(source.replace("k = 7", "k = 70")).kernel)


def test_incrementing_a_nonlocal_counter_is_no_source_change(load: Load) -> None:
    source = """
def make(size):
    count = 0
    def step():
        nonlocal count
        count += 1
    def kernel(x):
        step()
        return count + size
    return kernel
"""
    kernel = load(source).make(3)
    digest = source_digest(kernel, own_cells=True)
    kernel(1)
    assert source_digest(kernel, own_cells=True) == digest
    assert source_digest(load(source).make(30), own_cells=True) != digest


#: The statement by which a module assigns a name, and how the kernel uses the name.
FIRST_STATEMENTS = [
    ("from shared import impl as name", "name(x)"),
    ("import shared as name", "name.impl(x)"),
    ("import shared\nname = shared.impl(0)", "name"),
    ("from shared import impl\nname = impl(0)", "name"),
    ("from shared import impl\ndef name(x):\n    return impl(x)", "name(x)"),
    ("from shared import impl\nclass name:\n    run = impl", "name.run(x)"),
    ("from shared import SIZE\nname = SIZE * 2", "name"),
    ("import shared\nfor name in (shared.impl(0),):\n    pass", "name"),
    ("import shared\nif (name := shared.impl(0)):\n    pass", "name"),
    ("try:\n    import missing_module\nexcept ImportError:\n    from shared import impl as name", "name(x)"),
]


@pytest.mark.parametrize(("statement", "used"), FIRST_STATEMENTS)
def test_a_global_set_by_a_kernel_changes_source_only_if_edited(load: Load, statement: str, used: str) -> None:
    shared = "SIZE = 3\ndef impl(x):\n    return x + 3\n"
    source = f"{statement}\ndef kernel(x):\n    global name\n    result = {used}\n    name = 5\n    return result\n"

    def digest_after(text: str, calls: int) -> str:
        load(text, "shared")
        kernel = load(source).kernel
        for _ in range(calls):
            kernel(1)
        return source_digest(kernel)

    digest = digest_after(shared, calls=0)
    assert digest_after(shared, calls=1) == digest
    assert digest_after(shared.replace("3", "30"), calls=0) != digest


@pytest.mark.parametrize("limit", ["limit", "__limit"])
@pytest.mark.parametrize("used", ["tool.run(x)", "len(tool)", "Tool"])
def test_a_field_set_by_its_method_changes_source_only_if_edited(load: Load, used: str, limit: str) -> None:
    source = f"""
def compute():
    return 3
class Tool:
    first = 0
    {limit} = compute() + first
    def run(self, x):
        type(self).{limit} += 1
        type(self).first += 1
        return self.{limit}
tool = Tool()
def kernel(x):
    return {used}
"""
    module = load(source)
    digest = source_digest(module.kernel)
    module.tool.run(1)
    assert source_digest(module.kernel) == digest
    assert source_digest(load(source.replace("return 3", "return 30")).kernel) != digest


def test_editing_a_function_in_dunder_wrapped_is_a_source_change(load: Load) -> None:
    source = """
def inner(x):
    return x + 1
def outer(x):
    return x
outer.__wrapped__ = inner
def kernel(x):
    return outer.__wrapped__(x)
"""
    assert source_digest(load(source).kernel) != source_digest(load(source.replace("x + 1", "x + 2")).kernel)


def test_replacing_a_builtin_in_a_closure_is_a_source_change(load: Load) -> None:
    source = """
import math
def make(NAME):
    def kernel(x):
        return NAME(x)
    return kernel
"""
    module = load(source.replace("NAME", "floor"))
    digest = source_digest(module.make(math.floor), own_cells=True)
    assert source_digest(module.make(math.ceil), own_cells=True) != digest


def test_editing_a_method_inside_a_partial_is_a_source_change(load: Load) -> None:
    source = """
import functools
class Tool:
    def run(self, x):
        return x + 1
def call(tool, x):
    return tool.run(x)
added = functools.partial(call, Tool())
def kernel(x):
    return added(x)
"""
    assert source_digest(load(source).kernel) != source_digest(load(source.replace("x + 1", "x + 2")).kernel)


CLASS_BODY = """
import logging, re
from pathlib import Path
N = 2
def build(n):
    return [n + 1]
def step(n):
    return n + 3
class Tile:
    log = logging.getLogger(__name__)
    folder = Path(__file__).parent
    table = build(N)
    steps = {"a": step}
    pattern = re.compile("4")
    pair = (build(N), 5)
    _scale_ = 6
    def launch(self, n):
        return self.NAME
tile = Tile()
def kernel(n):
    return USE
"""


@pytest.mark.parametrize("use", ["tile.launch(n)", "tile.NAME", "len(tile)", "Tile"])
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("table", "n + 1", "n + 10"),
        ("table", "table = build(N)", "table = build(N + 1)"),
        ("steps", "n + 3", "n + 30"),
        ("pattern", '"4"', '"40"'),
        ("pair", "n + 1", "n + 10"),
        ("_scale_", "_ = 6", "_ = 60"),
    ],
)
def test_editing_code_only_a_class_body_uses_is_a_source_change(
    load: Load, use: str, name: str, old: str, new: str
) -> None:
    source = CLASS_BODY.replace("USE", use).replace("NAME", name)
    kept = read_source(load(source).kernel, is_kept=True)
    assert read_source(load(source, "elsewhere").kernel).digest == kept.digest
    assert kept.used_values is not None
    assert kept.used_values.still_hold()
    assert read_source(load(source.replace(old, new)).kernel).digest != kept.digest


def test_appending_to_a_class_attribute_is_no_source_change(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(CLASS_BODY.replace("USE", "tile.launch(n)").replace("NAME", "table"))
    source = read_source(module.kernel, is_kept=True)
    module.Tile.table.append(7)
    assert read_source(module.kernel).digest == source.digest
    assert source.used_values is not None
    assert source.used_values.still_hold()
    monkeypatch.setattr(module, "build", len)
    assert not source.used_values.still_hold()


LAZY = """
ops = None
def setup():
    global ops
    IMPORT
def kernel(n):
    setup()
    return ops.launch(n)
"""


@pytest.mark.parametrize("statement", ["import shared as ops", "import shared\n    ops = shared", "ops = other"])
def test_a_module_imported_in_the_first_call_is_no_source_change(load: Load, statement: str) -> None:
    source = LAZY.replace("IMPORT", statement)
    if "other" in statement:
        source = f"import shared as other\n{source}"

    def digest_after(number: int, calls: int) -> str:
        load(f"def launch(n):\n    return n + {number}\n", "shared")
        kernel = load(source).kernel
        for _ in range(calls):
            kernel(1)
        return source_digest(kernel)

    digest = digest_after(1, calls=0)
    assert digest_after(1, calls=1) == digest
    assert digest_after(2, calls=0) != digest


def test_editing_a_module_with_a_rebound_name_is_a_source_change(load: Load) -> None:
    source = """
import shared as ops
def setup():
    global ops
    if ops.slow:
        ops = None
def kernel(n):
    setup()
    return ops.launch(n)
"""
    digests = set()
    for number in (1, 2):
        load(f"slow = False\ndef launch(n):\n    return n + {number}\n", "shared")
        digests.add(source_digest(load(source).kernel))
    assert len(digests) == 2


@pytest.mark.parametrize("condition", ["ops is not None", "ops", "hasattr(ops, 'launch')"])
def test_asking_whether_a_module_is_there_adds_only_named_code(load: Load, condition: str) -> None:
    source = f"import shared as ops\ndef kernel(n):\n    if {condition}:\n        return ops.launch(n)\n"
    module = "def launch(n):\n    return n + 1\ndef unrelated(n):\n    return n + 2\n"
    digests = []
    for text in (module, module.replace("n + 2", "n + 20"), module.replace("n + 1", "n + 10")):
        load(text, "shared")
        kept = read_source(load(source).kernel, is_kept=True)
        assert kept.used_values is not None
        assert kept.used_values.still_hold()
        digests.append(kept.digest)
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_statements_of_a_class_are_searched_once_for_all_its_lists(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "".join(f"    table_{number} = [{number}]\n" for number in range(20))
    module = load(f"class Tile:\n{body}\ntile = Tile()\ndef kernel(n):\n    return len(tile)\n")
    searched = []
    monkeypatch.setattr(module_text, "_list_assigned_names", lambda node: searched.append(node) or {node.targets[0].id})
    for _ in range(2):
        source_digest(module.kernel)
    assert len(searched) == 20


@pytest.mark.parametrize("use", ["tile.launch(n)", "len(tile)"])
def test_plain_values_that_a_class_body_names_are_not_followed(load: Load, use: str) -> None:
    source = f"""
import os
from pathlib import Path
ROOT = os.path.dirname(os.path.abspath(__file__))
N = 4
class Conf:
    def unrelated(self):
        return 5
class Tile:
    folder = Path(ROOT) / "folder"
    options = dict(workers=N)
    table: dict[str, Conf] = {{}}
    def launch(self, n):
        return self.folder, self.options, self.table
tile = Tile()
def kernel(n):
    return {use}
"""
    digest = source_digest(load(source).kernel)
    assert source_digest(load(source, "elsewhere").kernel) == digest
    assert source_digest(load(source.replace("N = 4", "N = 40")).kernel) == digest
    assert source_digest(load(source.replace("return 5", "return 50")).kernel) == digest
    assert source_digest(load(source.replace("workers=N", "workers=N + 1")).kernel) != digest


NAMED_CODE = """
import functools
class Plan:
    def __init__(self, scale):
        self.scale = scale
    def launch(self, n):
        return n + 1
def cached(function):
    results = {}
    @functools.wraps(function)
    def inner(n):
        return results.setdefault(n, function(n))
    return inner
@cached
def build(n):
    return [n + 2]
def step(n, scale):
    return n + 3
plan, scaled = Plan(6), functools.partial(step, scale=7)
class Tile:
    plans = [plan]
    table = build(5)
    steps = [scaled]
    def launch(self, n):
        return self.plans, self.table, self.steps
tile = Tile()
def kernel(n):
    return USE
"""


@pytest.mark.parametrize("use", ["tile.launch(n)", "len(tile)"])
def test_objects_and_wrapped_functions_in_a_class_body_are_followed(load: Load, use: str) -> None:
    source = NAMED_CODE.replace("USE", use)
    digest = source_digest(load(source).kernel)
    for old, new in (("n + 1", "n + 10"), ("n + 2", "n + 20"), ("n + 3", "n + 30")):
        assert source_digest(load(source.replace(old, new)).kernel) != digest
    for old, new in (("Plan(6)", "Plan(60)"), ("scale=7", "scale=70")):
        assert source_digest(load(source.replace(old, new)).kernel) == digest


PATHS = """
import dataclasses, os
HERE = os.path.dirname(__file__)
ROOT = os.path.dirname(HERE)
FILE = os.path.join(HERE, "add.cu")
@dataclasses.dataclass(frozen=True)
class Options:
    source: str = FILE
class Kernel:
    source = FILE
    def launch(self):
        return self.source
kernel, options = Kernel(), Options()
"""


@pytest.mark.parametrize(
    ("used", "old", "new"),
    [
        ("__file__", "return __file__", "return __file__ + '/..'"),
        ("HERE", "dirname(__file__)", "abspath(__file__)"),
        ("ROOT", "dirname(HERE)", "dirname(os.path.dirname(HERE))"),
        ("options", "add.cu", "sub.cu"),
        ("Kernel", "add.cu", "sub.cu"),
        ("kernel.launch()", "add.cu", "sub.cu"),
    ],
)
def test_a_path_beside_a_module_is_equal_in_each_checkout(load: Load, used: str, old: str, new: str) -> None:
    """The path of the module's folder, of a folder above it, and of a file in it count relative to this folder."""
    source = f"{PATHS}def work(n):\n    return {used}\n"
    digest_here = source_digest(load(source, "paths").work)
    assert source_digest(load(source, "paths").work) == digest_here
    assert source_digest(load(source.replace(old, new), "paths").work) != digest_here


def test_a_path_in_a_closure_is_equal_in_each_checkout(load: Load) -> None:
    """The module that made the function may be far from the module that gave it the path."""
    load("def make_loader(folder):\n    return lambda name: folder + name\n", "loaders")
    source = """
import os
from loaders import make_loader
read = make_loader(os.path.dirname(__file__))
def run(name):
    return read(name)
"""
    assert list_digests_of_run(load(source)) == list_digests_of_run(load(source))
    assert list_digests_of_run(load(source.replace("__file__", "'/opt/data/a'"))) != list_digests_of_run(load(source))


@pytest.mark.parametrize("helper", ["make_loader(HERE)", "cached(HERE)(print)", "with_default"])
def test_a_path_of_a_third_module_is_equal_in_each_checkout(load: Load, helper: str) -> None:
    """The test imports ``read`` from ``kernels``, which made it with a function of ``factories``.

    No name tells that the path is of ``kernels``, so its last part counts.
    """
    factories = "def make_loader(folder):\n    return lambda name: folder + name\n"
    factories += "def cached(folder):\n    return lambda function: lambda name: function(folder, name)\n"
    load(factories, "factories")
    names = "import os\nfrom factories import cached, make_loader\nHERE = os.path.dirname(__file__) + '/data'\n"
    module_text = f"{names}def with_default(name, folder=HERE):\n    return folder + name\nread = {helper}\n"
    digests = []
    for text in (module_text, module_text, module_text.replace("/data", "/other")):
        load(text, "kernels")
        digests.append(list_digests_of_run(load("from kernels import read\ndef run(name):\n    return read(name)\n")))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(("old", "new"), [("/", "//"), ("/opt/v1/data", "/opt/v2/data")])
def test_operators_and_literal_paths_in_closures_count(load: Load, old: str, new: str) -> None:
    source = """
def make(text):
    return lambda n: text * n
scale = make(TEXT)
def run(n):
    return scale(n)
"""
    digests = [list_digests_of_run(load(source.replace("TEXT", repr(text)))) for text in (old, new)]
    assert digests[0] != digests[1]


def test_a_path_beside_a_package_is_equal_in_each_checkout(load: Load, tmp_path: Path) -> None:
    """The project is the folder with the ``pyproject.toml``."""
    source = "import os\nCSRC = os.path.join(os.path.dirname(os.path.dirname(__file__)), 'csrc')\n"
    module = load(f"{source}def work(n):\n    return CSRC\n")
    digests = []
    for checkout in ("a", "b/below"):
        project = tmp_path / checkout
        project.mkdir(parents=True)
        (project / "pyproject.toml").touch()
        module.__file__, module.CSRC = str(project / "tests/work.py"), str(project / "csrc")  # type: ignore[attr-defined]
        digests.append(source_digest(module.work))
    assert digests[0] == digests[1]


def test_a_path_in_the_source_of_a_helper_stays_absolute(load: Load, tmp_path: Path) -> None:
    """The path is near the module that uses the helper."""
    folder = str(tmp_path)
    load(f"ROOT = {folder!r}\ndef helper(n):\n    return ROOT\n", "helpers")
    module = load("from helpers import helper\ndef run(n):\n    return helper(n)\n")
    (tmp_path / "setup.py").touch()
    assert source_parts(module.run)["ROOT"] == digest(str(immutable_text(folder)))


def test_a_path_of_the_machine_stays_absolute_in_a_digest(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in the source itself, the top of the disk and the home folder are no place of the checkout."""
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    names = f"import os\nTOP, HOME, LITERAL = os.sep, os.path.expanduser('~'), {str(tmp_path)!r}\n"
    module = load(f"{names}def work(n):\n    return TOP, HOME, LITERAL\n")
    parts = source_parts(module.work)
    for name in ("TOP", "HOME", "LITERAL"):
        assert parts[name] == digest(str(immutable_text(getattr(module, name)))), name


@pytest.mark.parametrize("folder_of_suite", ["repo", "home/user/repo"])
def test_an_imported_path_of_the_machine_stays_absolute(load: Load, tmp_path: Path, folder_of_suite: str) -> None:
    """A folder above the checkout is a folder of the machine if nothing in it belongs to the project."""
    load(f"DATA = {str(tmp_path)!r}\n", "settings_of_machine")
    module = load("from settings_of_machine import DATA\ndef work(n):\n    return DATA\n")
    module.__file__ = str(tmp_path / folder_of_suite / "work.py")
    assert source_parts(module.work)["DATA"] == digest(str(immutable_text(str(tmp_path))))


def test_a_home_folder_under_version_control_is_no_project(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in the home folder stays absolute, so it is equal in checkouts at different depths."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".git").mkdir()
    load(f"DATA = {str(tmp_path / '.cache')!r}\n", "settings_of_machine")
    module = load("from settings_of_machine import DATA\ndef work(n):\n    return DATA\n")
    module.__file__ = str(tmp_path / "projects/repo/work.py")
    assert source_parts(module.work)["DATA"] == digest(str(immutable_text(module.DATA)))
    # In a container, the home folder may be the checkout.
    monkeypatch.setattr("pytest_autotune.tuners.source.values.current_rootdir", lambda: tmp_path)
    assert source_parts(module.work)["DATA"] == digest(str(("", "path", "../../.cache")))


@pytest.mark.parametrize("folder_of_suite", ["home", "link", "home/projects/repo", "link/projects/repo"])
@pytest.mark.parametrize("home", ["home", "link"])
def test_a_linked_home_folder_is_no_project(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, folder_of_suite: str
) -> None:
    """HOME, the path of the suite or both have a symbolic link. Nor is the folder above it a project."""
    (tmp_path / "home/.git").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / "link").symlink_to("home")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    module = load("def work(n):\n    return DATA\n")
    module.__file__ = str(tmp_path / folder_of_suite / "tests/work.py")
    for folder in ("", "home", "link"):
        module.DATA = str(tmp_path / folder / ".cache")  # type: ignore[attr-defined]
        assert source_parts(module.work)["DATA"] == digest(str(immutable_text(module.DATA))), folder


@pytest.mark.parametrize("rootdir", ["home", "link"])
@pytest.mark.parametrize("folder_of_suite", ["home", "link"])
@pytest.mark.parametrize("home", ["home", "link"])
def test_a_linked_home_folder_that_is_the_rootdir_is_a_project(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, folder_of_suite: str, rootdir: str
) -> None:
    """HOME, the path of the suite and the rootdir name the same folder, each with or without the symbolic link."""
    (tmp_path / "home/.git").mkdir(parents=True)
    (tmp_path / "link").symlink_to("home")
    monkeypatch.setenv("HOME", str(tmp_path / home))
    monkeypatch.setattr("pytest_autotune.tuners.source.values.current_rootdir", lambda: tmp_path / rootdir)
    module = load("def work(n):\n    return DATA\n")
    module.__file__ = str(tmp_path / folder_of_suite / "tests/work.py")
    module.DATA = str(tmp_path / folder_of_suite / "csrc")  # type: ignore[attr-defined]
    assert source_parts(module.work)["DATA"] == digest(str(("", "path", "../csrc")))


def test_a_text_path_in_a_test_stays_absolute_in_a_helper(load: Load, tmp_path: Path) -> None:
    """In the first checkout the helper is near the path, so only the text in the test keeps it absolute."""
    helpers = load("def make(folder):\n    return lambda n: (folder, n)\n", "helpers")
    path = str(tmp_path / "data")
    digests = []
    for checkout in (tmp_path, tmp_path / "other"):
        helpers.__file__ = str(checkout / "helpers.py")
        source = f"from helpers import make\nread = make({path!r})\ndef run(n):\n    return read(n)\n"
        digests.append(list_digests_of_run(load(source)))
    assert digests[0] == digests[1]


BOUND_METHOD = """
class Base:
    def go(self, x):
        return x + 1
base = Base()
class Tile:
    step = base.go
    def launch(self, x):
        return self.step(x)
tile = Tile()
def kernel(x):
    return USE
"""


@pytest.mark.parametrize("use", ["tile.launch(x)", "len(tile)"])
def test_a_bound_method_of_a_class_has_one_digest_in_all_pythons(load: Load, use: str) -> None:
    """The class of bound methods has ``__get__`` in Python 3.10 and 3.13, and not in 3.11 and 3.12."""
    source = BOUND_METHOD.replace("USE", use)
    module = load(source)
    assert not is_descriptor(module.base.go)
    assert source_digest(load(source.replace("x + 1", "x + 2")).kernel) != source_digest(module.kernel)


def test_max_pool1d_and_max_pool2d_of_torch_have_two_digests(load: Load) -> None:
    """Their ``__qualname__`` is that of the function inside the factory."""
    pytest.importorskip("torch")
    source = "from torch.nn.functional import max_pool1d as pool\ndef kernel(x):\n    return pool(x)\n"
    other = source.replace("max_pool1d", "max_pool2d")
    assert source_digest(load(source).kernel) != source_digest(load(other).kernel)
    # The name in the source is the function's own name, so the digest needs no other.
    parts = source_parts(load("import torch.nn.functional as F\ndef kernel(x):\n    return F.max_pool1d(x)\n").kernel)
    assert list(parts) == ["kernel"]


#: The module makes all of these functions when it is imported.
MADE_BY_IMPORT = """
import functools
LIMIT = 2
def make_scale(factor):
    def scaled(x):
        return x * factor
    return scaled
def scaled_by(factor):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) * factor
        return wrapper
    return decorate
scale = make_scale(2)
scale_twice = make_scale(scale)
pair = (make_scale(2), [])
filled = functools.partial(make_scale(2), 3)
@scaled_by(2)
def decorated(x):
    return x
def with_default(x, limit=LIMIT):
    return x + limit
def limited(x):
    return with_default(x)
class Steps:
    made = make_scale(2)
    @scaled_by(2)
    def decorated(self, x):
        return x
    def with_default(self, x, limit=LIMIT):
        return x + limit
steps = Steps()
"""


@pytest.mark.parametrize(
    "run",
    [
        "def run(x): return scale(x)",
        "def run(x): return scale_twice(x)",
        "def run(x): return pair[0](x)",
        "def run(x): return filled(x)",
        "def run(x): return decorated(x)",
        "def run(x): return limited(x)",
        "def run(x): return steps.decorated(x)",
        "def run(x): return steps.made(x)",
        "def run(x): return steps.with_default(x)",
        "def run(x): return Steps.made(x)",
        "run = lambda x: steps.decorated(x) + limited(x)",
        "run = lambda x: decorated(x)",
        "run = decorated",
        "run = with_default",
        "run = steps.decorated",
        "run = steps.with_default",
        "run = functools.partial(decorated, 3)",
    ],
)
def test_values_that_functions_of_a_module_carry_count(load: Load, run: str) -> None:
    """The values in its closure, of its decorators and of its defaults count as the values of globals do."""
    source = MADE_BY_IMPORT + run
    before = list_digests_of_run(load(source))
    assert list_digests_of_run(load(source)) == before
    if "default" in run or run.endswith("limited(x)"):
        edited = source.replace("LIMIT = 2", "LIMIT = 3")
    else:
        edited = source.replace("make_scale(2)", "make_scale(3)").replace("scaled_by(2)", "scaled_by(3)")
    assert list_digests_of_run(load(edited)) != before


@pytest.mark.parametrize(
    "run",
    [
        "scaled",
        "helper",
        "lambda x: limited(scaled(x))",
        "Steps().made",
        "Steps().decorated",
        "functools.partial(scaled, 2)",
    ],
)
def test_values_that_functions_of_a_test_carry_are_left_out(load: Load, run: str) -> None:
    """A test may carry its tensors, the path of its folder, or a parameter that stands in the key."""
    source = f"""
def test(size):
    scaled = make_scale(size)
    def helper(x, limit=size):
        return scaled(x) + size
    class Steps:
        made = make_scale(size)
        @scaled_by(size)
        def decorated(self, x):
            return x * size
    return {run}
"""
    module = load(MADE_BY_IMPORT + source)
    assert len({tuple(map(source_text, list_sources(None, module.test(size)))) for size in (2, 3)}) == 1


@pytest.mark.parametrize(
    "helper",
    [
        "def helper(x, block=LIMIT):\n    return x + block",
        "def helper(x):\n    return helper(x - 1) if x else scale(x)",
        "@scaled_by(2)\ndef helper(x, block=LIMIT):\n    return decorated(x) + steps.decorated(x)",
    ],
)
def test_a_helper_has_one_digest_however_a_test_reaches_it(load: Load, helper: str) -> None:
    """A parametrized test has the helper in its closure, and another test has it as a global."""
    source = f"""
{helper}
run = lambda x: helper(x)
def by_closure(helper):
    return lambda x: helper(x)
"""
    module = load(MADE_BY_IMPORT + source)
    digests = list_digests_of_run(module)
    assert digests == [source_text(module.helper)]
    assert [source_text(called) for called in list_sources(None, module.by_closure(module.helper))] == digests


@pytest.mark.parametrize("watched", ["decorated", "limited", "steps.decorated"])
def test_values_that_a_wrapper_of_a_test_carries_are_left_out(load: Load, watched: str) -> None:
    source = f"""
def watch(log):
    @functools.wraps({watched})
    def wrapper(*args):
        print(log)
        return {watched}(*args)
    return wrapper
"""
    module = load(MADE_BY_IMPORT + source)
    assert source_text(module.watch("a")) == source_text(module.watch("b"))


def test_values_of_a_function_that_an_object_stores_are_left_out(load: Load) -> None:
    """A test may store its own function in an object of a module."""
    source = """
class Harness:
    def launch(self, x):
        return self.function(x)
harness = Harness()
def run(x):
    return harness.launch(x)
"""
    module = load(MADE_BY_IMPORT + source)
    digests = set()
    for factor in (2, 3):
        module.harness.function = module.make_scale(factor)
        digests.update(list_digests_of_run(module))
    assert len(digests) == 1


def test_changing_values_in_the_closure_of_a_helper_are_left_out(load: Load) -> None:
    module = load("""
import functools
def counted(function):
    calls, seen, size = 0, [], 2
    @functools.wraps(function)
    def wrapper(x):
        nonlocal calls
        calls += 1
        seen.append(x)
        return function(x) * size
    return wrapper
@counted
def helper(x):
    return x
def run(x, memo={}):
    return helper(x)
""")
    before = list_digests_of_run(module)
    module.run(1)
    assert list_digests_of_run(module) == before


COMPILED = """
import numpy, torch
class Sampler(numpy.random.RandomState):
    pass
class nb_func:
    \"\"\"Stands for nanobind's type of functions.\"\"\"
    def __init__(self, name):
        self.__qualname__ = name
        self.__module__ = "extension"
    __call__ = print  # not written in Python
nb_func.__module__ = "nanobind"
operation = FUNCTION
def call(config):
    return operation(config)
run = {run}
"""


@pytest.mark.parametrize("run", ["call", "operation"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("numpy.random.normal", "numpy.random.uniform"),
        ("Sampler().normal", "Sampler().uniform"),
        ("torch._C.Graph.inputs", "torch._C.Graph.outputs"),
        ("torch._C.Graph.inputs", "torch._C.Node.inputs"),
        ("torch._C.Graph().inputs", "torch._C.Graph().outputs"),
        ("nb_func('first')", "nb_func('second')"),
    ],
    ids=[
        "Cython",
        "Cython, object of the suite",
        "pybind11",
        "pybind11, other class",
        "pybind11, object of a library",
        "nanobind",
    ],
)
def test_another_compiled_function_is_a_source_change(load: Load, run: str, old: str, new: str) -> None:
    """Cython, nanobind and pybind11 have types of their own for the functions of an extension module."""
    pytest.importorskip("numpy")
    pytest.importorskip("torch")
    source = COMPILED.replace("{run}", run)
    digests = list_digests_of_run(load(source.replace("FUNCTION", old)))

    assert list_digests_of_run(load(source.replace("FUNCTION", old))) == digests
    assert list_digests_of_run(load(source.replace("FUNCTION", new))) != digests


def test_a_function_of_an_extension_module_counts_with_its_module(load: Load) -> None:
    """The import statement is no part of the text of ``call``."""
    pytest.importorskip("numpy")
    pytest.importorskip("torch")
    source = COMPILED.replace("{run}", "call").replace("FUNCTION", "nb_func('operation')")
    assert list_digests_of_run(load(source)) != list_digests_of_run(load(source.replace('"extension"', '"other"')))


CODE_IN_AN_OBJECT = """
import numpy
class Sampler(numpy.random.RandomState):
    pass
def helper(n):
    return n + 1
sampler = Sampler()
sampler.callback = helper
run = sampler.normal
"""


def test_a_method_of_cython_leads_to_the_code_that_its_object_stores(load: Load) -> None:
    pytest.importorskip("numpy")
    edited = CODE_IN_AN_OBJECT.replace("n + 1", "n + 2")
    assert list_digests_of_run(load(CODE_IN_AN_OBJECT)) != list_digests_of_run(load(edited))


@pytest.mark.parametrize(
    "method",
    ["numpy.random.default_rng(1).normal", "random.Random(1).random", "(1).__add__"],
    ids=["Cython", "C", "C, special"],
)
def test_a_library_method_in_a_closure_is_uncacheable(load: Load, method: str) -> None:
    """The name of the method does not tell the object."""
    pytest.importorskip("numpy")
    source = f"""
import numpy, random
def make(draw):
    def kernel(n):
        return draw(n)
    return kernel
kernel = make({method})
"""
    with pytest.raises(UncacheableError, match=r"draw of .*kernel"):
        source_digest(load(source).kernel, own_cells=True)


METHODS_OF_LIBRARIES = """
import dataclasses, functools, io, math, pathlib, random
import numpy
def scale(n):
    return n * 2
operation = {method}
pair = (operation, 1)
def call(config):
    return operation(config)
def call_default(config, default=operation):
    return default(config)
def call_item(config):
    return pair[0](config)
call_partial = functools.partial(scale, operation)
call_library = functools.partial(operation, scale)
call_lambda = lambda config: scale(operation(config))
def make(function):
    def inner(config):
        return function(config)
    return inner
call_closure = make(operation)
class Steps:
    def __init__(self, step):
        self.step = step
    def call(self, config):
        return self.step(config)
    def __call__(self, config):
        return self.step(config)
steps = Steps(operation)
call_attribute = steps.call
@dataclasses.dataclass
class Plan:
    step: object = {method}
    static_step = staticmethod(operation)
    def call(self, config):
        return self.step(config)
    def call_static(self, config):
        return self.static_step(config)
call_field = Plan().call
call_static = Plan().call_static
run = {run}
"""


@pytest.mark.parametrize(
    "run",
    [
        "call",
        "call_default",
        "call_item",
        "call_partial",
        "call_library",
        "call_lambda",
        "call_closure",
        "call_attribute",
        "call_field",
        "call_static",
        "operation",
        "steps",
    ],
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("random.random", "random.getrandbits"),
        ("random.randint", "random.uniform"),
        ("numpy.ones(2).sum", "numpy.ones(2).prod"),
        ("pathlib.Path.cwd", "pathlib.Path.home"),
        ("(1).__add__", "(1).__mul__"),
        ("math.floor.__call__", "math.ceil.__call__"),
        ("str.upper", "str.lower"),
    ],
    ids=["C", "Python", "numpy", "class method", "special method", "method of a function", "without an object"],
)
def test_another_method_of_a_library_is_a_source_change(load: Load, run: str, old: str, new: str) -> None:
    pytest.importorskip("numpy")
    digests = list_digests_of_run(load(METHODS_OF_LIBRARIES.format(method=old, run=run)))

    assert list_digests_of_run(load(METHODS_OF_LIBRARIES.format(method=old, run=run))) == digests
    assert list_digests_of_run(load(METHODS_OF_LIBRARIES.format(method=new, run=run))) != digests


def test_a_library_method_under_its_own_name_adds_nothing(load: Load) -> None:
    source = "import random\nrandom_bits = random.random\nrandom = random.random\ndef kernel(n):\n    return {name}()\n"
    assert list(source_parts(load(source.format(name="random")).kernel)) == ["kernel"]
    assert list(source_parts(load(source.format(name="random_bits")).kernel)) == ["random_bits", "kernel"]


def test_a_method_in_an_attribute_of_its_own_name_adds_nothing(load: Load) -> None:
    """The object of the method is not in the digest, either."""
    renamed = METHODS_OF_LIBRARIES.replace("self.step", "self.random")
    source = renamed.format(method="random.random", run="call_attribute")
    other = source.replace("random.random\npair", "random.Random(3).random\npair")
    without_method = source.replace("Steps(operation)", "Steps(1)")
    digests = list_digests_of_run(load(source))

    assert list_digests_of_run(load(other)) == digests
    assert list_digests_of_run(load(without_method)) == digests


def test_the_class_of_a_bound_object_is_in_no_digest(load: Load) -> None:
    """With pytest's option ``-s``, the class of ``sys.stdout`` is another one."""
    source = METHODS_OF_LIBRARIES.format(method="io.StringIO().write", run="call")
    other = source.replace("io.StringIO().write", "io.BytesIO().write")
    assert list_digests_of_run(load(source)) == list_digests_of_run(load(other))


@pytest.mark.parametrize(
    "method",
    [
        "(scale, 1).__getitem__",
        "scale.__call__",
        "types.MethodType(scale, 1)",
        "types.MethodType(print, scale)",
    ],
)
def test_code_of_the_user_inside_a_bound_method_counts(load: Load, method: str) -> None:
    """The code is the function that is bound, or is in the object: ``(scale, 1).__getitem__``."""
    source = "import types\n" + METHODS_OF_LIBRARIES.format(method=method, run="call")
    assert list_digests_of_run(load(source)) != list_digests_of_run(load(source.replace("n * 2", "n * 3")))


def test_a_method_that_a_library_decorator_uses_is_left_out(load: Load) -> None:
    """Another version of torch may have another method in the closure."""
    torch = pytest.importorskip("torch")
    source = "import torch\n@torch.no_grad()\ndef kernel(n):\n    return n\n"
    digest_of_clone = source_digest(load(source).kernel, carried=False)
    kernel = load(source).kernel
    position = kernel.__code__.co_freevars.index("ctx_factory")
    assert kernel.__closure__[position].cell_contents.__name__ == "clone"
    kernel.__closure__[position].cell_contents = torch.no_grad().__enter__

    assert source_digest(kernel, carried=False) == digest_of_clone


SUBCLASSES_OF_LIBRARY_CLASSES = {
    "__get__ of a property": """
class Lazy(property):
    def __get__(self, owner, cls=None):
        return helper(super().__get__(owner, cls))
class Plan:
    @Lazy
    def size(self):
        return 1
    def call(self, config):
        return self.size
run = Plan().call
""",
    "__get__ of a class method": """
class Lazy(classmethod):
    def __get__(self, owner, cls=None):
        return helper(super().__get__(owner, cls))
class Plan:
    @Lazy
    def size(cls):
        return 1
def run(config):
    return Plan.size()
""",
    "inherited method that calls an override": """
class Plan(ast.NodeVisitor):
    def visit_Name(self, node):
        return helper(node)
plan = Plan()
def run(config):
    return plan.visit(config)
""",
    "inherited method called by a method": """
class Plan(ast.NodeVisitor):
    def visit_Name(self, node):
        return helper(node)
    def call(self, config):
        return self.visit(config)
run = Plan().call
""",
    "super() in an override": """
class Plan(ast.NodeVisitor):
    def visit_Name(self, node):
        return helper(node)
    def visit(self, node):
        return super().visit(node)
plan = Plan()
def run(config):
    return plan.visit(config)
""",
    "attribute of an enum's member": """
class Kind(enum.Enum):
    def __new__(cls, value, function):
        member = object.__new__(cls)
        member._value_ = value
        member.function = function
        return member
    RELU = (1, helper)
def run(config):
    return Kind.RELU.function(config)
""",
    "__call__ of a partial": """
class Plan(functools.partial):
    def __call__(self, config):
        return helper(config)
run = Plan(print)
""",
    "__call__ of a partial, global": """
class Plan(functools.partial):
    def __call__(self, config):
        return helper(config)
plan = Plan(print)
def run(config):
    return plan(config)
""",
    "items of a tuple": """
class Plan(tuple):
    def __call__(self, config):
        return [function(config) for function in self]
run = Plan((helper,))
""",
}


@pytest.mark.parametrize("name", SUBCLASSES_OF_LIBRARY_CLASSES)
def test_code_in_a_subclass_of_a_library_class_is_followed(load: Load, name: str) -> None:
    source = "import ast, enum, functools\ndef helper(n):\n    return n + 1\n" + SUBCLASSES_OF_LIBRARY_CLASSES[name]
    digests = list_digests_of_run(load(source))

    assert list_digests_of_run(load(source)) == digests
    assert list_digests_of_run(load(source.replace("n + 1", "n + 2"))) != digests


MEMO = """
import functools
def memo(function):
    seen = {}
    @functools.wraps(function)
    def inner(*args):
        return seen.setdefault(args, function(*args))
    return inner
class Lazy(property):
    def __get__(self, owner, cls=None):
        return self.fget(cls)
class Limits:
    @Lazy
    @memo
    def size(cls):
        return 64
def heuristic(args):
    return Limits.size
"""


def test_a_memo_under_a_subclass_of_property_does_not_make_code_uncacheable(load: Load) -> None:
    digests = [source_digest(load(source).heuristic) for source in (MEMO, MEMO.replace("64", "32"))]
    assert digests[0] != digests[1]


TEST_CASE_WITH_ASSERTION = """
import unittest
class TestOps(unittest.TestCase):
    def launch(self, config):
        self.assertGreater(config, 0)
    def test_other(self):
        return 1
run = TestOps("test_other").launch
"""


NET_WITH_EVAL = """
import torch
class Net(torch.nn.Module):
    def other(self):
        return 1
    def launch(self, config):
        self.eval()
run = Net().launch
"""


@pytest.mark.parametrize("source", [TEST_CASE_WITH_ASSERTION, NET_WITH_EVAL], ids=["unittest", "torch"])
def test_assertions_and_eval_do_not_add_the_whole_class(load: Load, source: str) -> None:
    if source == NET_WITH_EVAL:
        pytest.importorskip("torch")
    edited = source.replace("return 1", "return 2")
    assert list_digests_of_run(load(source)) == list_digests_of_run(load(edited))


def test_an_attribute_set_on_an_enum_member_is_in_no_digest(load: Load) -> None:
    source = SUBCLASSES_OF_LIBRARY_CLASSES["attribute of an enum's member"]
    module = load("import enum\ndef helper(n):\n    return n + 1\n" + source)
    digests = list_digests_of_run(module)
    module.Kind.RELU.function = list_digests_of_run
    assert list_digests_of_run(module) == digests


CLASS_METHODS = """
import torch
class Block:
    def __init__(self):
        self.from_pretrained = torch.nn.{name}.from_pretrained
    def call(self, config):
        return self.from_pretrained(config)
run = Block().call
"""


def test_a_class_method_of_another_class_is_a_source_change(load: Load) -> None:
    """The attribute has the method's own name, which does not tell the class."""
    pytest.importorskip("torch")
    digests = [list_digests_of_run(load(CLASS_METHODS.format(name=name))) for name in ("Embedding", "EmbeddingBag")]
    assert digests[0] != digests[1]


def test_another_scipy_function_is_a_source_change(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ufunc of scipy may have no ``__module__``. Two ufuncs inside numpy stand for functions of ``scipy.special``."""
    functions = pytest.importorskip("numpy.linalg._umath_linalg")
    assert getattr(functions.det, "__module__", None) is None
    special = ModuleType("scipy.special")
    special.__dict__.update(det=functions.det, inv=functions.inv)
    monkeypatch.setitem(sys.modules, "scipy.special", special)
    source = "from scipy.special import det as operation\ndef run(config):\n    return operation(config)\n"

    assert list_digests_of_run(load(source)) != list_digests_of_run(load(source.replace("det", "inv")))
