"""A request as the table sees it: method, path, header lines and, where it is read, the body.

`joined` is the one view of repeated headers that the table uses: lines joined by a comma, as Envoy's matcher inputs
join them. Only the sticky hash looks at single lines.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERNAL_PREFIXES = ("x-pm-", "x-pointsman-", "x-envoy-")
"""Headers that only pointsman and Envoy may set; a client's are removed before any row is matched."""

INTERNAL_HEADERS = ("x-gateway-destination-endpoint",)
"""Single names that are removed like the prefixes above."""

PIN_HEADER = "model-version"
PIN_ALIAS = "model_version"
CLASS_HEADER = "x-qos-class"
CLASS_ALIAS = "x-gateway-inference-objective"
TTFT_HEADER = "x-slo-ttft-ms"
LATENCY_HEADER = "x-qos-latency-ms"
QUALITY_HEADER = "x-qos-min-quality"
INTENT_HEADER = "x-intent"
SESSION_TTL_HEADER = "x-session-ttl"


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent. Header names are lower-case; `path` keeps its query; `body` None: there was none.

    Header values are the bytes of the wire as latin-1 text: `on_the_wire` makes them from what a person wrote.
    """

    method: str = "POST"
    path: str = "/v1/chat/completions"
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None

    def lines(self, name: str) -> tuple[str, ...]:
        """Return the header's lines in order."""
        return tuple(value for key, value in self.headers if key == name)

    def joined(self, name: str) -> str | None:
        """Return the header's lines joined by a comma, or None when it is absent."""
        lines = self.lines(name)
        return ",".join(lines) if lines else None


def on_the_wire(text: str) -> str:
    """Return the text's UTF-8 bytes as latin-1 text, as a client's library sends it."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def is_internal(name: str) -> bool:
    """Tell whether a client's header of that name is removed at entry."""
    return name.startswith(INTERNAL_PREFIXES) or name in INTERNAL_HEADERS


def admit(request: Request) -> Request:
    """Return the request as the table sees it: internal headers gone, aliases folded into the names they stand for.

    The version alias is appended to `model-version` (so that two different values contradict each other); the class
    alias counts only where `x-qos-class` is absent.
    """
    headers = [(name, value) for name, value in request.headers if not is_internal(name)]
    alias_lines = request.lines(PIN_ALIAS)
    if alias_lines and alias_lines[0]:
        headers.append((PIN_HEADER, alias_lines[0]))
    objective = request.lines(CLASS_ALIAS)
    if objective and objective[0] and not request.lines(CLASS_HEADER):
        headers.append((CLASS_HEADER, objective[0]))
    return Request(request.method, request.path, tuple(headers), request.body)
