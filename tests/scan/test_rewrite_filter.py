"""scan.c in a real Envoy, filter `rewrite`: in an aggregate cluster's upstream chain it names the model per rung."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import scan_lab
from scan_lab import JSON_PATH, TYPE, Envoy, Script, Server

pytestmark = [pytest.mark.envoy, pytest.mark.usefixtures("envoy_is_there")]

JSON = {"content-type": "application/json"}
FAILS = Script(status="503 Service Unavailable")
NAME_PER_RUNG = {
    "name": "name",
    "typed_config": {
        "@type": f"{TYPE}.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {
            "request_mutations": [
                {"remove": "x-pm-rewrite"},
                {
                    "append": {
                        "header": {"key": "x-pm-rewrite", "value": "%UPSTREAM_METADATA(pointsman:rewrite)%"},
                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                    }
                },
            ]
        },
    },
}


@dataclass(frozen=True, slots=True)
class Rungs:
    """Envoy, and the servers of a ladder: a long name, a short one, and one that keeps the client's."""

    envoy: Envoy
    servers: tuple[Server, Server, Server]

    def post(self, body: bytes | Iterator[bytes], headers: dict[str, str] | None = None) -> int:
        """Send a request; the first two rungs fail, so that all three see it."""
        for server in self.servers:
            server.seen.clear()
        return self.envoy.request("POST", JSON_PATH, body, JSON | (headers or {}))[0]

    def bodies(self) -> list[bytes]:
        """What each rung got; each is whole, and says so."""
        for server in self.servers:
            (seen,) = server.seen
            assert seen.headers.get("content-length", str(len(seen.body))) == str(len(seen.body))
            assert not any(name.startswith("x-pm-") for name in seen.headers)
        return [server.seen[0].body for server in self.servers]


@pytest.fixture(scope="module")
def rungs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rungs]:
    """A ladder of three rungs."""
    folder = tmp_path_factory.mktemp("rewrite")
    with ExitStack() as stack:
        long, short, same = servers = tuple(stack.enter_context(Server()) for _ in range(3))
        long.answers[JSON_PATH] = short.answers[JSON_PATH] = FAILS
        clusters = [
            scan_lab.cluster("long", long.port, rewrite="org/a-much-longer-model-name"),
            scan_lab.cluster("short", short.port, rewrite="s"),
            scan_lab.cluster("same", same.port),
            scan_lab.ladder(
                "ladder",
                ["long", "short", "same"],
                [NAME_PER_RUNG, scan_lab.module("rewrite", "inspect_body_bytes=4194304")],
            ),
        ]
        routes = [{"match": {"prefix": "/"}, "route": scan_lab.climbing("ladder", 3)}]
        static = scan_lab.bootstrap(routes, clusters, scan_lab.module("scan", f"json_path={JSON_PATH}"), folder)
        envoy = stack.enter_context(scan_lab.running(static, folder))
        yield Rungs(envoy, servers)


BODIES = [
    b'{"model":"$"}',
    b' {"x":"\\"model\\":\\"m\\"", "model" : "$" , "n":12345678901234567890,"f":1.0,"e":1E5,"u":"\\u00e9\xc3\xa9"}\r\n',
    b'{"model":"$","y":{"model":"inner"},"mo\\u0064el":"$","z":["model","m"]}',
    b'{"model":"$","x":"' + b'a\\"' * 100_000 + b'"}',
    b'{"x":"' + b"a" * 300_000 + b'","model":"$"}',
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("chunked", [False, True])
def test_each_rung_gets_its_name_and_all_other_bytes(rungs: Rungs, body: bytes, *, chunked: bool) -> None:
    sent = body.replace(b"$", b"m1")
    status = rungs.post(iter([sent[i : i + 30_001] for i in range(0, len(sent), 30_001)]) if chunked else sent)
    assert status == 200
    expected = [body.replace(b"$", name) for name in (b"org/a-much-longer-model-name", b"s", b"m1")]
    assert expected == rungs.bodies()


@pytest.mark.parametrize("size", [3, 10, 16_000])
@pytest.mark.parametrize("length", [False, True])
def test_the_last_bytes_of_a_body_may_come_with_its_end(rungs: Rungs, size: int, *, length: bool) -> None:
    body = b'{"model":"m1","x":"' + b"a" * 32_000 * (size == 16_000) + b'"}'
    for server in rungs.servers:
        server.seen.clear()
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    headers = JSON | ({"content-length": str(len(body))} if length else {})
    scan_lab.http2_post(rungs.envoy.port, JSON_PATH, pieces, headers)
    expected = [body.replace(b"m1", name) for name in (b"org/a-much-longer-model-name", b"s", b"m1")]
    assert expected == rungs.bodies()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"messages":[]}', {}),
        (b'{"a":{"model":"m1"}}', {}),
        (gzip.compress(b'{"model":"m1"}'), {"content-encoding": "gzip"}),
        (b'{"model":"m1"}'.ljust(4_194_304), {}),
        (b'{"model":"m1"}'.ljust(5_000_000), {}),
        (b"{" + b",".join([b'"model":"m"'] * 9) + b"}", {}),
    ],
    ids=["no model", "inner model", "encoded", "as large as may be", "too large", "too many duplicates"],
)
def test_bodies_that_pass_as_they_are(rungs: Rungs, body: bytes, headers: dict[str, str]) -> None:
    assert rungs.post(body, headers) == 200
    assert [body] * 3 == rungs.bodies()


def test_a_client_cannot_name_the_model_by_header(rungs: Rungs) -> None:
    assert rungs.post(b'{"model":"m1"}', {"x-pm-rewrite": "evil"}) == 200
    assert rungs.bodies()[2] == b'{"model":"m1"}'


def test_requests_without_a_body_pass(rungs: Rungs) -> None:
    assert rungs.envoy.request("GET", "/x")[0] == 200
