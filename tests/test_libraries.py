"""A digest of source follows the user's own code, and has the names of what libraries hold."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.source.libraries import rootdir_of_run
from pytest_autotune.tuners.source.source_digest import DigestedSource, read_source

HELPER = "def helper(x):\n    return x + 1\n"
EDITED = HELPER.replace("+ 1", "+ 2")
KERNEL = "from lib_helpers import helper\n\ndef kernel(x):\n    return helper(x)\n"


class Machine:
    """Folders of a machine: what is installed, and where."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.project.mkdir()
        self._monkeypatch = monkeypatch

    def write(self, folder: str, **modules: str) -> Path:
        """Write modules, ``name=text`` with ``__`` for a dot, into a folder, and put that on the path."""
        path = self.folder / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, text in modules.items():
            file = path / f"{name.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self._monkeypatch.syspath_prepend(path)
        return path

    def install(self, folder: str, distribution: str, direct_url: dict[str, Any] | None = None, **modules: str) -> Path:
        """Write modules as pip does."""
        path = self.write(folder, **modules)
        dist_info = path / f"{distribution}.dist-info"
        dist_info.mkdir(exist_ok=True)
        files = [f"{name.replace('__', '/')}.py" for name in modules]
        (dist_info / "RECORD").write_text("".join(f"{file},sha256=abc,12\n" for file in files))
        if direct_url is not None:
            (dist_info / "direct_url.json").write_text(json.dumps(direct_url))
        return path

    def read(self, kernel: str = "lib_kernels", carried: bool = True) -> DigestedSource:
        """Read the source of the function ``kernel`` in a module, as a run of pytest on the project does."""
        with rootdir_of_run(self.project):
            return read_source(importlib.import_module(kernel).kernel, carried=carried)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    before = set(sys.modules)
    yield Machine(tmp_path, monkeypatch)
    for name in set(sys.modules) - before:
        if name.startswith(("lib_", "tilelang")):
            del sys.modules[name]


SITE = "venv/lib/python3.11/site-packages"


@pytest.mark.parametrize("folder", [SITE, "project/.venv/lib/site-packages", "target"])
def test_a_library_is_recorded_only_by_its_name_and_version(machine: Machine, folder: str) -> None:
    machine.install(folder, "Lib_Helpers-1.2", lib_helpers=HELPER)
    machine.write("project", lib_kernels=KERNEL)

    source = machine.read()

    assert source.parts.keys() == {"kernel", "helper"}
    assert [(library.name, library.version) for library in source.libraries] == [("lib-helpers", "1.2")]


def test_another_version_of_a_library_is_no_source_change(machine: Machine, tmp_path: Path) -> None:
    digests = set()
    for number, text in enumerate((HELPER, EDITED)):
        machine.install(f"target{number}", f"lib_helpers-{number}", lib_helpers=text)
        machine.write("project", lib_kernels=KERNEL)
        digests.add(machine.read().digest)
        for name in ("lib_helpers", "lib_kernels"):
            del sys.modules[name]
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("folder", "distribution", "direct_url"),
    [
        ("checkout", "", None),
        ("project/vendored", "", None),
        ("project/vendored", "lib_helpers-1", None),
        (SITE, "lib_helpers-1", {"url": "file:///elsewhere", "dir_info": {"editable": True}}),
        (SITE, "lib_helpers-1", {"url": "file://PROJECT/dist/lib_helpers-1.whl", "archive_info": {}}),
    ],
    ids=["on the path", "in the rootdir", "installed into the rootdir", "editable", "installed from the rootdir"],
)
def test_an_editable_install_or_checkout_is_part_of_the_source(
    machine: Machine, folder: str, distribution: str, direct_url: Any
) -> None:
    if distribution:
        if direct_url is not None:
            direct_url["url"] = direct_url["url"].replace("PROJECT", str(machine.project))
        machine.install(folder, distribution, direct_url, lib_helpers=HELPER)
    else:
        machine.write(folder, lib_helpers=HELPER)
    machine.write("project", lib_kernels=KERNEL)

    source = machine.read()

    assert source.libraries == frozenset()
    part = read_source(sys.modules["lib_helpers"].helper).parts["helper"]
    assert source.parts["helper"] == part


