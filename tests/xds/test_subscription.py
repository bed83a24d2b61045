"""The stream's state machine in its Delta variant: nonces, answers, names, reconnects, the points of docs/xds.md.

Covers subscription.py, stream.py and delta.py; what both variants share is in test_stream_order.py and its neighbours.
"""

from __future__ import annotations

import pytest
from joined_stream import JoinedStream, names_of, started
from pointsman.xds import api
from pointsman.xds.delta import RequestRefused, decode
from pointsman.xds.fake_client import CDS, EDS, LDS, RDS, FakeEnvoy
from pointsman.xds.snapshot import Snapshot
from pointsman.xds.status import EndReason, Outcome
from pointsman.xds.stream import StreamLimits
from sample_resources import assignment, cluster, snapshot

# ---- nonces, answers


def test_envoy_gets_everything_in_order() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    assert wire.follow(envoy) == [
        ("CDS", ["a", "b"], []),
        ("EDS", ["a", "b"], []),
        ("LDS", ["in"], []),
        ("RDS", ["main"], []),
    ]
    assert wire.outcome() is Outcome.ACKNOWLEDGED
    assert wire.stream.acknowledged_snapshot == snapshot("a", "b").version


def test_point_4_nonces_are_never_used_twice_in_a_stream() -> None:
    wire, envoy = started(snapshot("a"))
    for port in range(1, 20):
        wire.stream.offer(snapshot("a", ports={"a": port}))
        wire.follow(envoy)  # the checker refuses a repeated nonce
    assert wire.client.responses == 4 + 19


def test_point_4_nonce_of_an_earlier_stream_is_an_ordinary_first_request() -> None:
    wire = JoinedStream(snapshot("a"))
    request = wire.client.subscribe(CDS)
    request.response_nonce = "1"
    wire.send(request)
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_4_nack_of_an_earlier_stream_refuses_nothing() -> None:
    wire = JoinedStream(snapshot("a"))
    request = wire.client.subscribe(CDS)
    request.response_nonce = "1"
    request.error_detail.message = "old"
    wire.send(request)
    assert wire.events == []
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_7_acknowledgement_gets_no_response() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.acknowledge(wire.receive_one())
    assert wire.receive() == []


def test_point_9_newer_content_after_a_refusal_is_sent_and_accepted() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    wire.send(wire.client.refuse(wire.receive_one(), "no"))
    assert wire.receive() == []
    newer = Snapshot.build([cluster("a", timeout_s=2)], [assignment("a")])
    wire.stream.offer(newer)
    wire.acknowledge(wire.receive_one())
    assert wire.stream.acknowledged_versions[CDS] == newer.type_versions[CDS]


def test_trap_20_stale_answer_is_ignored_and_counted() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.send(wire.client.subscribe(CDS))
    received = wire.receive_one()
    wire.acknowledge(received)
    again = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce=received.nonce)
    unknown = api.DeltaDiscoveryRequest(type_url=CDS.value, response_nonce="nonsense")
    wire.send(again, unknown)
    assert wire.receive() == []
    assert wire.stream.stale_requests == 2


def test_first_request_of_each_type_is_answered_though_there_is_nothing() -> None:
    wire = JoinedStream(Snapshot.build())
    for kind in (CDS, EDS, LDS, RDS):
        assert names_of(wire.subscribe(kind)) == [(kind.label, [], [])]


def test_nothing_is_sent_before_a_snapshot_is_offered() -> None:
    wire = JoinedStream()
    wire.send(wire.client.subscribe(CDS))
    assert wire.receive() == []
    wire.stream.offer(snapshot("a"))
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


# ---- names


def test_point_14_unsubscribed_and_subscribed_again_is_sent_again() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "a"))
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]


def test_point_16_first_request_without_names_means_all_for_cds_and_lds_only() -> None:
    wire = JoinedStream(snapshot("a"))
    assert names_of(wire.subscribe(CDS)) == [("CDS", ["a"], [])]
    assert names_of(wire.subscribe(LDS)) == [("LDS", ["in"], [])]
    assert names_of(wire.subscribe(EDS)) == [("EDS", [], [])]
    assert names_of(wire.subscribe(RDS)) == [("RDS", [], [])]


def test_point_17_wildcard_given_up_keeps_the_explicit_name() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.subscribe(CDS, "*", "a")
    wire.send(wire.client.unsubscribe(CDS, "*"))
    changed = Snapshot.build([cluster("a", timeout_s=2), cluster("b", timeout_s=2)], [assignment("a"), assignment("b")])
    wire.stream.offer(changed)
    assert names_of(wire.receive()) == [("CDS", ["a"], [])]


def test_point_19_name_that_appears_later_is_sent_then() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(EDS, "b")
    wire.stream.offer(snapshot("a", "b"))
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


