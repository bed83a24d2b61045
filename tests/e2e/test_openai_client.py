"""The official OpenAI client, unchanged: its base URL is all that an application has to set."""

from __future__ import annotations

import openai
import pytest
from stack import SMALL, STABLE, Stack

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="session")]

QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Where is my parcel?"}]


@pytest.fixture
def client(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="sk-test", max_retries=0)


async def test_chat_is_answered_and_says_by_whom(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="support-chat", messages=QUESTION, extra_headers={"model-version": "v2.2"}
    )
    completion = raw.parse()
    assert "support-chat" == completion.model
    assert completion.choices[0].message.content
    assert completion.usage is not None
    assert 16 == completion.usage.completion_tokens
    assert (STABLE, "pinned") == (raw.headers["x-pointsman-target"], raw.headers["x-pointsman-reason"])


async def test_stream_arrives_whole_and_ends_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="support-chat", messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert 16 == len(text.split())
    assert ["stop"] == [one.choices[0].finish_reason for one in chunks if one.choices and one.choices[0].finish_reason]
    assert [] == chunks[-1].choices  # known bug 8: the usage-only chunk has no choice
    assert chunks[-1].usage is not None
    assert 16 == chunks[-1].usage.completion_tokens


async def test_embeddings_go_to_the_embedding_model(client: openai.AsyncOpenAI) -> None:
    raw = await client.embeddings.with_raw_response.create(model="embedder", input=["one text", "another"])
    assert [0, 1] == [item.index for item in raw.parse().data]
    assert "embedder@v1" == raw.headers["x-pointsman-target"]


async def test_models_are_listed_from_the_policy(client: openai.AsyncOpenAI) -> None:
    listed = {model.id async for model in client.models.list()}
    assert {"support-chat", "small-chat", "embedder", "down-chat", "mirror"} <= listed


async def test_model_auto_and_a_second_model_are_answered(client: openai.AsyncOpenAI) -> None:
    auto = await client.chat.completions.create(model="auto", messages=QUESTION)
    assert "support-chat" == auto.model
    small = await client.chat.completions.with_raw_response.create(model="small-chat", messages=QUESTION)
    assert SMALL == small.headers["x-served-by"]


async def test_unknown_model_is_a_not_found_error_that_names_the_models(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="gpt-99", messages=QUESTION)
    assert "known models:" in caught.value.message
    assert "support-chat" in caught.value.message
    assert "invalid_request_error" == caught.value.type


async def test_servers_refusal_reaches_the_caller_as_it_was(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="support-chat", messages=QUESTION, extra_body={"stream": "perhaps"})
    assert "stream: expected true or false" in caught.value.message


async def test_unknown_version_is_a_not_found_error_that_names_the_versions(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=r"known versions: v2\.2, v2\.3-beta"):
        await client.chat.completions.create(
            model="support-chat", messages=QUESTION, extra_headers={"model-version": "v9"}
        )
