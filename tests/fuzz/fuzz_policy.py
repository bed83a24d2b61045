"""Atheris target: bytes as a policy file → documents → policy → table → Envoy resources; nothing may raise.

Asserts that problems are told as one printable line each, that a policy is refused just when there is an error, and
that everything that is accepted can be built and rendered. Run by test_fuzz_python.py; by hand:
`python tests/fuzz/fuzz_policy.py -max_total_time=600 CORPUS tests/fuzz/seeds/policy`.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import atheris
from fuzz_words import POLICY_WORDS, change_words

with atheris.instrument_imports(include=["pointsman"]):
    from pointsman.router.build import build_table
    from pointsman.router.decide import decide
    from pointsman.router.problem import Severity
    from pointsman.router.request import Request
    from pointsman.sidecar import policy_file
    from pointsman.sidecar.attribution import Attribution
    from pointsman.xds.names import LOG_CLUSTER, XDS_CLUSTER
    from pointsman.xds.render import Renderer
    from pointsman.xds.snapshot import Snapshot

WORD = re.compile(r"[\w.+%-]+|\s+|.", re.DOTALL)
FILE = Path(tempfile.mkdtemp(prefix="pm-fuzz-")) / "policy.yaml"
BODY = b'{"model": "support-chat", "messages": []}'
ASK = Request("POST", "/v1/chat/completions", (("content-type", "application/json"), ("x-qos-latency-ms", "100")), BODY)


def take(data: bytes) -> None:
    """Take one input; an exception is a finding."""
    FILE.write_bytes(data)
    decoded = policy_file.load(FILE)
    for problem in decoded.problems:
        line = problem.render()
        assert line.isprintable(), "a problem is one printable line"
        assert problem.file, "a problem names its file"
    is_refused = any(problem.severity is Severity.ERROR for problem in decoded.problems)
    assert is_refused is (decoded.policy is None), "errors refuse a policy, and nothing else does"
    if decoded.policy is None:
        return
    table = build_table(decoded.policy)
    decide(ASK, table)
    rendered = Renderer(has_scanner=True).render(table, decoded.policy.settings)
    Attribution.of(decoded.policy, table, None)
    Snapshot.build(
        rendered.clusters,
        rendered.assignments,
        rendered.listeners,
        rendered.routes,
        static_clusters=(XDS_CLUSTER, LOG_CLUSTER),
    )


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change a policy by words as often as by bytes: what is no longer YAML reaches no decoder."""
    if seed % 3 == 0:
        return bytes(atheris.Mutate(data, max_size))
    return change_words(data, WORD, POLICY_WORDS, max_size=max_size, seed=seed)


if __name__ == "__main__":
    atheris.Setup(sys.argv, take, custom_mutator=mutate)
    atheris.Fuzz()
