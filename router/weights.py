"""Weight arithmetic: shares become integers that sum to the whole, and zero stays zero.

Largest remainder (Hamilton's method) over the non-zero shares: a drained target never gets the rounding remainder.
"""

from __future__ import annotations

from collections.abc import Sequence

from pointsman.router.policy import FULL_SHARE


def apportion(shares: Sequence[float], total: int = FULL_SHARE) -> tuple[int, ...]:
    """Return integers proportional to `shares` that sum to `total`; a zero share gets zero.

    All zero gives all zero. Among equal remainders the earlier share wins, so the result does not depend on anything
    but the order. Raises ValueError for a negative or non-finite share or a negative total.
    """
    if total < 0 or any(not 0 <= share < float("inf") for share in shares):
        raise ValueError(f"shares must be finite and not negative, total not negative: found {list(shares)}, {total}")
    whole = sum(shares)
    if whole == 0:
        return tuple(0 for _ in shares)
    exact = [share / whole * total for share in shares]
    parts = [int(value) for value in exact]
    by_remainder = sorted((i for i, share in enumerate(shares) if share > 0), key=lambda i: (parts[i] - exact[i], i))
    missing = total - sum(parts)
    for n in range(missing):
        parts[by_remainder[n % len(by_remainder)]] += 1
    return tuple(parts)


def split_admitted(base: int, admit: float) -> tuple[int, int]:
    """Return (parts to the target's own ladder, parts to its bypass) for an arm's base; they sum to the base.

    `admit` is the breaker's ratio 0..1 (design rule 1). A target that is admitted at all and has a base keeps at
    least one part, so that a ramp is never rounded away; an admit of 0 sends nothing.
    """
    if not 0 <= admit <= 1:
        raise ValueError(f"admit must be a ratio 0..1, found {admit}")
    admitted = round(base * admit)
    if admit > 0 and base > 0:
        admitted = max(1, admitted)
    return admitted, base - admitted
