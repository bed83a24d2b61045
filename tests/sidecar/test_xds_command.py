"""`pointsman xds status`: the lines for a terminal, the JSON, and what it says when there is nothing to ask."""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pointsman.sidecar.views import Json, xds_view
from pointsman.sidecar.xds_command import add_arguments, run, status_lines
from pointsman.xds.snapshot import ResourceType
from pointsman.xds.status import NodeIdentity, NodeStatus, Outcome, Refusal, TypeStatus

REFUSED = TypeStatus(
    ResourceType.ROUTES,
    is_subscribed=True,
    sent_version="b" * 16,
    acknowledged_version="a" * 16,
    resources_held=1,
    responses_sent=3,
    acknowledgements=2,
    nacks=1,
    refused=(Refusal(ResourceType.ROUTES, "main", "c" * 16, "missing )"),),
)
UNASKED = TypeStatus(
    ResourceType.LISTENER,
    is_subscribed=False,
    sent_version=None,
    acknowledged_version=None,
    resources_held=0,
    responses_sent=0,
    acknowledgements=0,
    nacks=0,
    refused=(),
)
NODE = NodeStatus(
    NodeIdentity("envoy-1"),
    group="default",
    is_connected=True,
    open_streams=1,
    snapshot_version="2" * 16,
    acknowledged_snapshot="1" * 16,
    outcome=Outcome.REFUSED,
    types=(REFUSED, UNASKED),
    last_refusal="missing )",
    ignored_requests=0,
    stale_requests=2,
)


@contextmanager
def admin_server(body: bytes) -> Iterator[str]:
    """Answer every GET with the body; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/xds" else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


def test_status_tells_versions_counts_refusals_and_the_last_error() -> None:
    assert [
        "envoy-1  refused, connected",
        "  snapshot 2222222222222222, acknowledged 1111111111111111",
        "  type sent              acknowledged      resources   acks  nacks",
        "  RDS  bbbbbbbbbbbbbbbb  aaaaaaaaaaaaaaaa          1      2      1",
        "    refused main cccccccccccccccc: missing )",
        "  last refusal: missing )",
        "  ignored requests 0, stale requests 2",
    ] == status_lines(shown(NODE))


def shown(*nodes: NodeStatus) -> Json:
    """The view, without what newer agents add to it."""
    view = xds_view(nodes)
    for node in view["nodes"]:  # type: ignore[attr-defined]
        for key in ("variant", "group", "agent"):
            node.pop(key, None)
    return view


def test_variant_group_and_agent_are_shown_where_the_agent_tells_them() -> None:
    view = shown(NODE)
    view["nodes"][0].update(variant="sotw", group="proxyless", agent="gRPC C-core")  # type: ignore[index]
    assert "envoy-1  refused, connected  (sotw, proxyless, gRPC C-core)" == status_lines(view)[0]


def test_no_node_is_said() -> None:
    assert ["no xDS client has connected"] == status_lines({"nodes": []})


def test_command_prints_the_lines_and_the_json_of_the_admin_server(capsys: pytest.CaptureFixture[str]) -> None:
    view = xds_view((NODE,))
    with admin_server(json.dumps(view).encode()) as address:
        assert 0 == run_command("status", "--admin", address)
        assert "\n".join(status_lines(view)) + "\n" == capsys.readouterr().out
        assert 0 == run_command("status", "--admin", address, "--json")
        assert view == json.loads(capsys.readouterr().out)


def test_proxy_of_the_environment_is_not_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with admin_server(b'{"nodes": []}') as address:
        assert 0 == run_command("status", "--admin", address)
    assert "no xDS client" in capsys.readouterr().out


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"nodes": 1}', b"not json", b"\xff"])
def test_server_that_is_no_agent_is_told(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with admin_server(body) as address:
        assert 1 == run_command("status", "--admin", address)
    assert "not with an xDS status" in capsys.readouterr().err


def test_agent_that_does_not_run_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert 1 == run_command("status", "--admin", f"127.0.0.1:{probe.getsockname()[1]}")
    err = capsys.readouterr().err
    assert ("no answer from admin server" in err, err.count("\n")) == (True, 1)


def test_address_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == run_command("status", "--admin", "127.0.0.1:port")
    assert "no answer from admin server 127.0.0.1:port" in capsys.readouterr().err