def test_a_helper_in_the_kernels_package_is_part_of_its_source(machine: Machine) -> None:
    machine.install(SITE, "other-1", lib_other="def other(x):\n    return x\n")
    text = KERNEL.replace("\n\n", "\nfrom lib_other import other\n\n", 1).replace("helper(x)", "helper(other(x))")
    machine.install(SITE, "mine-2", lib_kernels=text, lib_helpers=HELPER)

    source = machine.read()

    assert [library.name for library in source.libraries] == ["other"]
    assert source.parts["helper"] == read_source(sys.modules["lib_helpers"].helper).parts["helper"]


@pytest.mark.parametrize("old_kind", [False, True], ids=["without a file", "with a file of each"])
def test_distributions_in_one_namespace_package_are_told_apart(machine: Machine, old_kind: bool) -> None:
    init = {"lib_space____init__": ""} if old_kind else {}
    kernel = KERNEL.replace("lib_helpers", "lib_space.helpers")
    machine.install(SITE, "space_helpers-1", **init, lib_space__helpers=HELPER)
    machine.install(SITE, "space_kernels-1", **init, lib_space__kernels=kernel)

    assert [library.name for library in machine.read("lib_space.kernels").libraries] == ["space-helpers"]


def test_a_symlinked_package_is_treated_like_the_link_target(machine: Machine) -> None:
    """A link to site-packages is one, and a package that is linked into it from a checkout is the user's own."""
    machine.install("real/packages", "lib_helpers-1", lib_helpers=HELPER)
    (machine.folder / "linked").symlink_to(machine.folder / "real")
    machine.write("linked/packages")
    machine.write("checkout", lib_own=HELPER)
    site = machine.install(SITE, "lib_own-1", lib_own=HELPER)
    (site / "lib_own.py").unlink()
    (site / "lib_own.py").symlink_to(machine.folder / "checkout" / "lib_own.py")
    imports = "from lib_helpers import helper as first\nfrom lib_own import helper\n"
    machine.write("project", lib_both=f"{imports}\ndef kernel(x):\n    return helper(first(x))\n")

    source = machine.read("lib_both")

    assert [library.name for library in source.libraries] == ["lib-helpers"]
    assert source.parts.keys() == {"kernel", "first", "helper"}


