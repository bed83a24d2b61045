"""Confidence bounds of a ratio: how bad (or good) a server can be, given what was seen.

Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), the score
interval; one-sided, so Z is the normal quantile of the confidence itself.
"""

from __future__ import annotations

import math

Z_999 = 3.0902
"""Normal quantile of 99.9 %: one false alarm in a thousand looks at a server that is exactly at the limit."""


def lower_bound(events: int, total: int, z: float = Z_999) -> float:
    """Return the least true ratio that is compatible with `events` of `total`; 0 where nothing was seen."""
    if total <= 0 or events <= 0:
        return 0.0
    ratio = events / total
    centre = ratio + z * z / (2 * total)
    spread = z * math.sqrt((ratio * (1 - ratio) + z * z / (4 * total)) / total)
    return max(0.0, (centre - spread) / (1 + z * z / total))


def upper_bound(events: int, total: int, z: float = Z_999) -> float:
    """Return the largest true ratio that is compatible with `events` of `total`; 1 where nothing was seen."""
    return 1.0 - lower_bound(total - events, total, z) if total > 0 else 1.0
