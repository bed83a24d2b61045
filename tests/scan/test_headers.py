"""scan_headers.h: media types, and the reason that a client sees."""

from __future__ import annotations

import pytest
from scan_pure import Media, Scanner


@pytest.mark.parametrize(
    ("content_type", "media"),
    [
        (b"", Media.ABSENT),
        (b"  ", Media.ABSENT),
        (b"; charset=utf-8", Media.ABSENT),
        (b"application/json", Media.JSON),
        (b"Application/JSON; charset=utf-8", Media.JSON),
        (b"application/json;", Media.JSON),
        (b" application/json ;x", Media.JSON),
        (b"application/vnd.api+json", Media.JSON),
        (b"application/ld+JSON; profile=x", Media.JSON),
        (b"application/+json", Media.OTHER),
        (b"application/jsonx", Media.OTHER),
        (b"application/x-json", Media.OTHER),
        (b"text/json", Media.OTHER),
        (b"text/plain; application/json", Media.OTHER),
        (b"multipart/form-data; boundary=+json", Media.OTHER),
        (b"text/event-stream", Media.SSE),
        (b"text/event-stream; charset=utf-8", Media.SSE),
        (b"application/grpc", Media.GRPC),
        (b"application/grpc+proto", Media.GRPC),
        (b"application/grpc-web+json", Media.GRPC),
    ],
)
def test_media_types(scanner: Scanner, content_type: bytes, media: Media) -> None:
    assert media == scanner.media(content_type)


@pytest.mark.parametrize(
    ("reason", "target", "visible"),
    [
        (b"canary;arm=chat@v2;attempt=1", b"chat@v2", b"canary"),
        (b"canary;arm=chat@v2;attempt=2", b"chat@v2", b"canary;attempt=2"),
        (b"canary;arm=chat@v2;attempt=1", b"chat@v1", b"fallback;attempt=1"),
        (b"canary;arm=chat@v2;attempt=3", b"chat@v1", b"fallback;attempt=3"),
        (b"canary;arm=chat@v2;attempt=2", b"-", b"fallback;attempt=2"),
        (b"canary;arm=chat@v2;attempt=2", b"", b"fallback;attempt=2"),
        (b"canary;arm=chat@v2", b"chat@v2", b"canary"),
        (b"canary;arm=chat@v2;attempt=x", b"chat@v2", b"canary"),
        (b"qos;arm=a;attempt=1", b"a", b"qos"),
        (b"qos;class=unmet;arm=a;attempt=2", b"a", b"qos;class=unmet;attempt=2"),
        (b"default;class=unknown;arm=a;attempt=1", b"a", b"default;class=unknown"),
        (b"canary;arm=;attempt=1", b"", None),
        (b"canary", b"chat@v2", None),
        (b"canary;farm=a;attempt=1", b"a", None),
        (b"refused", b"", None),
    ],
)
def test_reason_says_who_answered_and_when(
    scanner: Scanner, reason: bytes, target: bytes, visible: bytes | None
) -> None:
    assert visible == scanner.reason(reason, target)


def test_reason_too_long_to_rewrite_is_left(scanner: Scanner) -> None:
    assert scanner.reason(b"x" * 200 + b";arm=a;attempt=1", b"a") is None
