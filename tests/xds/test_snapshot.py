"""snapshot.py alone: what fits together gets a content version, what does not is refused with all its problems."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pointsman.xds import api
from pointsman.xds.snapshot import TYPE_ORDER, Resource, ResourceType, Snapshot, SnapshotRefused
from sample_resources import assignment, cluster, ladder, leaf, listener, routes, snapshot, tree, tree_routes


def problems_of(build: Callable[[], Snapshot]) -> tuple[str, ...]:
    with pytest.raises(SnapshotRefused) as caught:
        build()
    return caught.value.problems


def test_point_5_versions_depend_on_content_alone() -> None:
    first, second = snapshot("a", "b"), snapshot("a", "b")
    assert first.version == second.version
    assert first.type_versions == second.type_versions
    assert first.of(ResourceType.CLUSTER)["a"].version == second.of(ResourceType.CLUSTER)["a"].version


def test_point_5_order_of_arrival_is_no_content() -> None:
    assert snapshot("a", "b", used="a").version == snapshot("b", "a", used="a").version


def test_point_5_version_is_the_known_hash_of_the_bytes() -> None:
    # Written out, so that a change of the hash (which would resend everything to everyone) does not slip in.
    assert Resource.of(cluster("a")).version == "a9fa22e7779f983e"


def test_change_of_one_resource_changes_its_type_and_the_whole_and_nothing_else() -> None:
    before, after = snapshot("a", ports={"a": 1}), snapshot("a", ports={"a": 2})
    changed = [kind for kind in TYPE_ORDER if before.type_versions[kind] != after.type_versions[kind]]
    assert changed == [ResourceType.ENDPOINTS]
    assert before.version != after.version


def test_types_stand_in_dependency_order() -> None:
    assert [kind.label for kind in TYPE_ORDER] == ["CDS", "EDS", "LDS", "RDS"]


def test_equal_resources_of_the_previous_snapshot_are_reused() -> None:
    before = snapshot("a", "b")
    after = Snapshot.build(
        [cluster("a"), cluster("b", timeout_s=9)],
        [assignment("a", 9_000), assignment("b", 9_000)],
        [listener("in", "main")],
        [routes("main", "a", "b")],
        previous=before,
    )
    clusters = ResourceType.CLUSTER
    assert before.of(clusters)["a"] is after.of(clusters)["a"]
    assert before.of(clusters)["b"] is not after.of(clusters)["b"]
    assert before.references_of(ResourceType.ROUTES, "main") is after.references_of(ResourceType.ROUTES, "main")


def test_rendered_resources_are_taken_as_they_are() -> None:
    rendered = Resource.of(cluster("a"))
    built = Snapshot.build([rendered], [Resource.of(assignment("a"))])
    assert rendered is built.of(ResourceType.CLUSTER)["a"]


def test_empty_snapshot_is_legal() -> None:
    assert dict(Snapshot.build().of(ResourceType.CLUSTER)) == {}


def test_snapshot_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        snapshot("a").of(ResourceType.CLUSTER)["b"] = Resource.of(cluster("b"))  # type: ignore[index]


def test_point_22_cluster_without_assignment_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build([cluster("a")]))
    assert found == 'cluster "a": takes its endpoints from "a", which is not in the snapshot; add it, even empty'


def test_point_22_empty_assignment_is_enough() -> None:
    assert "a" in Snapshot.build([cluster("a")], [assignment("a")]).of(ResourceType.ENDPOINTS)


def test_point_26_assignment_without_cluster_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build([], [assignment("a")]))
    assert found == 'assignment "a": no cluster takes its endpoints from it; add the cluster or drop the assignment'


def test_point_26_route_to_unknown_cluster_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build(routes=[routes("main", "nowhere")]))
    assert 'route configuration "main": names cluster "nowhere", which is not in the snapshot' in found


def test_point_26_leaf_to_unknown_cluster_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build(routes=[tree_routes("main", tree({"m": leaf("nowhere")}))]))
    assert 'names cluster "nowhere"' in found


def test_point_26_ladder_with_unknown_child_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build([ladder("l", ["nowhere"])]))
    assert 'cluster "l": names cluster "nowhere"' in found


def test_point_26_listener_with_unknown_routes_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build(listeners=[listener("in", "main")]))
    assert (
        found
        == 'listener "in": takes its routes from "main", which is not in the snapshot; add the route configuration'
    )


def test_route_to_a_static_cluster_of_the_bootstrap_is_legal() -> None:
    built = Snapshot.build(routes=[routes("main", "agent")], static_clusters=["agent"])
    assert frozenset({"agent"}) == built.references_of(ResourceType.ROUTES, "main").clusters


def test_all_problems_are_reported_at_once() -> None:
    found = problems_of(
        lambda: Snapshot.build(
            [cluster("a"), cluster("a"), cluster(""), ladder("l", ["x"])],
            [assignment("b")],
            [listener("in", "r")],
            [routes("q", "y", "z")],
        )
    )
    parts = ("given twice", "no name", '"x"', 'from "a"', 'assignment "b"', 'routes from "r"', '"y"', '"z"')
    assert len(parts) == len(found)
    assert all(any(part in problem for problem in found) for part in parts)


def test_rendered_resource_of_another_type_is_refused() -> None:
    (found,) = problems_of(lambda: Snapshot.build([Resource.of(assignment("a"))]))
    assert found == 'cluster "a": found type EDS, expected CDS'


def test_rendered_resource_that_does_not_parse_is_refused() -> None:
    broken = Resource("a", ResourceType.CLUSTER, b"\xff", "v")
    (found,) = problems_of(lambda: Snapshot.build([broken]))
    assert found == 'cluster "a": the body does not parse as Cluster'


def test_body_is_not_shown() -> None:
    assert "body" not in repr(Resource.of(cluster("a")))


def test_parse_returns_the_message() -> None:
    parsed = Resource.of(cluster("a")).parse()
    assert isinstance(parsed, api.Cluster)
    assert parsed.name == "a"


def test_point_36_lifetime_is_content_and_is_kept_when_resources_are_reused() -> None:
    plain, lasting = Resource.of(cluster("a")), Resource.of(cluster("a"), ttl_s=30)
    assert plain.body == lasting.body
    assert plain.version != lasting.version != Resource.of(cluster("a"), ttl_s=31).version
    first = Snapshot.build([lasting], [assignment("a")])
    assert first.of(ResourceType.CLUSTER)["a"].ttl_s == 30
    assert Snapshot.build([Resource.of(cluster("a"), ttl_s=30)], [assignment("a")], previous=first) == first
    assert Snapshot.build([plain], [assignment("a")], previous=first).of(ResourceType.CLUSTER)["a"].ttl_s is None
