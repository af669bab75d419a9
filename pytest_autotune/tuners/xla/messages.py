"""The protocol buffer messages of XLA's autotuning files, from ``descriptors.textproto`` in this folder.

The messages are in a separate descriptor pool. TensorFlow registers messages of the same names, ``xla.*``, in
protobuf's default pool, which refuses a second registration.
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
    """Return the message in binary data.

    :param name: the full name of the message, such as ``xla.AutotuneResults``.
    :raises google.protobuf.message.DecodeError: if the data is damaged or is no such message.
    """
    return _class(name).FromString(data)


@cache
def _class(name: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@cache
def pool() -> Any:
    """Return the separate descriptor pool, with these messages and those of protobuf that they use."""
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, text_format, wrappers_pb2

    descriptors = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2, wrappers_pb2):
        descriptors.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    description = files(__package__).joinpath("descriptors.textproto").read_text(encoding="utf-8")
    for file in text_format.Parse(description, descriptor_pb2.FileDescriptorSet()).file:
        descriptors.AddSerializedFile(file.SerializeToString())
    return descriptors
