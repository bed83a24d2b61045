"""Rendering as golden pairs, and the properties that every rendering has."""

from dataclasses import replace
from pathlib import Path

import pytest
from golden import as_json, assert_golden
from pointsman.router.build import build_table
from pointsman.router.policy import (
    CannedFallback,
    Endpoint,
    Match,
    Model,
    ModelFallback,
    Policy,
    QosClass,
    Route,
    Settings,
    Tracing,
    Version,
)
from pointsman.xds.api import Cluster, HttpConnectionManager, unpack
from pointsman.xds.bootstrap import BootstrapSpec, render_bootstrap
from pointsman.xds.clusters import is_ip, render_assignments, render_clusters, split_address
from pointsman.xds.render import Rendered, Renderer
from pointsman.xds.routes import RouteRenderer
from pointsman.xds.snapshot import Snapshot
from sample_policies import SUPPORT, SUPPORT_POLICY, with_route

GOLDEN = Path(__file__).parent / "golden"

SMALL = Policy(
    models=(Model("m", (Version("v1", (Endpoint("127.0.0.1:9001"),), ("m",)),)),),
    routes=(Route("r", ("m",), Match(), fallback=(CannedFallback(503, 2),)),),
)


def render(policy: Policy, *, has_scanner: bool = True) -> Rendered:
    return Renderer(has_scanner=has_scanner).render(build_table(policy), policy.settings)


def manager_of(rendered: Rendered) -> HttpConnectionManager:
    return unpack(rendered.listeners[0].filter_chains[0].filters[0].typed_config, HttpConnectionManager)


def test_clusters() -> None:
    assert_golden([as_json(cluster) for cluster in render(SMALL).clusters], GOLDEN / "clusters.json")


def test_assignments() -> None:
    assert_golden([as_json(assignment) for assignment in render(SMALL).assignments], GOLDEN / "assignments.json")


def test_routes() -> None:
    assert_golden(as_json(render(SMALL).routes[0]), GOLDEN / "routes.json")


def test_listeners_with_tracing() -> None:
    policy = replace(SMALL, settings=Settings(tracing=Tracing(otlp="127.0.0.1:4317", sample_ratio=0.25)))
    assert_golden([as_json(listener) for listener in render(policy).listeners], GOLDEN / "listeners.json")


def test_bootstrap() -> None:
    spec = BootstrapSpec("node-1", "/s/admin.sock", "/s/xds.sock", "/s/log.sock")
    assert_golden(as_json(render_bootstrap(spec)), GOLDEN / "bootstrap.json")


@pytest.mark.parametrize("policy", [SMALL, SUPPORT_POLICY, Policy()])
def test_every_rendering_is_a_consistent_snapshot(policy: Policy) -> None:
    rendered = render(policy)
    Snapshot.build(rendered.clusters, rendered.assignments, rendered.listeners, rendered.routes)


def test_equal_policies_have_equal_versions_and_a_weight_changes_routes_only() -> None:
    def versions(policy: Policy) -> dict[str, str]:
        rendered = render(policy)
        snapshot = Snapshot.build(rendered.clusters, rendered.assignments, rendered.listeners, rendered.routes)
        return {kind.label: version for kind, version in snapshot.type_versions.items()}

    before, same = versions(SUPPORT_POLICY), versions(SUPPORT_POLICY)
    after = versions(with_route(canary=replace(SUPPORT.canary, weight_parts=2500)))  # type: ignore[type-var]
    assert before == same
    assert {name for name in before if before[name] != after[name]} == {"RDS"}


def test_an_address_that_is_a_name_is_resolved_by_envoy() -> None:
    named = Model("m", (Version("v1", (Endpoint("model.internal:8000"),), ("m",)),))
    table = build_table(replace(SMALL, models=(named,)))
    cluster = next(cluster for cluster in render_clusters(table) if cluster.name == "m@v1")
    assert cluster.type == Cluster.STRICT_DNS
    assert not render_assignments(table)


@pytest.mark.parametrize(
    ("address", "parts", "ip"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80), True),
        ("[::1]:8080", ("::1", 8080), True),
        ("model.internal:1", ("model.internal", 1), False),
    ],
)
def test_addresses(address: str, parts: tuple[str, int], ip: bool) -> None:
    assert (parts, ip) == (split_address(address), is_ip(split_address(address)[0]))


def test_known_bug_39_no_total_timeout_unless_asked_for() -> None:
    for row in build_table(SUPPORT_POLICY).rows():
        assert (row.timeouts.total_ms, row.timeouts.idle_ms) == (0, 60_000)
    text = str(as_json(render(SUPPORT_POLICY).routes[0]))
    assert "'timeout': '0s'" in text
    assert "'15s'" not in text


def test_limits_are_those_of_the_aggregate_and_panic_is_off() -> None:
    for cluster in render(SUPPORT_POLICY).clusters:
        assert cluster.circuit_breakers.thresholds[0].max_retries.value > 100_000
        if cluster.name.startswith(("ladder>", "pin>")):
            continue
        assert cluster.common_lb_config.HasField("healthy_panic_threshold")
        assert cluster.common_lb_config.healthy_panic_threshold.value == 0


def test_without_the_scanner_nothing_of_it_is_rendered() -> None:
    rendered = render(SUPPORT_POLICY, has_scanner=False)
    assert [item.name for item in manager_of(rendered).http_filters] == ["envoy.filters.http.router"]
    assert "attempt=" not in str(as_json(rendered.routes[0]))


def test_answer_headers_can_be_off() -> None:
    policy = replace(SUPPORT_POLICY, settings=Settings(answer_headers=False))
    text = str(as_json(render(policy).routes[0]))
    assert "x-pointsman-target" not in text
    assert "x-pointsman-reason" not in text


def test_a_renderer_that_kept_rows_renders_as_a_new_one() -> None:
    renderer = RouteRenderer()
    for parts in (0, 500, 500, 2500, 0):
        table = build_table(with_route(canary=replace(SUPPORT.canary, weight_parts=parts)))  # type: ignore[type-var]
        assert renderer.render(table) == RouteRenderer().render(table)


def large_policy(shift: int) -> Policy:
    """20 models of 4 versions, 4 classes: the size that the design speaks of."""
    models = tuple(
        Model(
            f"model-{n}",
            tuple(
                Version(f"v{k}", (Endpoint(f"127.0.0.1:{9000 + shift + 4 * n + k}"),), (f"model-{n}",), quality=0.9)
                for k in range(4)
            ),
        )
        for n in range(20)
    )
    qos = tuple(QosClass(f"class-{k}", 100 * (k + 1), min_quality=0.9 - k / 10) for k in range(4))
    routes = tuple(
        Route(f"route-{n}", (f"model-{n}",), Match(models=(f"model-{n}",)), qos=qos, default_qos="class-1",
              fallback=(ModelFallback(f"model-{(n + 1) % 20}"), CannedFallback()))
        for n in range(20)
    )  # fmt: skip
    return Policy(models=models, routes=routes)


def test_a_large_table_stays_within_the_size_that_envoy_takes_at_once() -> None:
    config = render(large_policy(0)).routes[0]
    assert len(config.SerializeToString()) < 2_000_000
