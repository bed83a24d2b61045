"""Names that our Envoy resources and our code share: clusters, filters, metadata keys, headers. One place, no logic."""

from __future__ import annotations

LISTENER = "pointsman"
ROUTES = "pointsman"
XDS_CLUSTER = "pointsman_xds"
LOG_CLUSTER = "pointsman_log"
OTLP_CLUSTER = "pointsman_otlp"
NODE_CLUSTER = "pointsman"

METADATA = "pointsman"
"""Namespace of endpoint metadata and of the scanner's dynamic metadata."""

TARGET_KEY = "target"
ACCEPTS_KEY = "accepts"
"""Names that a target's server answers to, separated by commas: what the rewriting filter reads."""

CANNED_TARGET = "canned"
"""What clients, spans and metrics call a canned rung."""

MODELS_ROW = "models"
"""The row that answers the list of models."""

REQUEST_LOG = "request"
TRY_LOG = "try"
LADDER_TAG = "ladder"
TRACE_ID_TAG = "trace_id"
SPAN_ID_TAG = "span_id"

MODEL_HEADER = "x-pm-model"
CONFIDENCE_HEADER = "x-model-confidence"
MARK_HEADER = "x-pm-confidence"
"""On an answer, between the ladder and the retry policy: the confidence, a bar, and who answered."""

REWRITE_HEADER = "x-pm-rewrite"
TARGET_HEADER = "x-pointsman-target"
REASON_HEADER = "x-pointsman-reason"
TRACE_HEADER = "x-trace-id"
ATTEMPT_HEADER = "x-envoy-attempt-count"

SCANNER_MODULE = "pmscan"
SCANNER_FILTER = "scan"
REWRITE_FILTER = "rewrite"
"""The dynamic module's name and its filters' (sidecar/scan.c)."""
