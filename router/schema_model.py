"""What a Model document may say, key by key. Read by schema.py only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from pointsman.router import policy
from pointsman.router.schema_names import FILE, HOST_NAME, INTENTS, MODEL_NAME, PROVIDER, RATIO, VERSION_NAME, WORD
from pointsman.router.shape import (
    Address,
    Boolean,
    Duration,
    Integer,
    Key,
    Listing,
    Number,
    Record,
    Size,
    Text,
    Words,
    words_of,
)

_UINT32 = 0xFFFF_FFFF


def _first(**fields: object) -> object:
    """Build of a record that only wraps one value."""
    return next(iter(fields.values()), None)


def _version(**fields: object) -> policy.Version:
    # The default of `accepts` is the model's name, which _model fills in.
    return policy.Version(**{"accepts": (), **fields})  # type: ignore[arg-type]  # decode.py checked the types


def build_model(name: str, fields: Mapping[str, object]) -> policy.Model:
    versions = cast(tuple[policy.Version, ...], fields["versions"])
    named = tuple(version if version.accepts else replace(version, accepts=(name,)) for version in versions)
    return policy.Model(name, **{**fields, "versions": named})  # type: ignore[arg-type]  # decode.py checked the types


_ENDPOINT = Record(
    (
        Key("address", Address(), "Where the server listens.", is_required=True),
        Key("node", HOST_NAME, "The machine it runs on."),
        Key("gpus", Listing(Integer(0, 1_023), is_unique=True), "Indices of the GPUs that it uses.", default="[]"),
    ),
    policy.Endpoint,
)
_SLICE = Record(
    (
        Key(
            "cgroup",
            Text("a cgroup name", re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,126}")),
            "The cgroup's name.",
            is_required=True,
        ),
        Key(
            "cpuMax",
            Text(
                '"QUOTA PERIOD" in microseconds, QUOTA may be max',
                re.compile(r"(max|[1-9][0-9]{0,11})( [1-9][0-9]{0,6})?"),
            ),
            "Written to cpu.max.",
        ),
        Key("memoryMax", Size(minimum=1 << 20), "Written to memory.max.", attr="memory_max_bytes"),
        Key("mark", Integer(1, _UINT32), "Packet mark of this version's traffic."),
        Key("markMask", Integer(1, _UINT32), "Which bits of the mark are ours."),
        Key("steering", words_of(policy.Steering), "How marked traffic reaches the canary.", default="address"),
        Key("coexist", Boolean(), "Whether other users of the mark's bits are tolerated.", default="false"),
    ),
    policy.Slice,
)
_VERSION = Record(
    (
        Key("name", VERSION_NAME, "With the model's name it is the target: model@version.", is_required=True),
        Key(
            "endpoints",
            Listing(_ENDPOINT, maximum=1_000, unique_key="address"),
            "Its server processes; may be empty while the version is scaled to zero (a warning).",
            is_required=True,
        ),
        Key(
            "accepts",
            Listing(MODEL_NAME, minimum=1, is_unique=True),
            "Names that its server answers to in a body's `model`. Absent: the model's name.",
        ),
        Key("quality", RATIO, "From the owner's evaluation."),
        Key("precision", WORD, "Such as fp16 or int8."),
        Key("precisionLoss", RATIO, "Loss against full precision."),
        Key("throughputQPS", Number(0, 1e6, "requests a second", is_open=True), "What one endpoint sustains."),
        Key(
            "cost",
            Record(
                (
                    Key("inputPerMillion", Number(0, 1e6), "Price of a million input tokens.", is_required=True),
                    Key("outputPerMillion", Number(0, 1e6), "Price of a million output tokens.", is_required=True),
                ),
                policy.Cost,
            ),
            "Price in the owner's currency.",
        ),
        Key(
            "auth",
            Record(
                (Key("secretFile", FILE, "File with the upstream credential.", is_required=True),),
                _first,
                is_secret=True,
            ),
            "Credential for the server.",
            attr="secret_file",
        ),
        Key("protocol", words_of(policy.Protocol), "HTTP/1.1, or HTTP/2 without TLS (gRPC servers).", default="http1"),
        Key("slice", _SLICE, "The cgroup that holds the version's processes."),
    ),
    _version,
)
MODEL = Record(
    (
        Key(
            "versions",
            Listing(_VERSION, minimum=1, maximum=64, unique_key="name"),
            "Releases of the model.",
            is_required=True,
        ),
        Key("provider", PROVIDER, "Sets gen_ai.provider.name and which metrics the server exposes.", default="openai"),
        Key("intents", INTENTS, "What it can do; empty: anything.", default="[]"),
        Key(
            "modalities",
            Listing(
                Words(tuple((word, word) for word in ("text", "image", "audio", "video"))), minimum=1, is_unique=True
            ),
            "What it reads.",
            default="[text]",
        ),
        Key("maxInputTokens", Integer(1, 100_000_000, "tokens"), "Longest input."),
        Key("connectTimeout", Duration(), "How long a connection may take to open.", "connect_timeout_ms", "1s"),
        Key("residency", words_of(policy.Residency), "Whether the weights are loaded.", default="resident"),
        Key("coldStartMs", Integer(0, 3_600_000, "ms"), "How long loading takes."),
        Key(
            "capability",
            Record((Key("openapi", FILE, "OpenAPI document with the AI extension.", is_required=True),), _first),
            "Capability contract.",
            attr="openapi_file",
        ),
        Key(
            "placement",
            Record(
                (
                    Key("prefer", Listing(WORD, is_unique=True), "Device types to use first.", default="[]"),
                    Key("fallback", Listing(WORD, is_unique=True), "Device types to use otherwise.", default="[]"),
                ),
                policy.Placement,
            ),
            "Device types.",
        ),
    ),
    dict,
)
