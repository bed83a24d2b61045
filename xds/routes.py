"""Route table -> RouteConfiguration: the tree as nested matchers, each leaf a Route.

One virtual host whose `matcher` walks model, pin, route and class as `router.decide` does. Rows keep their rendered
form as long as they are equal, so a changed weight costs one row and the assembly. Refuses nothing: the table is
already checked; Envoy's own limits are set wide enough for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pointsman.router.decide import SESSION_TTL, class_quality_percent
from pointsman.router.intent import MODELS_PATH, paths_of
from pointsman.router.number_regex import NUMBER_REGEX, at_least, at_most, below
from pointsman.router.policy import HeaderMatch, Intent, MatchKind, PathMatch, QosClass
from pointsman.router.request import (
    CLASS_HEADER,
    INTENT_HEADER,
    LATENCY_HEADER,
    PIN_HEADER,
    QUALITY_HEADER,
    SESSION_TTL_HEADER,
    TTFT_HEADER,
)
from pointsman.router.table import (
    Arm,
    Branch,
    Branches,
    ClassChoice,
    Leaf,
    ModelNode,
    Outcome,
    Reason,
    Refusal,
    Row,
    Table,
)
from pointsman.xds import matchers
from pointsman.xds.api import (
    Any,
    HeaderValueOption,
    Matcher,
    PreviousHostsPredicate,
    PreviousPrioritiesConfig,
    Route,
    RouteConfiguration,
    pack,
)
from pointsman.xds.names import (
    MARK_HEADER,
    METADATA,
    MODEL_HEADER,
    MODELS_ROW,
    REASON_HEADER,
    ROUTES,
    TARGET_HEADER,
    TARGET_KEY,
    TRACE_HEADER,
)

MAX_DIRECT_RESPONSE_BYTES = 1_048_576
"""Envoy's default of 4 KiB is too small for a long list of models."""

RETRY_BASE_MS = 5
"""Back-off before the first retry (doubles, jittered): retries go to another rung, so they need not wait long."""

HOST_SELECTION_ATTEMPTS = 5
"""How often Envoy looks for an endpoint that was not tried before it takes one that was."""

_STATUS = re.compile(r"[0-9]{3}")
_NUMERIC_HEADERS = (TTFT_HEADER, LATENCY_HEADER, QUALITY_HEADER)
_QUERY = r"(\?.*)?"


