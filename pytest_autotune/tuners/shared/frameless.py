"""Errors of candidates that are kept: without their frames, which hold the tensors of a call."""

from __future__ import annotations

from typing import TypeVar

_Error = TypeVar("_Error", bound=BaseException)


def without_frames(error: _Error) -> _Error:
    """An error that has forgotten where it was raised, and so have those that led to it.

    A frame holds what its function worked on, and leads to the frames of its callers. Where one of them holds the
    error, that is a circle: all of it would stay until the garbage collector comes.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
    return error
