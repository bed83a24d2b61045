"""Places: bounded, in order, given back whatever happens."""

from __future__ import annotations

import asyncio

import pytest
from pointsman.sidecar.simulator_slots import Slots


class _Visit:
    """One request that takes a place and keeps it until told."""

    def __init__(self, slots: Slots, order: list[str], name: str) -> None:
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(slots, order, name))

    async def _run(self, slots: Slots, order: list[str], name: str) -> None:
        async with slots.place():
            order.append(name)
            await self.leave.wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_waiting_requests_run_in_order_of_arrival() -> None:
    slots, order = Slots(1), list[str]()
    visits = [_Visit(slots, order, name) for name in "abc"]
    await _settle()
    assert (order, slots.running, slots.waiting) == (["a"], 1, 2)
    for visit in visits:
        visit.leave.set()
        await visit.task
    assert (order, slots.running, slots.waiting) == (["a", "b", "c"], 0, 0)


async def test_more_slots_start_those_who_wait_and_fewer_leave_those_who_run() -> None:
    slots, order = Slots(1), list[str]()
    visits = [_Visit(slots, order, name) for name in "abcd"]
    await _settle()
    slots.resize(3)
    await _settle()
    assert (slots.running, slots.waiting) == (3, 1)
    slots.resize(1)
    visits[0].leave.set()
    await visits[0].task
    await _settle()
    assert (slots.running, slots.waiting) == (2, 1)
    for visit in visits:
        visit.leave.set()
    await asyncio.gather(*(visit.task for visit in visits))
    assert order == ["a", "b", "c", "d"]


async def test_cancelled_waiter_is_forgotten() -> None:
    slots, order = Slots(1), list[str]()
    first, second, third = (_Visit(slots, order, name) for name in "abc")
    await _settle()
    second.task.cancel()
    await _settle()
    assert slots.waiting == 1
    for visit in (first, third):
        visit.leave.set()
        await visit.task
    assert (order, slots.running) == (["a", "c"], 0)


async def test_place_given_to_a_cancelled_waiter_goes_to_the_next() -> None:
    slots, order = Slots(1), list[str]()
    first, second, third = (_Visit(slots, order, name) for name in "abc")
    await _settle()
    third.leave.set()
    # The place is handed to the second in this very turn of the loop, and the second is cancelled before it runs.
    first.task.cancel()
    await asyncio.sleep(0)
    second.task.cancel()
    await asyncio.wait_for(third.task, 5)
    with pytest.raises(asyncio.CancelledError):
        await second.task
    assert (order, slots.running) == (["a", "c"], 0)
