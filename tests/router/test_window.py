"""Windows forget what is old and bound what is pinned."""

from hypothesis import given
from hypothesis import strategies as st
from pointsman.router.window import Counts, Window


def test_it_forgets_what_is_older_than_its_width() -> None:
    window = Window(5_000)
    window.add(0, failed=True, late=False)
    window.add(3_000, failed=False, late=True)
    assert Counts(2, 1, 1) == window.counts(4_999)
    assert Counts(1, 0, 1) == window.counts(5_300)
    assert Counts() == window.counts(60_000)


@given(st.lists(st.tuples(st.integers(0, 200), st.booleans()), max_size=200))
def test_it_counts_what_a_list_counts(steps: list[tuple[int, bool]]) -> None:
    window, now, kept = Window(5_000), 0, []
    for wait, failed in steps:
        now += wait
        window.add(now, failed=failed, late=False)
        kept.append((now, failed))
    counts = window.counts(now)
    certain = [failed for at, failed in kept if at > now - 4_750]
    possible = [failed for at, failed in kept if at > now - 5_250]
    assert len(certain) <= counts.total <= len(possible)
    assert sum(certain) <= counts.failures <= sum(possible)


def test_memory_does_not_grow_with_traffic() -> None:
    window = Window(1_000)
    for now in range(10_000):
        window.add(now, failed=False, late=False)
    assert len(window._slices) <= 22


def test_a_target_that_only_pins_reach_is_judged_by_them() -> None:
    window = Window(5_000)
    for now in range(100):
        window.add(now, failed=True, late=False, pinned=True)
    assert Counts(100, 100, 0) == window.counts(100)


def test_clearing_forgets_all() -> None:
    window = Window(5_000)
    window.add(1, failed=True, late=True)
    window.clear()
    assert Counts() == window.counts(2)
