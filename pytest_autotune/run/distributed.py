"""Whether this process is one of several that tune the same kernels together."""

from __future__ import annotations

import os
import sys
from typing import Any


def in_distributed_run() -> bool:
    """Whether this process is one rank of several, by its environment or by torch."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
