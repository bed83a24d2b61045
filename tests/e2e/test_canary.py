"""Header-driven canary: pins, the split by weight, and who stays where when the weight changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio
from pointsman.router.request import Request
from stack import CANARY, STABLE, Stack
from wire import Client

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

IDS = [f"customer-{number}" for number in range(4_000)]
CONNECTIONS = 8
SIGMAS = 4
"""One false alarm in some 15,000 runs; the ids are fixed, so the same build never gives two verdicts."""

BODY = b'{"model": "support-chat", "messages": [{"role": "user", "content": "Where is my parcel?"}], "max_tokens": 1}'


async def sides(stack: Stack, ids: Iterable[str], header: str = "x-context-id") -> dict[str, str]:
    """Who answers each id; asked over a few connections at a time."""
    waiting = iter(list(ids))
    found: dict[str, str] = {}

    async def ask_some() -> None:
        client = Client(stack.port)
        for key in waiting:
            headers = (("content-type", "application/json"), (header, key))
            answer = await client.ask(Request(headers=headers, body=BODY))
            found[key] = answer.headers.get("x-served-by", f"status {answer.status}")
        await client.close()

    await asyncio.gather(*(ask_some() for _ in range(CONNECTIONS)))
    return found


def on_canary(found: dict[str, str]) -> set[str]:
    assert {STABLE, CANARY} >= set(found.values())
    return {key for key, target in found.items() if target == CANARY}


def assert_share(expected: float, count: int, of: int) -> None:
    margin = SIGMAS * math.sqrt(of * expected * (1 - expected))
    assert abs(count - of * expected) <= margin, f"{count} of {of}, expected {of * expected:g} ± {margin:.0f}"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def cohort(changing: Stack) -> set[str]:
    """The ids of all 4,000 that are on the canary at 5 %."""
    return on_canary(await sides(changing, IDS))


@pytest_asyncio.fixture(loop_scope="session")
async def weighted(changing: Stack) -> AsyncIterator[Stack]:
    """The stack, put back to 5 % afterwards."""
    yield changing
    await changing.apply_policy(WEIGHT=5)


async def test_every_pinned_request_reaches_the_canary(stack: Stack) -> None:
    answers = [await stack.chat({"model-version": "v2.3-beta", "x-context-id": key}) for key in IDS[:200]]
    assert {(CANARY, "pinned")} == {(answer.target, answer.reason) for answer in answers}


async def test_every_request_pinned_to_stable_avoids_the_canary(stack: Stack, cohort: set[str]) -> None:
    answers = [await stack.chat({"model-version": "v2.2", "x-context-id": key}) for key in sorted(cohort)[:100]]
    assert {(STABLE, "pinned")} == {(answer.target, answer.reason) for answer in answers}


async def test_five_percent_of_ids_are_on_the_canary(cohort: set[str]) -> None:
    assert_share(0.05, len(cohort), len(IDS))


async def test_known_bug_26_clients_that_come_again_stay_on_their_side(changing: Stack, cohort: set[str]) -> None:
    again = [*sorted(cohort)[:50], *IDS[:250]]
    for _ in range(4):
        assert cohort & set(again) == on_canary(await sides(changing, again))


async def test_sticky_key_is_the_first_header_that_is_there(changing: Stack, cohort: set[str]) -> None:
    inside = sorted(cohort)[0]
    outside = next(key for key in IDS if key not in cohort)
    assert {inside} == on_canary(await sides(changing, [inside, outside], header="x-session-id"))
    both = await changing.chat({"x-context-id": outside, "x-session-id": inside})
    assert (STABLE, "default") == (both.target, both.reason)


async def test_requests_without_a_key_are_split_one_by_one(changing: Stack) -> None:
    found = await sides(changing, [f"{number}" for number in range(800)], header="x-unrelated")
    assert_share(0.05, len(on_canary(found)), 800)


async def test_canary_answers_say_so(stack: Stack, cohort: set[str]) -> None:
    answer = await stack.chat({"x-context-id": sorted(cohort)[0]})
    assert (CANARY, "canary", CANARY) == (answer.target, answer.reason, answer.headers["x-pointsman-target"])


async def test_all_classes_of_a_route_have_the_same_cohort(stack: Stack, cohort: set[str]) -> None:
    for key in [*sorted(cohort)[:20], *IDS[:20]]:
        answer = await stack.chat({"x-context-id": key, "x-qos-class": "batch"})
        assert (CANARY if key in cohort else STABLE) == answer.target


async def test_growing_weight_keeps_the_cohort_and_only_adds(weighted: Stack, cohort: set[str]) -> None:
    await weighted.apply_policy(WEIGHT=25)
    grown = on_canary(await sides(weighted, [*sorted(cohort), *IDS[:2_000]]))
    assert set() == cohort - grown
    assert_share(0.25, len(grown & set(IDS[:2_000])), 2_000)


async def test_known_bug_29_pins_do_not_feel_a_weight_change(weighted: Stack, cohort: set[str]) -> None:
    def pins(table: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
        return [row for row in table["rows"] if "pin=" in str(row["name"])]

    before = pins((await weighted.admin("/table")).json())
    await weighted.apply_policy(WEIGHT=10)
    assert before == pins((await weighted.admin("/table")).json())
    for key in [*sorted(cohort)[:20], *IDS[:20]]:
        assert CANARY == (await weighted.chat({"model-version": "v2.3-beta", "x-context-id": key})).target
        assert STABLE == (await weighted.chat({"model-version": "v2.2", "x-context-id": key})).target


@pytest.mark.parametrize(("weight", "target"), [(0, STABLE), (100, CANARY)])
async def test_known_bug_30_nothing_and_everything_are_weights_too(weighted: Stack, weight: int, target: str) -> None:
    await weighted.apply_policy(WEIGHT=weight)
    assert {target} == set((await sides(weighted, IDS[:200])).values())
