"""The autotuners and heuristics that there are in this process, whoever made them."""

from __future__ import annotations

import gc
from typing import Any


def of_class(*classes: Any) -> list[Any]:
    """The objects in this process that are of some classes, or of classes derived from them."""
    # isinstance would ask proxies for their class, which may run code of theirs. A list of all objects, of which there
    # may be a million, counts a reference to each: in a forked child that copies the memory of all of them.
    wanted = {id(cls): cls for cls in classes}
    queue = list(classes)
    while queue:
        below = [one for one in type.__subclasses__(queue.pop()) if id(one) not in wanted]
        wanted |= {id(one): one for one in below}
        queue += below
    return [one for one in gc.get_referrers(*wanted.values()) if id(type(one)) in wanted]
