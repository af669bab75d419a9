"""A kernel's digest has the function of Triton that a name stands for, equally under every version of Triton."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("triton")

from pytest_autotune.tuners.source.source_digest import read_source

KERNEL = """
import triton, triton.language as tl
import triton.language.extra.libdevice as tldevice
from triton.language import load
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt, tanh

{bound}

@triton.jit
def kernel(x):
    return {used}
"""
_numbers = itertools.count()


def module_of(folder: Path, bound: str, used: str) -> ModuleType:
    path = folder / f"names_{next(_numbers)}.py"
    path.write_text(KERNEL.format(bound=bound, used=used))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=[False, True], ids=["compiled", "interpreted"])
def read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRITON_INTERPRET", str(int(request.param)))
    return lambda bound, used: read_source(module_of(tmp_path, bound, used).kernel, named=False)


#: The imports of a kernel, the name that it uses, and the digest of its source under every version of Triton.
SAID = [
    ("exp = tl.exp", "exp(x)", "95d3cd3501b6"),
    ("", "tl.exp(x)", "97a809cedb09"),
    ("", "tl.math.exp(x)", "6dd264bb1200"),
    ("", "libdevice.exp(x)", "cbbbeefb2ccf"),
    ("", "tldevice.exp(x)", "ac0f9756e6ff"),
    ("", "rsqrt(x)", "1ed9d97397d3"),
    ("", "tanh(load(x))", "967447c27832"),
    ("lib = tl.math", "lib.exp(x)", "c510b3f41f9f"),
    ("exp = tl.exp", "tl.associative_scan(x, 0, exp)", "84d3d962ff3f"),
]
ADDED = [
    ("exp = tl.exp2", "exp(x)", "exp", "fa47f920adc6"),
    ("exp = libdevice.exp", "exp(x)", "exp", "e0f603efa800"),
    ("exp = libdevice.fast_expf", "exp(x)", "exp", "aacf8c512a4c"),
    ("rsqrt = tl.rsqrt", "rsqrt(x)", "rsqrt", "178ff75ae6a7"),
    ("lib = libdevice", "lib.exp(x)", "lib.exp", "35a8c40cecdf"),
    ("libdevice = tl", "libdevice.exp(x)", "libdevice.exp", "b03d57c2147c"),
    ("total = tl.max", "total(x, 0)", "total", "7f7c7e16c50f"),
    ("total = tl.sum", "total(x, 0)", "total", "dcd46fbb77cb"),
    ("kind = tl.pointer_type", "x.to(kind)", "kind", "feab30bbf8e5"),
    ("TO = tl.pointer_type(tl.float32)", "x.to(TO)", "TO", "65c9e9dc4d81"),
    ("TO = tl.pointer_type(tl.float16)", "x.to(TO)", "TO", "14db770dc7e1"),
    ("TO = tl.block_type(tl.float16, [16, 32])", "x.to(TO)", "TO", "1657dcd6c63d"),
    ("TO = tl.block_type(tl.float16, [32, 16])", "x.to(TO)", "TO", "473dfad9b48a"),
    ("SIZES = tl.tuple((16, 32))", "x * SIZES[0]", "SIZES", "c5f6651c14f8"),
    ("SIZES = tl.tuple((16, 64))", "x * SIZES[0]", "SIZES", "7edd58702c7b"),
]


@pytest.mark.parametrize(("bound", "used", "digest"), SAID)
def test_digests_omit_triton_functions_under_their_own_names(read: Any, bound: str, used: str, digest: str) -> None:
    source = read(bound, used)

    assert source.parts.keys() == {"kernel"}
    assert source.digest == digest


@pytest.mark.parametrize(("bound", "used", "name", "digest"), ADDED)
def test_digests_have_triton_functions_used_under_an_alias(
    read: Any, bound: str, used: str, name: str, digest: str
) -> None:
    source = read(bound, used)

    assert source.parts.keys() == {"kernel", name}
    assert source.digest == digest


def test_kernels_with_different_triton_calls_differ_in_digest() -> None:
    digests = [case[-1] for case in (*SAID, *ADDED)]
    assert len(set(digests)) == len(digests)


def test_all_functions_in_both_tl_and_libdevice_are_listed() -> None:
    """One name can be bound to either of two such functions: a digest has to name one of them."""
    import triton.language as tl
    from triton.language.extra import libdevice

    from pytest_autotune.tuners.source.functions import _IN_BOTH, python_function

    names = [{name for name, value in vars(module).items() if python_function(value)} for module in (tl, libdevice)]
    assert names[0] & names[1] == _IN_BOTH


ADDED_KERNEL = """
@triton.jit
def gather(x):
    return x + {summand}
if not hasattr(tl, "gather_"):
    tl.gather_ = gather
"""


def test_a_kernel_that_the_suite_adds_to_a_library_is_followed(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    language = sys.modules["triton.language"]
    digests = []
    for summand in (1, 1, 2):
        digests.append(read(ADDED_KERNEL.format(summand=summand), "tl.gather_(x)").digest)
        monkeypatch.delattr(language, "gather_")
    assert digests[0] == digests[1] != digests[2]
