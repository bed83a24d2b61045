"""Policies and requests drawn from a seed: for the differential test between `decide` and a real Envoy."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from pointsman.router.policy import (
    Canary,
    CannedFallback,
    Endpoint,
    Fallback,
    HeaderMatch,
    Intent,
    Match,
    MatchKind,
    Model,
    ModelFallback,
    PathMatch,
    Pin,
    PinMode,
    Policy,
    QosClass,
    Retries,
    Route,
    Settings,
    Version,
)
from pointsman.router.request import Request

INTENTS = (Intent.CHAT, Intent.COMPLETE, Intent.EMBED, Intent.SUMMARIZE)
VERSION_NAMES = ("v1", "v2.2", "v2.3-beta", "2026-11")
PATHS = (
    "/v1/chat/completions",
    "/v1/chat/completions?api-version=1",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/chat/completionsX",
    "/custom/generate",
    "/custom/other?x=/v1/embeddings",
    "/v1/audio/transcriptions",
    "/",
)


@dataclass(frozen=True)
class PolicyGenerator:
    """Draws policies whose endpoints are the given ports, one a target."""

    random: random.Random
    ports: tuple[int, ...]

    def policy(self, settings: Settings) -> Policy:
        """A policy of one to four models and one to five routes."""
        ports = iter(self.ports)
        models = tuple(self._model(f"model-{n}", ports) for n in range(self.random.randint(1, 4)))
        routes = tuple(self._route(f"route-{n}", models) for n in range(self.random.randint(1, 5)))
        return Policy(models=models, routes=routes, settings=settings)

    def _model(self, name: str, ports: object) -> Model:
        versions = []
        for version in self.random.sample(VERSION_NAMES, self.random.randint(1, 3)):
            accepts = [name, *(n for n in ("model-0", "model-1", "alias") if self.random.random() < 0.3)]
            versions.append(
                Version(
                    name=version,
                    endpoints=(Endpoint(f"127.0.0.1:{next(ports)}"),),  # type: ignore[call-overload]
                    accepts=tuple(dict.fromkeys(accepts)),
                    quality=self.random.choice((None, 0.5, 0.8, 0.905)),
                )
            )
        return Model(name=name, versions=tuple(versions))

    def _route(self, name: str, models: tuple[Model, ...]) -> Route:
        targets = tuple(model.name for model in self.random.sample(models, self.random.randint(1, len(models))))
        classes = self._classes()
        return Route(
            name=name,
            targets=targets,
            match=self._match(),
            qos=classes,
            default_qos=self.random.choice(classes).name if classes else None,
            pin=Pin(mode=self.random.choice(tuple(PinMode))),
            canary=self._canary(targets, models),
            fallback=self._fallback(models),
            retries=Retries(max_count=self.random.randint(0, 3)),
        )

    def _match(self) -> Match:
        maybe = self.random.random
        return Match(
            intents=tuple(self.random.sample(INTENTS, self.random.randint(2, 4))) if maybe() < 0.5 else (),
            models=tuple(self.random.sample(("model-0", "model-1", "alias"), self.random.randint(1, 2)))
            if maybe() < 0.2
            else (),
            paths=(
                self.random.choice(
                    (
                        PathMatch(MatchKind.EXACT, "/custom/generate"),
                        PathMatch(MatchKind.PREFIX, "/custom/"),
                        PathMatch(MatchKind.REGEX, "/v1/(chat/)?completions"),
                    )
                ),
            )
            if maybe() < 0.3
            else (),
            headers=(
                self.random.choice(
                    (
                        HeaderMatch("x-tier", MatchKind.EXACT, "gold"),
                        HeaderMatch("x-tier", MatchKind.PREFIX, "g"),
                        HeaderMatch("x-tier", MatchKind.REGEX, "(gold|silver)[0-9]*"),
                        HeaderMatch("x-tier", MatchKind.PRESENT),
                        HeaderMatch("x-size", MatchKind.RANGE, range_start=10, range_end=200),
                    )
                ),
            )
            if maybe() < 0.3
            else (),
        )

    def _classes(self) -> tuple[QosClass, ...]:
        budgets = sorted(self.random.sample((50, 120, 999, 5000), self.random.randint(0, 3)))
        return tuple(
            QosClass(f"class-{n}", budget, min_quality=self.random.choice((None, 0.5, 0.855)))
            for n, budget in enumerate(budgets)
        )

    def _canary(self, targets: tuple[str, ...], models: tuple[Model, ...]) -> Canary | None:
        fitting = [model for model in models if model.name in targets and len(model.versions) > 1]
        if not fitting or self.random.random() < 0.3:
            return None
        model = self.random.choice(fitting)
        return Canary(
            model=model.name,
            version=self.random.choice(model.versions).name,
            stick_by=self.random.choice((("x-context-id",), ("x-context-id", "x-session-id"))),
            weight_parts=self.random.choice((0, 1, 500, 2500, 5000, 9999, 10_000)),
        )

    def _fallback(self, models: tuple[Model, ...]) -> tuple[Fallback, ...]:
        rungs: list[Fallback] = []
        if self.random.random() < 0.5:
            rungs.append(ModelFallback(self.random.choice(models).name))
        if self.random.random() < 0.5:
            rungs.append(CannedFallback(self.random.choice((503, 429)), 3))
        return tuple(rungs)


@dataclass(frozen=True)
class RequestGenerator:
    """Draws requests that a policy of PolicyGenerator may see: ordinary, contradictory, hostile."""

    random: random.Random

    def request(self) -> Request:
        """One request, with its header lines in order."""
        method = self.random.choices(("POST", "GET", "PUT"), (8, 1, 1))[0]
        path = self.random.choices(
            (*PATHS, "/v1/models", "/v1/models/model-0", "/v1/models/x?y"), (9, 3, 4, 4, 1, 4, 3, 1, 1, 2, 2, 1)
        )[0]
        headers: list[tuple[str, str]] = []
        for name, values, chance in (
            ("model-version", (*VERSION_NAMES * 3, "v9", "v1,v1", "v1, v1", "v1,v2.2", ""), 0.25),
            ("model_version", (*VERSION_NAMES, "v9"), 0.05),
            ("x-intent", (*(intent.value for intent in INTENTS * 3), "rerank", "sing", "Chat", ""), 0.4),
            ("x-qos-class", ("class-0", "class-1", "class-2", "gold", ""), 0.3),
            ("x-gateway-inference-objective", ("class-0", "class-1", "gold"), 0.1),
            ("x-slo-ttft-ms", ("50", "120", "119.9", "6000", "abc", "1e3", "", "007", "12345678901"), 0.2),
            ("x-qos-latency-ms", ("999", "998", "5000", "-1"), 0.15),
            ("x-qos-min-quality", ("50", "85.5", "85.6", "0", "100"), 0.2),
            ("x-context-id", ("a", "b", "ctx-17", "", "ü", "x" * 300), 0.8),
            ("x-session-id", ("s1", "s2"), 0.3),
            ("x-session-ttl", ("60", "10m", "never", "0"), 0.05),
            ("x-tier", ("gold", "silver7", "g", "bronze"), 0.3),
            ("x-size", ("10", "150", "150.5", "200", "9", "big"), 0.3),
            ("x-pm-model", ("model-0", "nobody"), 0.1),
            ("x-envoy-retry-on", ("5xx",), 0.05),
            ("x-gateway-destination-endpoint", ("127.0.0.1:1",), 0.05),
        ):
            if self.random.random() < chance:
                lines = 2 if self.random.random() < 0.12 else 1
                headers += [(name, self.random.choice(values)) for _ in range(lines)]
        self.random.shuffle(headers)
        body = None if method == "GET" else self._body()
        if body is not None:
            headers += self._content_headers()
        return Request(method, path, tuple(headers), body)

    def _content_headers(self) -> list[tuple[str, str]]:
        kind = self.random.choices(
            (
                "application/json",
                "application/json; charset=utf-8",
                "Application/JSON",
                "application/vnd.x+json",
                "text/plain",
                "multipart/form-data; boundary=b",
                None,
            ),
            (12, 3, 1, 1, 1, 1, 2),
        )[0]
        headers = [("content-type", kind)] if kind else []
        if self.random.random() < 0.04:
            headers.append(("content-encoding", self.random.choice(("gzip", "identity", "zstd"))))
        return headers

    def _body(self) -> bytes:
        names = ("model-0", "model-1", "model-2", "model-3", "alias", "auto", "nobody")
        name = self.random.choices(names, (6, 4, 2, 1, 2, 3, 1))[0]
        if self.random.random() < 0.85:
            body: dict[str, object] = {"messages": [{"role": "user", "content": 'say "model": "nobody" \\ } ]'}]}
            if self.random.random() < 0.8:
                body["model"] = name
            if self.random.random() < 0.5:
                body |= {"temperature": 0.7, "stream": False, "stop": ["a"], "model_extra": {"model": "nobody"}}
            indent = self.random.choice((None, 2))
            return json.dumps(body, indent=indent, ensure_ascii=self.random.random() < 0.5).encode()
        quoted = json.dumps(name).encode()
        return self.random.choice(
            (
                b"",
                b" ",
                b"[]",
                b"null",
                b'"model"',
                b"{",
                b'{"model"',
                b'{"model": ' + quoted,
                b'{"model": ' + quoted + b"} x",
                b'{"model": ' + quoted + b",}",
                b'\xef\xbb\xbf{"model": ' + quoted + b"}",
                b'{"model": "nobody", "model": ' + quoted + b"}",
                b'{"model": ' + quoted + b', "model": "nobody"}',
                b'{"mo\\u0064el": ' + quoted + b"}",
                b'{"model": null}',
                b'{"model": 7}',
                b'{"model": ["model-0"]}',
                b'{"model": {"a": 1}}',
                b'{"model": "' + b"x" * 1025 + b'"}',
                b'{"model": "' + b"x" * 1024 + b'"}',
                b'{"model": "m\\u00fcnchen"}',
                b'{"model": "model-0\\n"}',
                b'{"model": "model\\u002d0"}',
                b'{"a": NaN, "model": ' + quoted + b"}",
                b'{"a": 1e400, "model": ' + quoted + b"}",
                b'{"a": "\\ud800", "model": ' + quoted + b"}",
                b'{"a": ' + b"[" * 300 + b"]" * 300 + b', "model": ' + quoted + b"}",
                b'{"a": ' + b"[" * 600 + b"]" * 600 + b"}",
                b'{"a": [}, "model": ' + quoted + b"}",
                b"{'model': 'model-0'}",
            )
        )
