"""The messages of protobuf that the binary format is made of; nothing is imported before the first is asked for."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeAlias

# The generated module has no types.
Module: TypeAlias = Any
Message: TypeAlias = Any


def pb2() -> Module:
    """The generated module."""
    from pytest_autotune.cache import autotune_cache_pb2

    return autotune_cache_pb2


@lru_cache(maxsize=1)
def outlines() -> Any:
    """The messages, in which what is repeated inside an entry stands as bytes.

    It is the same on the wire. A message of protobuf takes fifty times the two
    bytes that an empty one may have in a file; bytes take eight times. Of some
    entries at a time, ``Rows`` are a cache with their outlines.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto()
    pb2().DESCRIPTOR.CopyToProto(file)
    package = file.package
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.ClearField("type_name")
                field.type = field.TYPE_BYTES
                if field.label == field.LABEL_OPTIONAL:  # so that it can be told from an empty one
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")
    rows = file.message_type.add()
    rows.CopyFrom(next(message for message in file.message_type if message.name == "AutotuneCache"))
    rows.name = "Rows"
    entries = next(field for field in rows.field if field.name == "entries")
    entries.type, entries.type_name = entries.TYPE_MESSAGE, f".{package}.Entry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in ("AutotuneCache", "Rows", "Entry", "Candidate")
    ]
    return SimpleNamespace(Cache=made[0], Rows=made[1], Entry=made[2], Candidate=made[3])
