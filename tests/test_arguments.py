"""Values of keys for the arguments of kernels: two arguments that need two choices have two keys."""

from __future__ import annotations

import dataclasses
import enum
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.shared.arguments import STREAM_CLASSES, is_stream, is_tensor, list_argument_values

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


class StreamKMode(enum.Enum):
    ON = 1
    OFF = 2


class StreamKNumber(enum.IntEnum):
    ON = 1
    OFF = 2


@dataclasses.dataclass(frozen=True)
class StreamSettings:
    splits: int


@dataclasses.dataclass(frozen=True)
class TensorSettings:
    """Settings of the user that have the attributes of a tensor."""

    dtype: object
    shape: tuple[int, ...]
    splits: int


class Stream:
    """A class of the user that has the name of torch's stream."""

    def __init__(self, splits: int) -> None:
        self.splits = splits


class UserStream(torch.cuda.Stream):  # type: ignore[name-defined, misc]
    """A subclass of torch's stream, with an attribute on which a choice may depend."""

    def __new__(cls) -> Any:
        return object.__new__(cls)

    def __init__(self) -> None:
        self.splits = 2


def encode(value: object) -> object:
    """Return the values of a key for an argument; None if the argument makes the problem uncacheable."""
    try:
        return [item.encoded for item in list_argument_values("x", value)]
    except UncacheableError:
        return None


HALF = torch.float16
PAIRS = {
    "enum": (StreamKMode.ON, StreamKMode.OFF),
    "int-enum": (StreamKNumber.ON, StreamKNumber.OFF),
    "dataclass": (StreamSettings(1), StreamSettings(2)),
    "class-named-stream": (Stream(1), Stream(2)),
    "dataclass-with-shape": (TensorSettings(HALF, (4,), 1), TensorSettings(HALF, (4,), 2)),
    "object-with-shape": (SimpleNamespace(dtype=HALF, shape=(4,), a=1), SimpleNamespace(dtype=HALF, shape=(4,), a=2)),
    "numpy-integer": (numpy.int32(3), numpy.int32(4)),
    "numpy-bool": (numpy.bool_(True), numpy.bool_(False)),
    "class": (StreamKMode, StreamKNumber),
    "numpy-dtype": (numpy.float16, numpy.float32),
    "module": (numpy, torch),
    "stream-in-list": ([torch.zeros(4), StreamKMode.ON], [torch.zeros(4), StreamKMode.OFF]),
    "view-without-alignment": (torch.zeros(65)[1:], torch.zeros(64)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_different_kernel_arguments_never_get_equal_keys(name: str) -> None:
    """An argument that has no values of a key is uncacheable."""
    first, second = PAIRS[name]
    encoded = encode(first)

    assert encoded != []
    assert encoded is None or encoded != encode(second)


def test_an_argument_whose_class_extends_a_stream_is_uncacheable() -> None:
    assert not is_stream(UserStream())
    assert encode(UserStream()) is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "Stream"),
        ("torch.cuda.streams", "Stream"),
        ("torch.cuda.streams", "ExternalStream"),
        ("cuda.bindings.driver", "CUstream"),
        ("cuda.bindings.runtime", "cudaStream_t"),
        ("cupy.cuda.stream", "Stream"),
        ("cupy.cuda.stream", "ExternalStream"),
        ("cutlass.runtime", "_FakeStream"),
    ],
)
def test_an_argument_that_is_a_cuda_stream_is_not_in_the_key(module: str, name: str) -> None:
    stream = type(name, (), {"__module__": module})()

    assert list_argument_values("stream", stream) == []


def test_the_stream_classes_the_plugin_knows_exist_in_torch() -> None:
    for cls in (torch.Stream, torch.cuda.Stream, torch.cuda.ExternalStream):
        assert (cls.__module__, cls.__qualname__) in STREAM_CLASSES


class DlpackTensor:
    """A tensor of a library that is not known here."""

    dtype = "float32"
    shape = (4, 8)
    strides = None

    def __dlpack__(self) -> None: ...


@pytest.mark.parametrize(
    "tensor", [torch.zeros(4, 8), numpy.zeros((4, 8)), DlpackTensor()], ids=lambda t: type(t).__name__
)
def test_the_key_has_only_dtype_and_shape_of_contiguous_tensors(tensor: object) -> None:
    """The numbers in a tensor are left out, and so are its strides if it is contiguous."""
    assert is_tensor(tensor)
    assert [value.name for value in list_argument_values("x", tensor)] == ["x.dtype", "x.shape"]


def test_the_alignment_of_an_unaligned_view_is_in_the_key() -> None:
    values = list_argument_values("x", torch.zeros(65)[1:])

    assert [(value.name, value.value) for value in values][-1] == ("x.align", 4)


def test_the_alignment_of_a_tensor_without_data_ptr_is_in_the_key() -> None:
    """CuPy's arrays give their address only by the protocol of CUDA arrays."""

    class CudaArray:
        dtype = numpy.dtype("float32")
        shape = (8,)

        def __init__(self, address: int) -> None:
            self._address = address

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"data": (self._address, False)}

    names = [[value.name for value in list_argument_values("x", CudaArray(address))] for address in (4096, 4100)]

    assert names == [["x.dtype", "x.shape"], ["x.dtype", "x.shape", "x.align"]]


def test_the_assumed_alignment_of_a_cute_tensor_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alignment of one element is the default, and is left out."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "toy_cutlass"))
    import cutlass  # type: ignore[import-not-found]
    from cutlass.cute.runtime import make_fake_compact_tensor  # type: ignore[import-not-found]

    alignments = []
    for promised in (None, 4, 16, 32):
        tensor = make_fake_compact_tensor(cutlass.Float32, (64,), assumed_align=promised)
        value_by_name = {value.name: value.value for value in list_argument_values("x", tensor)}
        alignments.append(value_by_name.get("x.align"))
    for name in list(sys.modules):
        if name.partition(".")[0] == "cutlass":
            monkeypatch.delitem(sys.modules, name)

    assert alignments == [None, None, 16, 32]