def test_code_imported_from_a_zip_file_is_not_seen_as_a_library(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(machine.folder / "lib.zip", "w") as archive:
        archive.writestr("lib_helpers.py", HELPER)
    monkeypatch.syspath_prepend(machine.folder / "lib.zip")
    machine.write("project", lib_kernels=KERNEL)

    assert machine.read().libraries == frozenset()


def test_a_kernel_whose_helper_has_no_source_file_is_uncacheable(machine: Machine) -> None:
    module = ModuleType("lib_helpers")
    exec(HELPER, vars(module))
    sys.modules["lib_helpers"] = module
    machine.write("project", lib_kernels=KERNEL)

    with pytest.raises(UncacheableError, match=r"the source of \S+helper cannot be read"):
        machine.read()


DECORATORS = """
import functools

def wrapping(function):
    @functools.wraps(function)
    def inner(x):
        return function(x)
    return inner

def hiding(function):
    def inner(x):
        return function(x)
    return inner

class Kernel:
    def __init__(self, function):
        self._pyfunc = function
"""


@pytest.mark.parametrize("decorator", ["wrapping", "hiding", "Kernel"])
def test_the_source_includes_functions_with_library_decorators(machine: Machine, decorator: str) -> None:
    machine.install(SITE, "lib_decorators-1", lib_decorators=DECORATORS)
    decorated = f"from lib_decorators import {decorator} as decorator\n\n@decorator\n{HELPER}"
    text = f"{decorated}\ndef kernel(x):\n    return helper(x)\n"
    digests = set()
    for number, edited in enumerate((text, text.replace("+ 1", "+ 2"))):
        machine.write("project", **{f"lib_kernels{number}": edited})
        digests.add(machine.read(f"lib_kernels{number}").digest)
    assert len(digests) == 2


@pytest.mark.parametrize("decorator", ["wrapping", "hiding"])
def test_the_source_includes_functions_under_two_library_decorators(machine: Machine, decorator: str) -> None:
    machine.install(SITE, "lib_decorators-1", lib_decorators=DECORATORS)
    text = f"""
import contextlib, lib_decorators
@contextlib.contextmanager
def scope():
    yield
@scope()
@lib_decorators.{decorator}
{HELPER}
def kernel(x):
    return helper(x)
"""
    digests = set()
    for number, edited in enumerate((text, text.replace("+ 1", "+ 2"))):
        machine.write("project", **{f"lib_kernels{number}": edited})
        digests.add(machine.read(f"lib_kernels{number}", carried=False).digest)
    assert len(digests) == 2


@pytest.mark.parametrize("folder", ["project", SITE])
@pytest.mark.parametrize("library", ["triton.cdiv", "lib_decorators.wrapping"])
def test_a_function_with_the_module_of_a_library_is_the_users(machine: Machine, folder: str, library: str) -> None:
    """``functools.wraps(triton.cdiv)`` gives a function of the user the name and module of ``triton.cdiv``."""
    machine.install(SITE, "lib_decorators-1", lib_decorators=DECORATORS)
    module = library.partition(".")[0]
    text = f"import functools, {module}\n\n@functools.wraps({library})\ndef helper(x):\n    return x + 1\n"
    text += "\ndef kernel(x):\n    return helper(x)\n"
    digests = set()
    for number, edited in enumerate((text, text.replace("+ 1", "+ 2"))):
        machine.install(folder, "lib_kernels-1", **{f"lib_kernels{number}": edited})
        digests.add(machine.read(f"lib_kernels{number}").digest)
    assert len(digests) == 2


def test_a_function_that_a_library_made_with_exec_is_the_librarys(machine: Machine) -> None:
    made = "exec('def made(x): return x')\n"
    machine.install(SITE, "lib_helpers-1", lib_helpers=made)
    machine.install(
        "project", "kernels-1", kernels="import lib_helpers\n\ndef kernel(x):\n    return lib_helpers.made(x)\n"
    )
    assert [library.name for library in machine.read("kernels").libraries] == ["lib-helpers"]


NAMED = """
import math, operator
from functools import partial
from math import {imported}
import lib_helpers
from lib_helpers import helper, Thing

chosen = {chosen}
scaled = partial({chosen}, 2)

class Table:
    held = chosen

def make(act):
    def inner(x, function=act):
        return act(x)
    return inner

made = make({chosen})
exp = {chosen}

def kernel(x):
    return {used}
"""
HELPERS = HELPER + "\ndef other(x):\n    return x\n\nclass Thing:\n    pass\n"


PAIRS = [("math.floor", "math.ceil"), ("operator.index", "operator.truth"), ("helper", "lib_helpers.other")]
PAIRS += [("int", "len")]


@pytest.mark.parametrize("used", ["chosen(x)", "scaled(x)", "Table.held(x)", "made(x)"])
@pytest.mark.parametrize(
    "pair",
    [
        ("math.floor", "math.ceil"),
        ("operator.index", "operator.truth"),
        ("helper", "lib_helpers.other"),
        ("int", "len"),
    ],
)
def test_a_name_bound_to_another_function_is_a_source_change(
    machine: Machine, used: str, pair: tuple[str, str]
) -> None:
    machine.install(SITE, "lib_helpers-1", lib_helpers=HELPERS)
    digests = set()
    for number, chosen in enumerate(pair):
        text = NAMED.format(imported="sqrt", chosen=chosen, used=used)
        machine.write("project", **{f"lib_kernels{number}": text})
        digests.add(machine.read(f"lib_kernels{number}").digest)
    assert len(digests) == 2


@pytest.mark.parametrize("used", ["math.floor(x)", "sqrt(x)", "operator.add(x, x)", "len(x)"])
def test_a_standard_library_function_is_not_recorded(machine: Machine, used: str) -> None:
    """The kernel uses the function under its own name."""
    machine.install(SITE, "lib_helpers-1", lib_helpers=HELPERS)
    machine.write("project", lib_kernels=NAMED.format(imported="sqrt", chosen="math.floor", used=used))

    assert machine.read().parts.keys() == {"kernel"}


@pytest.mark.parametrize("used", ["helper(x)", "lib_helpers.helper(x)", "Thing"])
def test_functions_of_installed_libraries_are_recorded_by_name(machine: Machine, used: str) -> None:
    machine.install(SITE, "lib_helpers-1", lib_helpers=HELPERS)
    machine.write("project", lib_kernels=NAMED.format(imported="sqrt", chosen="math.floor", used=used))

    assert machine.read().parts.keys() == {"kernel", used.partition("(")[0]}


VALUES = """
from collections import namedtuple
from typing import NamedTuple

WIDTH = {width}
LOG = []
MIXED = (WIDTH, LOG, (WIDTH, LOG))
ALL_MAY_CHANGE = (LOG, {{}})
Pair = namedtuple("Pair", "a b", defaults=(WIDTH,))

class Tile(NamedTuple):
    a: int = 1
    b: int = WIDTH

class Fixed(NamedTuple):
    a: int = 1

def kernel(x):
    return {used}
"""


@pytest.mark.parametrize("used", ["MIXED", "Pair(1)", "Tile()"])
def test_a_constant_among_mutable_values_is_part_of_the_source(machine: Machine, used: str) -> None:
    """The kernel reads the constant from a tuple or from the defaults of a named tuple."""
    digests = []
    for number, width in enumerate((1, 2, 2)):
        machine.write("project", **{f"lib_kernels{number}": VALUES.format(width=width, used=used)})
        source = machine.read(f"lib_kernels{number}")
        sys.modules[f"lib_kernels{number}"].LOG.append(1)
        assert machine.read(f"lib_kernels{number}") == source
        digests.append(source.digest)
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize(("used", "digest"), [("ALL_MAY_CHANGE", "218ce6c1fae8"), ("Fixed()", "95c695947cf5")])
def test_the_source_hash_with_tuples_is_still_that_of_old_caches(machine: Machine, used: str, digest: str) -> None:
    """Nothing is added where all of a tuple may change, and where the text of a class says the defaults."""
    machine.write("project", lib_kernels=VALUES.format(width=1, used=used))

    assert machine.read().digest == digest


TILELANG = """
class JITFunc:
    def __init__(self, function):
        self.orig_func = function
    def __call__(self, *args):
        return self.orig_func(*args)
class JITImpl:
    def __init__(self, function):
        self.func = JITFunc(function)
    def __call__(self, *args):
        return self.func(*args)
"""
KERNEL_OF_TILELANG = """
import tilelang
@tilelang.JITImpl
def scale(n):
    return 2 * n
def kernel(n):
    return scale(n)
"""


def test_a_kernel_of_tilelang_is_part_of_the_source(machine: Machine) -> None:
    """A stand-in with the attributes of TileLang 0.1.15."""
    machine.install(SITE, "tilelang-0.1.15", tilelang=TILELANG)
    machine.write("project", lib_before=KERNEL_OF_TILELANG, lib_after=KERNEL_OF_TILELANG.replace("2 * n", "3 * n"))

    before, after = machine.read("lib_before", carried=False), machine.read("lib_after", carried=False)
    assert before.parts["scale"] != after.parts["scale"]