def test_point_28_names_count_though_the_nonce_is_stale() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.subscribe(EDS, "a")
    request = wire.client.subscribe(EDS, "b")
    request.response_nonce = "stale"
    wire.send(request)
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


def test_point_28_names_count_on_an_acknowledgement() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.send(wire.client.subscribe(EDS, "a"))
    both = wire.client.acknowledge(wire.receive_one())
    both.MergeFrom(wire.client.subscribe(EDS, "b"))
    wire.send(both)
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]
    assert wire.stream.stale_requests == 0


def test_point_30_subscribed_again_is_sent_again() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(EDS, "a")
    assert names_of(wire.subscribe(EDS, "a")) == [("EDS", ["a"], [])]


def test_point_30_wildcard_again_sends_all_again() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.subscribe(CDS)
    assert names_of(wire.subscribe(CDS, "*")) == [("CDS", ["a", "b"], [])]


def test_point_31_superfluous_unsubscribe_is_ignored() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "never"))
    assert wire.receive() == []


def test_point_31_unsubscribe_gets_no_response_and_no_further_content() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(EDS, "a")
    wire.send(wire.client.unsubscribe(EDS, "a"))
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    assert wire.receive() == []


def test_point_31_name_given_up_under_a_wildcard_is_answered() -> None:
    wire = JoinedStream(snapshot("a"))
    wire.subscribe(CDS, "*", "a", "missing")
    wire.send(wire.client.unsubscribe(CDS, "a", "missing"))
    assert names_of(wire.receive()) == [("CDS", ["a"], ["missing"])]


def test_point_32_missing_name_is_answered_at_once_and_once() -> None:
    wire = JoinedStream(snapshot("a"))
    assert names_of(wire.subscribe(EDS, "missing")) == [("EDS", [], ["missing"])]
    wire.stream.offer(snapshot("a", ports={"a": 1}))
    assert wire.receive() == []


def test_point_33_later_request_without_names_changes_nothing() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.subscribe(CDS, "a")
    wire.send(api.DeltaDiscoveryRequest(type_url=CDS.value))
    assert wire.receive() == []


def test_point_34_only_what_changed_is_sent() -> None:
    wire, envoy = started(snapshot("a", "b"))
    wire.stream.offer(snapshot("a", "b", ports={"b": 1}))
    assert wire.follow(envoy) == [("EDS", ["b"], [])]


def test_point_37_name_asked_for_is_answered_alone_though_others_are_unanswered() -> None:
    wire = JoinedStream(snapshot("a", "b"))
    wire.send(wire.client.subscribe(EDS, "a"))
    wire.receive()
    wire.send(wire.client.subscribe(EDS, "b"))
    assert names_of(wire.receive()) == [("EDS", ["b"], [])]


# ---- reconnects


def test_point_29_unchanged_content_is_not_sent_after_a_reconnect() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = JoinedStream(snapshot("a", "b"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    assert all(not names and not removed for _, names, removed in wire.follow(envoy))
    assert wire.client.resources_received == 0
    assert wire.outcome() is Outcome.ACKNOWLEDGED


def test_point_29_only_what_changed_while_away_is_sent() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = JoinedStream(snapshot("a", "b", used="a"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    sent = [entry for entry in wire.follow(envoy) if entry[1] or entry[2]]
    assert sent == [("RDS", ["main"], [])]


def test_point_29_what_is_gone_is_removed_after_the_routes_were_replaced() -> None:
    before, _ = started(snapshot("a", "b"))
    wire = JoinedStream(snapshot("a"), before=before)
    envoy = FakeEnvoy(wire.client)
    wire.send(*envoy.start())
    sent = [entry for entry in wire.follow(envoy) if entry[1] or entry[2]]
    assert sent == [("RDS", ["main"], []), ("CDS", [], ["b"])]


def test_point_29_names_that_are_not_subscribed_are_removed() -> None:
    before = JoinedStream(snapshot("a", "b"))
    before.subscribe(EDS, "a", "b")
    wire = JoinedStream(snapshot("a", "b"), before=before, limits=StreamLimits(hold_s=1))
    wire.send(wire.client.subscribe(EDS, "a"))
    assert names_of(wire.receive()) == [("EDS", [], [])]
    wire.now_s += 1
    assert names_of(wire.receive()) == [("EDS", [], ["b"])]


# ---- bytes


def test_bytes_that_do_not_parse_are_refused() -> None:
    with pytest.raises(RequestRefused) as caught:
        decode(b"\xff\xff\xff")
    assert caught.value.reason is EndReason.MALFORMED


def test_point_2_request_without_a_type_is_refused_and_of_an_unknown_type_is_none() -> None:
    with pytest.raises(RequestRefused) as caught:
        decode(b"")
    assert caught.value.reason is EndReason.TYPE_MISSING
    assert decode(api.DeltaDiscoveryRequest(type_url="x").SerializeToString()).request is None
