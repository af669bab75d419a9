"""The digest of a kernel's source changes when the kernel does, and only then."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.kernel_source import closure_cells, source_digest
from pytest_autotune.tuners.source_tokens import code_text
from tests.conftest import REPOSITORY

KERNEL = '''
SCALE = 3
UNUSED = 1

def helper(x):
    return x + SCALE

def kernel(x, n, BLOCK):
    """Multiplies."""
    y = helper(x)  # the helper adds
    for i in range(n):
        y = y * 2

    return y
'''

_names = itertools.count()


def constant(value: object) -> str | None:
    return repr(value) if isinstance(value, (int, float, str)) else None


@pytest.fixture
def load(tmp_path: Path):
    """The module of some source text, in a file of its own."""

    def load(source: str) -> ModuleType:
        path = tmp_path / f"kernels_{next(_names)}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def digest_of(load):
    def digest_of(source: str) -> str:
        return source_digest(load(source).kernel, constant)

    return digest_of


@pytest.mark.parametrize(
    "replacement",
    [
        ("  # the helper adds", ""),
        ("    y = helper", "\n\n    # a comment of its own\n    y = helper"),
        ('    """Multiplies."""\n', ""),
        ('"""Multiplies."""', '"""Multiplies, twice."""'),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def helper", "\n\n\n\ndef helper"),
        ("def kernel", "@(lambda function: function)\ndef kernel"),
        ("y = y * 2\n", "y = (y *\n             2)\n"),
    ],
)
def test_what_does_not_change_the_kernel_does_not_change_the_digest(digest_of, replacement) -> None:
    assert digest_of(KERNEL.replace(*replacement)) == digest_of(KERNEL)


@pytest.mark.parametrize(
    "replacement",
    [
        ("y * 2", "y * 4"),
        ("x + SCALE", "x - SCALE"),
        ("SCALE = 3", "SCALE = 4"),
        ("range(n)", "range(n + 1)"),
        ("(x, n, BLOCK)", "(x, n, BLOCK=2)"),
        ("        y = y * 2\n\n    return y", "        y = y * 2\n        return y"),
    ],
)
def test_what_changes_the_kernel_changes_the_digest(digest_of, replacement) -> None:
    assert digest_of(KERNEL.replace(*replacement)) != digest_of(KERNEL)


def test_a_helper_reached_through_a_module_is_part_of_the_kernel(load) -> None:
    def digest(body: str) -> str:
        helpers = load(f"def act(x):\n    return {body}\n")
        module = load("def kernel(x):\n    return helpers.act(x)\n")
        module.helpers = helpers
        return source_digest(module.kernel, constant)

    assert digest("x") != digest("x + 1")


def test_functions_that_call_each_other_have_a_digest(digest_of) -> None:
    source = "def kernel(x):\n    return other(x)\n\ndef other(x):\n    return kernel(x) if x else {}\n"

    assert digest_of(source.format(1)) != digest_of(source.format(2))


def test_a_global_is_read_when_the_kernel_is_first_asked_for(load) -> None:
    module = load("def kernel(x):\n    return x * LATER\n")
    module.LATER = 1
    first = source_digest(module.kernel, constant)
    module.LATER = 2

    assert source_digest(module.kernel, constant) != first


def test_plain_closure_cells_belong_to_the_key_and_not_to_the_digest(load) -> None:
    module = load("def make(a):\n    def kernel(x):\n        return x * a\n    return kernel\n")
    two, three = module.make(2), module.make(3)

    assert source_digest(two, constant) == source_digest(three, constant)
    assert [closure_cells(made) for made in (two, three)] == [{"a": 2}, {"a": 3}]


def test_a_function_in_a_closure_cell_is_part_of_the_digest(load) -> None:
    module = load(
        "def one(x):\n    return x\n\ndef two(x):\n    return -x\n\n"
        "def make(act):\n    def kernel(x):\n        return act(x)\n    return kernel\n"
    )

    assert source_digest(module.make(module.one), constant) != source_digest(module.make(module.two), constant)


def test_source_that_cannot_be_read_is_unportable() -> None:
    namespace: dict[str, object] = {}
    exec("def kernel(x):\n    return x\n", namespace)

    with pytest.raises(UnportableError, match="cannot be read"):
        source_digest(namespace["kernel"], constant)  # type: ignore[arg-type]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="nested quotes in f-strings are new in Python 3.12")
def test_an_f_string_is_one_token_on_every_python() -> None:
    text = code_text('def f(x):\n    assert x, f"block {x!r:>4} of {f"{x}" if x else 1}"\n')

    assert 'f"block {x!r:>4} of {f"{x}" if x else 1}"' in text.splitlines()


def other_pythons() -> list[str]:
    return [path for path in os.environ.get("AUTOTUNE_PYTHONS", "").split(os.pathsep) if path]


@pytest.mark.parametrize("python", other_pythons() or [sys.executable])
def test_the_digest_is_the_same_on_every_python(tmp_path: Path, python: str, digest_of) -> None:
    source = KERNEL.replace("return y", 'assert n, f"n is {n:>4}, not {0!r}"\n    return y')
    (tmp_path / "kernels.py").write_text(source)
    program = (
        "import kernels; from pytest_autotune.tuners.kernel_source import source_digest; "
        "print(source_digest(kernels.kernel, lambda v: repr(v) if isinstance(v, (int, float, str)) else None))"
    )

    found = subprocess.run(
        [python, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()

    assert found == digest_of(source)
