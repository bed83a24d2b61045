"""refusals.py and the texts of status.py: what was refused is known by content, within a bound."""

from __future__ import annotations

from pointsman.xds.refusals import Refusals
from pointsman.xds.snapshot import ResourceType
from pointsman.xds.status import Refusal, reason_text

KIND = ResourceType.ROUTES


def refusal(name: str, version: str) -> Refusal:
    return Refusal(KIND, name, version, "bad")


def test_refused_content_is_known_and_other_content_is_not() -> None:
    memory = Refusals()
    memory.add(refusal("r", "v1"))
    assert memory.is_refused(KIND, "r", "v1")
    assert not memory.is_refused(KIND, "r", "v2")
    assert not memory.is_refused(KIND, "s", "v1")
    assert not memory.is_refused(ResourceType.CLUSTER, "r", "v1")


def test_all_refused_contents_of_a_name_are_known_until_it_is_forgiven() -> None:
    memory = Refusals()
    for version in ("v1", "v2"):
        memory.add(refusal("r", version))
    memory.add(refusal("s", "v1"))
    assert memory.is_refused(KIND, "r", "v1")
    memory.forgive(KIND, "r")
    assert memory.of(KIND) == (refusal("s", "v1"),)


def test_point_40_memory_is_bounded_and_the_oldest_gives_way() -> None:
    memory = Refusals(limit=3)
    for number in range(5):
        memory.add(refusal(f"r{number}", "v"))
    assert [entry.name for entry in memory.of(KIND)] == ["r2", "r3", "r4"]
    assert memory.forgotten == 2


def test_repeated_refusal_is_one_entry_and_the_newest() -> None:
    memory = Refusals(limit=2)
    for name in ("a", "b", "a", "c"):
        memory.add(refusal(name, "v"))
    assert [entry.name for entry in memory.of(KIND)] == ["a", "c"]


def test_trap_21_reason_text_is_one_line_and_keeps_the_end() -> None:
    assert reason_text("first\n  second ") == "first second"
    long = reason_text("goo.gle/debug " + "x" * 5_000 + "\nthe reason")
    assert long.startswith("…x")
    assert long.endswith("x the reason")
    assert len(long) == 1_025
