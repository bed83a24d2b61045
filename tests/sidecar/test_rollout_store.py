"""The rollouts' file: what comes back, and what is refused and kept aside."""

from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest
from pointsman.router.rollout import Cause, Phase
from pointsman.router.rollouts import Kept, Memory
from pointsman.sidecar.rollout_store import HISTORY, Happened, RolloutStore, Stored

HAPPENED = Happened(
    1_700_000_000_000, "m@v2", Phase.WAITING, Phase.PROGRESSING, 0, 500, Cause.FIRST_REQUEST, (1, 0), (9, 1)
)
STORED = Stored(
    Memory(
        kept=(Kept("support", "v2", "abc", Phase.EXTENDED, 1, Cause.INCONCLUSIVE),),
        aborted=(("support", "v1", "def"),),
        promoted=(("other", "v3"),),
    ),
    {"support": (HAPPENED,)},
)


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts.json")
    store.save(STORED)
    assert STORED == RolloutStore(tmp_path / "rollouts.json").load()


def test_the_file_is_for_this_user_alone(tmp_path: Path) -> None:
    RolloutStore(tmp_path / "rollouts.json").save(STORED)
    assert 0o600 == stat.S_IMODE((tmp_path / "rollouts.json").stat().st_mode)
    assert ["rollouts.json"] == [path.name for path in tmp_path.iterdir()]


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    assert Stored() == RolloutStore(tmp_path / "rollouts.json").load()


def changed(**changes: object) -> bytes:
    kept = {"route": "r", "version": "v", "spec": "s", "phase": "paused", "step": 0, "cause": "operator"}
    page = {"format": 1, "kept": [kept], "aborted": [], "promoted": {}, "history": {}}
    return json.dumps({**page, **changes}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b"{}",
        changed(format=2),
        changed(kept=[{"route": "r"}]),
        changed(kept=[[]]),
        changed(kept=[{"route": "r", "version": "v", "spec": "s", "phase": "gone", "step": 0, "cause": "operator"}]),
        changed(kept=[{"route": "r", "version": "v", "spec": "s", "phase": "paused", "step": -1, "cause": "operator"}]),
        changed(kept=[{"route": "r", "version": "v", "spec": "s", "phase": "paused", "step": True, "cause": "errors"}]),
        changed(aborted=[["support", "v1"]]),
        changed(aborted=[["support", "v1", 3]]),
        changed(promoted=[]),
        changed(promoted={"support": None}),
        changed(history={"support": [{}]}),
    ],
)
def test_a_damaged_file_is_kept_aside_and_told_once(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rollouts.json"
    path.write_bytes(content)
    with caplog.at_level(logging.INFO, "pointsman"):
        assert Stored() == RolloutStore(path).load()
    assert ["rollouts start from the policy"] == [record.message for record in caplog.records]
    assert content == (tmp_path / "rollouts.json.damaged-1").read_bytes()
    assert not path.exists()


def test_each_damaged_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    for content in (b"one", b"two"):
        path.write_bytes(content)
        RolloutStore(path).load()
    assert [b"one", b"two"] == [path.with_name(f"rollouts.json.damaged-{n}").read_bytes() for n in (1, 2)]


def test_a_file_that_is_too_large_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.json"
    path.write_bytes(b" " * (5 * 1_024 * 1_024))
    assert Stored() == RolloutStore(path).load()


def test_history_is_bounded_when_it_is_read(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path / "rollouts.json")
    store.save(Stored(history={"support": (HAPPENED,) * (HISTORY + 9)}))
    assert HISTORY == len(store.load().history["support"])


def test_a_directory_that_cannot_be_written_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    RolloutStore(tmp_path / "gone" / "rollouts.json").save(STORED)
    assert ["rollouts cannot be stored"] == [record.message for record in caplog.records]
