"""XLA's protocol buffer messages, as far as its autotuning files need them: see ``descriptors.textproto``.

They live in a pool of their own: TensorFlow registers ``xla.*`` in the default one.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

#: A message of protobuf; its class is made at run time.
Message = Any


def new(name: str) -> Message:
    """An empty message of the type with XLA's name ``name``."""
    return _class(name)()


def parsed(name: str, data: bytes) -> Message:
    """The message that the bytes hold; a DecodeError where they hold none."""
    return _class(name).FromString(data)


@cache
def _class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def pool() -> Any:
    """The pool with these messages alone."""
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, text_format, wrappers_pb2

    made = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, wrappers_pb2):
        made.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    described = files(__package__).joinpath("descriptors.textproto").read_text(encoding="utf-8")
    for file in text_format.Parse(described, descriptor_pb2.FileDescriptorSet()).file:
        made.AddSerializedFile(file.SerializeToString())
    return made