class RouteRenderer:
    """Renders tables of one listener; keeps the packed rows of the last one."""

    def __init__(self, *, answers_headers: bool = True, traces: bool = False, has_scanner: bool = True) -> None:
        """`answers_headers`: tell clients target, reason and trace id; `traces`: there is a trace id to tell.

        `has_scanner`: the scanner shortens the reason's details on the way out; without it they are not written.
        """
        self._answers_headers = answers_headers
        self._traces = traces
        self._has_scanner = has_scanner
        self._rows: dict[str, tuple[Leaf, Any]] = {}
        self._nodes: dict[str, tuple[ModelNode, Refusal, Matcher.OnMatch]] = {}

    def render(self, table: Table) -> RouteConfiguration:
        """Return the whole RouteConfiguration of the table."""
        rows, nodes = self._rows, self._nodes
        self._rows = {leaf.name: rows[leaf.name] for leaf in table.leaves() if leaf.name in rows}
        self._nodes = {node.key: nodes[node.key] for node in table.nodes if node.key in nodes}
        config = RouteConfiguration(name=ROUTES)
        config.max_direct_response_body_size_bytes.value = MAX_DIRECT_RESPONSE_BYTES
        host = config.virtual_hosts.add(name=ROUTES, domains=["*"])
        host.include_request_attempt_count = True
        host.request_headers_to_remove.append(MODEL_HEADER)
        host.response_headers_to_remove.append(MARK_HEADER)
        if self._answers_headers:
            host.response_headers_to_add.append(_header(TARGET_HEADER, f"%UPSTREAM_METADATA({METADATA}:{TARGET_KEY})%"))
            if self._traces:
                host.response_headers_to_add.append(_header(TRACE_HEADER, "%TRACE_ID%"))
        host.matcher.CopyFrom(self._root(table).matcher)
        return config

    def _root(self, table: Table) -> Matcher.OnMatch:
        nodes = {node.key: self._node(node, table) for node in table.nodes}
        by_model = matchers.tree(MODEL_HEADER, nodes, self._act(table.unknown_model))
        bad_ttl = matchers.all_of(
            (
                matchers.present(SESSION_TTL_HEADER),
                matchers.negate(matchers.regex(SESSION_TTL_HEADER, SESSION_TTL.pattern)),
            )
        )
        asks_for_models = matchers.all_of(
            (
                matchers.regex(":path", re.escape(MODELS_PATH) + r"(/.*|\?.*)?"),
                matchers.any_of((matchers.exact(":method", "GET"), matchers.exact(":method", "HEAD"))),
            )
        )
        single = {f"{MODELS_PATH}/{name}": matchers.act(self._models(_model(name))) for name in table.listed_models}
        listed = {"object": "list", "data": [_model(name) for name in table.listed_models]}
        models = matchers.listing(
            ((matchers.regex(":path", re.escape(MODELS_PATH) + _QUERY), matchers.act(self._models(listed))),),
            matchers.tree(":path", single, self._act(table.unknown_model)),
        )
        return matchers.listing(
            ((bad_ttl, self._act(table.bad_session_ttl)), (asks_for_models, models)),
            by_model,
        )

    def _node(self, node: ModelNode, table: Table) -> Matcher.OnMatch:
        """Return the model's part of the tree, as it was while nothing in it has changed."""
        kept = self._nodes.get(node.key)
        if kept is not None and kept[:2] == (node, table.contradictory_pin):
            return kept[2]
        made = self._make_node(node, table)
        self._nodes[node.key] = (node, table.contradictory_pin, made)
        return made

    def _make_node(self, node: ModelNode, table: Table) -> Matcher.OnMatch:
        pins = {version: self._branches(branches) for version, branches in node.pins}
        repeated = [
            (matchers.regex(PIN_HEADER, f" *{re.escape(version)}( *, *{re.escape(version)} *)+"), on_match)
            for version, on_match in pins.items()
        ]
        absent = matchers.listing(
            (
                *repeated,
                (matchers.contains(PIN_HEADER, ","), self._act(table.contradictory_pin)),
                (matchers.present(PIN_HEADER), self._act(node.unknown_version)),
            ),
            self._branches(node.unpinned),
        )
        return matchers.tree(PIN_HEADER, pins, absent)

    def _branches(self, branches: Branches) -> Matcher.OnMatch:
        otherwise = self._act(branches.otherwise)
        cases: list[tuple[Matcher.MatcherList.Predicate, Matcher.OnMatch]] = []
        for branch in branches.branches:
            outcome = self._outcome(branch.outcome)
            predicates = _conditions(branch)
            if not predicates:
                otherwise = outcome
                break
            cases.append((matchers.all_of(predicates), outcome))
        return matchers.listing(cases, otherwise)

    def _outcome(self, outcome: Outcome) -> Matcher.OnMatch:
        if not isinstance(outcome, ClassChoice):
            return self._act(outcome)
        numeric = [matchers.present(header) for header in _NUMERIC_HEADERS]
        unreadable = [
            matchers.all_of((matchers.present(header), matchers.negate(matchers.regex(header, NUMBER_REGEX))))
            for header in _NUMERIC_HEADERS
        ]
        by_number = matchers.listing(
            (
                (matchers.present(CLASS_HEADER), self._act(outcome.unknown)),
                (matchers.negate(matchers.any_of(numeric)), self._act(outcome.default)),
                (matchers.any_of(unreadable), self._act(outcome.unreadable)),
                *((_satisfied(qos), self._act(leaf)) for qos, leaf in outcome.numeric),
            ),
            self._act(outcome.unmet),
        )
        named = {name: self._act(leaf) for name, leaf in outcome.named}
        return matchers.tree(CLASS_HEADER, named, by_number)

    def _act(self, leaf: Leaf) -> Matcher.OnMatch:
        kept = self._rows.get(leaf.name)
        # Compared, not hashed: a row is a deep value, and most rows are what they were.
        if kept is None or kept[0] != leaf:
            packed = pack(self._refusal(leaf) if isinstance(leaf, Refusal) else self._row(leaf))
            kept = self._rows[leaf.name] = (leaf, packed)
        return matchers.act(kept[1])

    def _refusal(self, refusal: Refusal) -> Route:
        route = _direct_route(refusal.name, refusal.status, refusal.message)
        if self._answers_headers:
            route.response_headers_to_add.append(_header(REASON_HEADER, Reason.REFUSED.value))
        if refusal.retry_after_s is not None:
            route.response_headers_to_add.append(_header("retry-after", str(refusal.retry_after_s)))
        return route

    def _models(self, answer: Mapping[str, object]) -> Any:
        """What the API says of models, from policy."""
        route = _direct_route(MODELS_ROW, 200, json.dumps(answer))
        route.response_headers_to_add.append(_header("content-type", "application/json"))
        if self._answers_headers:
            route.response_headers_to_add.append(_header(REASON_HEADER, Reason.LISTED.value))
        return pack(route)

    def _row(self, row: Row) -> Route:
        route = Route(name=row.name)
        route.match.prefix = "/"
        action = route.route
        action.timeout.FromMilliseconds(row.timeouts.total_ms)
        action.idle_timeout.FromMilliseconds(row.timeouts.idle_ms)
        for header in row.stick_by:
            action.hash_policy.add(terminal=True).header.header_name = header
        split = action.weighted_clusters
        split.use_hash_policy.value = bool(row.stick_by)
        for arm in row.arms:
            for ladder, weight in zip((arm.ladder, arm.ladder.bypass), arm.weights, strict=True):
                cluster = split.clusters.add(name=ladder.name)
                cluster.weight.value = weight
                if self._answers_headers:
                    cluster.response_headers_to_add.append(_header(REASON_HEADER, self._reason(row, arm)))
        if row.timeouts.first_byte_ms:
            action.retry_policy.per_try_timeout.FromMilliseconds(row.timeouts.first_byte_ms)
        if row.retries:
            _set_retries(route, row)
        return route

    def _reason(self, row: Row, arm: Arm) -> str:
        """The reason, with what the scanner needs to tell a fallback from it (sidecar/scan.c)."""
        label = row.arm_label(arm)
        if not self._has_scanner:
            return label
        return f"{label};arm={arm.ladder.first_target or 'canned'};attempt=%UPSTREAM_REQUEST_ATTEMPT_COUNT%"


