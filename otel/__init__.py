"""What pointsman shows: GenAI spans, Prometheus metrics, and every name they carry.

Renders values of the core (`pointsman.router.entry`); decides nothing about traffic. `names` holds the names,
`genai_span` builds a span's message, `exporter` sends it, `metrics` counts. The only package that knows OpenTelemetry
and Prometheus.
"""
