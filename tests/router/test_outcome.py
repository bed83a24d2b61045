"""What tries count as."""

import pytest
from pointsman.router.entry import TryEntry
from pointsman.router.outcome import TryOutcome, outcome_of


@pytest.mark.parametrize(
    ("status", "flags", "expected"),
    [
        (200, (), TryOutcome.SUCCESS),
        (404, (), TryOutcome.SUCCESS),
        (400, (), TryOutcome.SUCCESS),
        (429, (), TryOutcome.REJECTED),
        (503, (), TryOutcome.FAILURE),
        (500, ("URX",), TryOutcome.FAILURE),
        (0, ("UF",), TryOutcome.FAILURE),
        (200, ("UPE",), TryOutcome.FAILURE),
        (200, ("UT",), TryOutcome.FAILURE),
        (101, ("UC",), TryOutcome.SUCCESS),
        (101, ("DC",), TryOutcome.SUCCESS),
        (0, ("DC",), TryOutcome.CANCELLED),
        (200, ("DR",), TryOutcome.CANCELLED),
    ],
)
def test_known_bug_34_only_the_servers_own_failures_count(
    status: int, flags: tuple[str, ...], expected: TryOutcome
) -> None:
    entry = TryEntry(0, 1.0, "row", "m@v", None, status, flags, 1, "id")
    assert expected is outcome_of(entry)
