"""Who tunes: one module for each tuner."""

from __future__ import annotations

#: The tuners that can be hooked: name -> module whose ``Adapter`` hooks it.
TUNERS: dict[str, str] = {
    "triton": "pytest_autotune.tuners.triton",
    "inductor": "pytest_autotune.tuners.inductor",
}
