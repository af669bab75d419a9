"""The protocol buffer messages of XLA's autotuning files, from ``descriptors.textproto`` in this folder.

They are in a descriptor pool of their own, because TensorFlow registers ``xla.*`` in the default pool.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

#: A protobuf message. Its class is made at run time, so a type checker knows nothing of it.
Message = Any


def new(name: str) -> Message:
    """Return an empty message.

    :param name: the full name of the message, such as ``xla.AutotuneResults``.
    """
    return _class(name)()


def parse(name: str, data: bytes) -> Message:
    """Return the message that binary data holds.

    :param name: the full name of the message, such as ``xla.AutotuneResults``.
    :raises google.protobuf.message.DecodeError: for data that is no such message.
    """
    return _class(name).FromString(data)


@cache
def _class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def pool() -> Any:
    """Return the descriptor pool that holds only these messages."""
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, text_format, wrappers_pb2

    descriptors = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, wrappers_pb2):
        descriptors.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    description = files(__package__).joinpath("descriptors.textproto").read_text(encoding="utf-8")
    for file in text_format.Parse(description, descriptor_pb2.FileDescriptorSet()).file:
        descriptors.AddSerializedFile(file.SerializeToString())
    return descriptors
