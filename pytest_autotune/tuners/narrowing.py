"""How candidates are narrowed by measuring, where the measuring is ours: Triton's and hand-written tuners'.

All get a first, short look. Those that may win are measured in full, and those that
are close to the best then once more.
"""

from __future__ import annotations

#: How long the first look warms up and measures, in milliseconds; Triton itself takes 25 and 100.
BRIEF_WARMUP_MS = 3.0
BRIEF_MS = 10.0
#: Candidates within this share of the fastest one at the first look may win.
MAY_WIN = 0.25
#: Candidates within this share of the fastest one are close to it.
CLOSE = 0.05
#: No more than this many, the fastest, are measured on: where many are alike, it matters little which of them wins.
FINALISTS = 8