def _set_retries(route: Route, row: Row) -> None:
    policy = route.route.retry_policy
    codes = [int(condition) for condition in row.retry_on if _STATUS.fullmatch(condition)]
    words = [condition for condition in row.retry_on if not _STATUS.fullmatch(condition)]
    if codes:
        words.append("retriable-status-codes")
        policy.retriable_status_codes.extend(codes)
    if row.low_confidence_below is not None and row.improvable:
        words.append("retriable-headers")
        unsure = policy.retriable_headers.add(name=MARK_HEADER).string_match.safe_regex
        targets = "|".join(re.escape(target) for target in row.improvable)
        unsure.regex = rf"({below(row.low_confidence_below)})\|({targets})"
    policy.retry_on = ",".join(words)
    policy.num_retries.value = row.retries
    policy.retry_back_off.base_interval.FromMilliseconds(RETRY_BASE_MS)
    policy.retry_back_off.max_interval.FromMilliseconds(RETRY_BASE_MS * 10)
    # Where a rung has several endpoints, or is the only one, the retry goes to another endpoint.
    predicate = policy.retry_host_predicate.add(name="envoy.retry_host_predicates.previous_hosts")
    predicate.typed_config.CopyFrom(pack(PreviousHostsPredicate()))
    policy.host_selection_retry_max_attempts = HOST_SELECTION_ATTEMPTS
    policy.retry_priority.name = "envoy.retry_priorities.previous_priorities"
    policy.retry_priority.typed_config.CopyFrom(pack(PreviousPrioritiesConfig(update_frequency=1)))


def _conditions(branch: Branch) -> list[Matcher.MatcherList.Predicate]:
    predicates = []
    if branch.intents:
        predicates.append(_intent(branch.intents))
    if branch.paths:
        predicates.append(matchers.any_of(_path(match) for match in branch.paths))
    predicates += [_header_condition(match) for match in branch.headers]
    return predicates


def _intent(intents: tuple[Intent, ...]) -> Matcher.MatcherList.Predicate:
    named = matchers.regex(INTENT_HEADER, "|".join(re.escape(intent.value) for intent in intents))
    paths = paths_of(intents)
    if not paths:
        return named
    implied = matchers.all_of(
        (
            matchers.regex(":path", f"({'|'.join(re.escape(path) for path in paths)}){_QUERY}"),
            matchers.negate(matchers.regex(INTENT_HEADER, "|".join(re.escape(intent.value) for intent in Intent))),
        )
    )
    return matchers.any_of((implied, named))


def _path(match: PathMatch) -> Matcher.MatcherList.Predicate:
    if match.kind is MatchKind.PREFIX:
        return matchers.prefix(":path", match.value)
    expression = re.escape(match.value) if match.kind is MatchKind.EXACT else match.value
    return matchers.regex(":path", f"({expression}){_QUERY}")


def _header_condition(match: HeaderMatch) -> Matcher.MatcherList.Predicate:
    if match.kind is MatchKind.EXACT:
        return matchers.exact(match.name, match.value)
    if match.kind is MatchKind.PREFIX:
        return matchers.prefix(match.name, match.value)
    if match.kind is MatchKind.REGEX:
        return matchers.regex(match.name, match.value)
    if match.kind is MatchKind.RANGE:
        return matchers.all_of(
            (
                matchers.regex(match.name, f"({at_least(match.range_start)})"),
                matchers.negate(matchers.regex(match.name, f"({at_least(match.range_end)})")),
            )
        )
    return matchers.present(match.name)


def _satisfied(qos: QosClass) -> Matcher.MatcherList.Predicate:
    """All numeric demands that are there are met by the class; a missing one demands nothing."""
    bounds = (
        (TTFT_HEADER, at_least(qos.latency_budget_ms)),
        (LATENCY_HEADER, at_least(qos.latency_budget_ms)),
        (QUALITY_HEADER, at_most(class_quality_percent(qos))),
    )
    return matchers.all_of(
        matchers.any_of((matchers.regex(header, expression), matchers.negate(matchers.present(header))))
        for header, expression in bounds
    )


def _header(name: str, value: str) -> HeaderValueOption:
    option = HeaderValueOption(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
    option.header.key = name
    option.header.value = value
    return option


def _direct_route(name: str, status: int, body: str) -> Route:
    route = Route(name=name)
    route.match.prefix = "/"
    route.direct_response.status = status
    route.direct_response.body.inline_string = body
    return route


def _model(name: str) -> dict[str, object]:
    """The API's model object; `created` 0: policy does not say when a model was made."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "pointsman"}
