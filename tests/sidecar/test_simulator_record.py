"""What GET /_seen shows."""

from __future__ import annotations

from pointsman.sidecar.simulator_record import MAX_BODY_BYTES, MAX_REQUESTS, Record, SeenRequest, rendered_request


def _request(body: bytes = b"", body_bytes: int | None = None, path: str = "/") -> SeenRequest:
    return SeenRequest("POST", path, ((b"X-A", b"1"),), body, len(body) if body_bytes is None else body_bytes)


def test_text_body_is_shown_as_it_came() -> None:
    assert rendered_request(_request('{"a": "é"}'.encode())) == {
        "method": "POST",
        "path": "/",
        "headers": {"x-a": "1"},
        "body": '{"a": "é"}',
    }


def test_binary_body_is_base64() -> None:
    shown = rendered_request(_request(b"\xff\x00"))
    assert (shown["bodyBase64"], "body" in shown) == ("/wA=", False)


def test_cut_body_says_its_length_and_survives_a_split_character() -> None:
    cut = ("a" * (MAX_BODY_BYTES - 1) + "é").encode()[:MAX_BODY_BYTES]
    shown = rendered_request(_request(cut, MAX_BODY_BYTES + 1))
    assert (shown["body"], shown["bodyBytes"]) == ("a" * (MAX_BODY_BYTES - 1), MAX_BODY_BYTES + 1)


def test_character_split_without_a_cut_is_binary() -> None:
    assert "bodyBase64" in rendered_request(_request("é".encode()[:1]))


def test_repeated_headers_are_joined_under_their_lower_case_name() -> None:
    raw = ((b"X-A", b"1"), (b"x-b", b"\xe9"), (b"x-a", b"2"))
    assert rendered_request(SeenRequest("GET", "/", raw, b"", 0))["headers"] == {"x-a": "1, 2", "x-b": "é"}


def test_only_the_last_thousand_are_kept() -> None:
    record = Record()
    for number in range(MAX_REQUESTS + 5):
        record.add(_request(path=f"/{number}"))
    shown = record.rendered()["requests"]
    assert isinstance(shown, list)
    assert (len(shown), shown[0]["path"], shown[-1]["path"]) == (1_000, "/5", "/1004")


def test_cleared_record_is_empty() -> None:
    record = Record()
    record.add(_request())
    record.clear()
    assert record.rendered() == {"requests": []}
