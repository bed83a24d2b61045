"""Found by tests/fuzz/fuzz_ads_stream.py: the wildcard asked for again while content was gone lost it for good."""

from __future__ import annotations

from pointsman.xds.fake_client import CDS
from pointsman.xds.refusals import Refusals
from pointsman.xds.subscription import WILDCARD, Request, Subscription
from pointsman.xds.variant import DELTA
from sample_resources import snapshot


def test_wildcard_asked_for_again_covers_content_that_is_gone_and_comes_back() -> None:
    offered, meanwhile = snapshot("a"), snapshot("b")
    subscription = Subscription(CDS, Refusals(), DELTA)
    subscription.change_names(Request(CDS, initial_versions={"a": offered.of(CDS)["a"].version}), offered)
    assert [] == list(subscription.due(offered))
    subscription.change_names(Request(CDS, subscribe=(WILDCARD,)), meanwhile)
    assert ["a"] == [resource.name for resource in subscription.due(offered)]
