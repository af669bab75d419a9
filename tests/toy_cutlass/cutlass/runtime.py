"""The stand-in for a stream with which CuTe compiles a kernel."""

from __future__ import annotations


class _FakeStream:
    def __init__(self, *, use_tvm_ffi_env_stream: bool = False) -> None:
        self.use_tvm_ffi_env_stream = use_tvm_ffi_env_stream


def make_fake_stream(*, use_tvm_ffi_env_stream: bool = False) -> _FakeStream:
    return _FakeStream(use_tvm_ffi_env_stream=use_tvm_ffi_env_stream)
