"""One document, read by the schema: each mistake is one problem that says what is allowed."""

from __future__ import annotations

import pytest
from pointsman.router.decode import decode
from pointsman.router.document import Document
from pointsman.router.schema import API_VERSION
from policy_trees import document, lines_of, model, route, settings_of, tree, version


def one_version(**fields: object) -> Document:
    return model("m", version(fields.pop("name", "v1"), **fields))


MISTAKES = [
    # documents, then what the one problem must say
    ([document("Rout", "r", {})], ["kind", '"Rout"', "Model, Route, AIModelProfile, Settings", 'did you mean "Route"']),
    ([Document("p.yaml", 1, tree([]))], ["found a list", "apiVersion, kind, metadata, spec"]),
    (
        [Document("p.yaml", 1, tree({"kind": "Settings", "metadata": {"name": "a"}, "spec": {}}))],
        ["apiVersion", API_VERSION],
    ),
    ([document("Settings", "a", None)], ["Settings a spec", "found nothing", "a mapping"]),
    (
        [Document("p.yaml", 1, tree({"apiVersion": API_VERSION, "kind": "Settings", "spec": {}}))],
        ["metadata", "no such key"],
    ),
    ([model(provder="vllm")], ["spec.provder", "unknown key", 'did you mean "provider"']),
    ([model(Provider="vllm")], ["spec.Provider", 'did you mean "provider"']),
    ([one_version(quality=1.86)], ["Model m spec.versions[0].quality", "1.86", "a number from 0 to 1"]),
    ([one_version(quality=True)], ["quality", "found True", "a number from 0 to 1"]),
    ([one_version(quality=float("nan"))], ["quality", "nan"]),
    ([one_version(quality="0.9")], ["quality", '"0.9"']),
    ([one_version(throughputQPS=0)], ["throughputQPS", "above 0"]),
    ([model(maxInputTokens=5.0)], ["maxInputTokens", "5.0", "a whole number"]),
    ([model(maxInputTokens=True)], ["maxInputTokens", "True"]),
    ([model(maxInputTokens=10**400)], ["maxInputTokens", "a whole number from 1 to 100000000 tokens"]),
    ([model(connectTimeout="0s")], ["connectTimeout", "more than zero"]),
    ([model(connectTimeout="5parsecs")], ["connectTimeout", "5parsecs", "250ms, 5s, 10m or 1h"]),
    ([model(connectTimeout=5)], ["connectTimeout", "found 5", "a duration"]),
    ([model(connectTimeout="1.5s")], ["connectTimeout", "1.5s"]),
    ([model(connectTimeout="٥s")], ["connectTimeout"]),
    ([model(connectTimeout="721h")], ["connectTimeout", "at most 720h"]),
    ([model(intents=["chatt"])], ["spec.intents[0]", 'did you mean "chat"', "summarize"]),
    ([model(intents=["chat", "chat"])], ["spec.intents[1]", "there already"]),
    ([model(intents="chat")], ["spec.intents", "a list of"]),
    ([model(versions=[])], ["spec.versions", "found a list of 0", "a list of 1 to 64"]),
    ([one_version(nam="x")], ["spec.versions[0].nam", 'did you mean "name"']),
    ([one_version(name="v 1")], ["spec.versions[0].name", "a version name"]),
    ([one_version(name=1.5)], ["spec.versions[0].name", "put it in quotes"]),
    ([one_version(name="v@1")], ["spec.versions[0].name"]),
    ([one_version(accepts=[])], ["accepts"]),
    ([one_version(accepts=["auto"])], ["accepts[0]", "not auto"]),
    ([model("a,b")], ["metadata.name", "a model name"]),
    ([model("m@v1")], ["metadata.name"]),
    ([model("auto")], ["metadata.name", "not auto"]),
    ([model("m" * 129)], ["metadata.name"]),
    ([one_version(protocol="http3")], ["protocol", "one of http1, http2", "did you mean"]),
    ([one_version(cost={"inputPerMillion": 1})], ["cost.outputPerMillion", "no such key"]),
    ([one_version(slice={"cgroup": "a/../b"})], ["slice.cgroup"]),
    ([one_version(slice={"cgroup": "a", "memoryMax": "2G"})], ["memoryMax", "2G", "512Mi, 2Gi"]),
    ([one_version(slice={"cgroup": "a", "mark": 0})], ["mark", "1 to 4294967295"]),
    ([one_version(slice={"cgroup": "a", "mark": 0x18001, "markMask": 0xFFFF})], ["mark", "0x18001", "0xffff"]),
    (
        [one_version(endpoints=[{"address": "127.0.0.1:9"}, {"address": "127.0.0.1:9"}])],
        ["endpoints[1].address", "there already"],
    ),
    ([model(), route(targets=[])], ["spec.targets", "a list of 1 to 32"]),
    ([model(), route("bad name")], ["metadata.name", "letters, digits, - and _"]),
    (
        [model(), route(canary={"model": "m", "version": "v1", "weight": 150})],
        ["weight", "150", "a percentage from 0 to 100"],
    ),
    ([model(), route(canary={"model": "m", "version": "v1", "weight": 0.125})], ["weight", "0.125", "two decimals"]),
    ([model(), route(canary={"model": "m", "version": "v1", "weight": -1})], ["weight", "-1"]),
    ([model(), route(canary={"model": "m", "version": "v1", "weight": True})], ["weight", "True"]),
    ([model(), route(canary={"model": "m", "version": "v1", "weight": "5%"})], ["weight", "5%"]),
    ([model(), route(breaker={"errorRatio": "lots"})], ["errorRatio", "lots"]),
    ([model(), route(breaker={"windows": ["60s", "5s"]})], ["windows[1]", "shortest first"]),
    ([model(), route(retries={"max": 11})], ["retries.max", "11", "0 to 10"]),
    ([model(), route(retries={"retryOn": [503]})], ["retryOn[0]", "found 503", "put it in quotes"]),
    ([model(), route(retries={"retryOn": ["404"]})], ["retryOn[0]", "connect-failure"]),
    ([model(), route(fallback=[{}])], ["fallback[0]", "exactly one of version, model, cached, site, canned"]),
    (
        [model(), route(fallback=[{"canned": {}, "cached": {"maxAge": "1s"}}])],
        ["fallback[0]", "canned and cached", "exactly one"],
    ),
    ([model(), route(fallback=[{"canned": {"status": 200}}])], ["canned.status", "400 to 599"]),
    (
        [model(), route(match={"headers": [{"name": "x-a"}]})],
        ["headers[0]", "exactly one of exact, prefix, regex, range, present"],
    ),
    ([model(), route(match={"headers": [{"name": "x-pm-row", "exact": "a"}]})], ["headers[0].name", "x-pm-"]),
    ([model(), route(match={"headers": [{"name": "X-Envoy-A", "exact": "a"}]})], ["headers[0].name"]),
    ([model(), route(match={"headers": [{"name": ":path", "exact": "a"}]})], ["headers[0].name"]),
    ([model(), route(match={"headers": [{"name": "x-a", "range": [5, 5]}]})], ["range", "start below end"]),
    ([model(), route(match={"headers": [{"name": "x-a", "present": False}]})], ["present", "expected true"]),
    ([model(), route(match={"headers": [{"name": "x-a", "exact": "a\nb"}]})], ["exact", "a header value"]),
    ([model(), route(match={"paths": ["v1"]})], ["paths[0]", "starts with /"]),
    ([model(), route(match={"paths": ["/a?b=1"]})], ["paths[0]"]),
    ([model(), route(match={"paths": [{"regex": "/(?=a)"}]})], ["paths[0].regex", "look-ahead"]),
    ([model(), route(match={"paths": [{"regex": "/("}]})], ["paths[0].regex", "does not compile"]),
    ([model(), route(timeouts={"total": "-1s"})], ["timeouts.total", "0s turns it off"]),
    ([settings_of(mode="watch")], ["spec.mode", "one of act, observe"]),
    ([settings_of(listen="localhost:15001")], ["listen", "localhost", "host:port"]),
    ([settings_of(listen="127.0.0.1:15000")], ["spec.admin", "same address"]),
    ([settings_of(limits={"inspectBodyBytes": "128Mi"})], ["inspectBodyBytes", "bodyBytes"]),
    ([settings_of(limits={"bodyBytes": 0})], ["bodyBytes", "a size from 1"]),
    ([settings_of(answerHeaders="on")], ["answerHeaders", '"on"', "true or false"]),
    ([settings_of(tracing={"captureContent": True})], ["captureContent", "not supported"]),
    ([one_version(auth={"secretFile": "/k"})], ["auth.secretFile", "not supported", "unsafe"]),
]


@pytest.mark.parametrize(("documents", "words"), MISTAKES)
def test_each_mistake_is_one_problem_that_says_what_is_wrong(documents: list[Document], words: list[str]) -> None:
    decoded = decode(documents)
    assert decoded.policy is None
    lines = lines_of(decoded)
    # The canary mistakes use the only version there is, which is a mistake of its own.
    lines = [line for line in lines if "is the only version" not in line]
    assert len(lines) == 1, lines
    assert [word for word in words if word not in lines[0]] == [], lines[0]
