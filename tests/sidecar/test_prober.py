"""Probes: what is asked, and what counts as an answer."""

import pytest
from pointsman.router.policy import Endpoint, Intent, Model, Policy, Version
from pointsman.sidecar.prober import Prober, question_of
from wire import Backend, free_port


def model(*ports: int, intents: tuple[Intent, ...] = (Intent.CHAT,)) -> Model:
    endpoints = tuple(Endpoint(f"127.0.0.1:{port}") for port in ports)
    return Model("m", (Version("v1", endpoints, ("served-name",)),), intents=intents)


@pytest.mark.parametrize(
    ("intents", "path", "key"),
    [
        ((Intent.CHAT,), "/v1/chat/completions", "messages"),
        ((Intent.CODE, Intent.SUMMARIZE), "/v1/chat/completions", "messages"),
        ((Intent.COMPLETE,), "/v1/completions", "prompt"),
        ((Intent.EMBED,), "/v1/embeddings", "input"),
        ((), "/v1/chat/completions", "messages"),
    ],
)
def test_the_smallest_question_that_the_model_answers(intents: tuple[Intent, ...], path: str, key: str) -> None:
    question = question_of(model(1, intents=intents), model(1).versions[0])
    assert question is not None
    assert (path, "served-name") == (question[0], question[1]["model"])
    assert key in question[1]


def test_other_servers_are_only_connected_to() -> None:
    assert question_of(model(1, intents=(Intent.IMAGE,)), model(1).versions[0]) is None


@pytest.mark.parametrize(("status", "answered"), [(200, True), (404, True), (429, True), (500, False), (503, False)])
async def test_a_server_error_is_no_answer(status: int, answered: bool) -> None:
    async with Backend() as backend, Prober() as prober:
        backend.status = status
        assert {"m@v1": answered} == await prober.probe(["m@v1"], Policy(models=(model(backend.port),)))
        assert b'"max_tokens": 1' in backend.seen[-1][2]


@pytest.mark.parametrize(("dead", "answered"), [(1, True), (2, False)])
async def test_half_of_the_endpoints_must_answer(dead: int, answered: bool) -> None:
    async with Backend() as backend, Prober() as prober:
        ports = [backend.port, *(free_port() for _ in range(dead))]
        assert {"m@v1": answered} == await prober.probe(["m@v1"], Policy(models=(model(*ports),)))


async def test_a_target_without_endpoints_or_of_no_policy_does_not_answer() -> None:
    async with Prober() as prober:
        assert {"m@v1": False} == await prober.probe(["m@v1", "gone@v1"], Policy(models=(model(),)))


async def test_a_connection_is_enough_where_nothing_small_can_be_asked() -> None:
    async with Backend() as backend, Prober() as prober:
        policy = Policy(models=(model(backend.port, intents=(Intent.IMAGE,)),))
        assert {"m@v1": True} == await prober.probe(["m@v1"], policy)
        assert [] == backend.seen
