from __future__ import annotations

from pointsman.otel import names


def test_no_gen_ai_key_is_minted_here():
    """The pinned list: keys of the conventions' copy that names.SEMCONV tells."""
    pinned = {
        "gen_ai.operation.name",
        "gen_ai.provider.name",
        "gen_ai.conversation.id",
        "gen_ai.prompt.name",
        "gen_ai.prompt.version",
        "gen_ai.request.model",
        "gen_ai.request.temperature",
        "gen_ai.request.top_p",
        "gen_ai.request.top_k",
        "gen_ai.request.max_tokens",
        "gen_ai.request.seed",
        "gen_ai.request.choice.count",
        "gen_ai.request.stream",
        "gen_ai.request.frequency_penalty",
        "gen_ai.request.presence_penalty",
        "gen_ai.request.reasoning.level",
        "gen_ai.response.model",
        "gen_ai.response.id",
        "gen_ai.response.finish_reasons",
        "gen_ai.response.time_to_first_chunk",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
        "gen_ai.usage.cache_read.input_tokens",
        "gen_ai.usage.reasoning.output_tokens",
    }
    assert pinned == {a.name for a in names.SPAN_ATTRIBUTES if a.name.startswith("gen_ai.")}


def test_what_the_conventions_lack_is_under_our_own_prefix():
    own = {a.name for a in names.SPAN_ATTRIBUTES if a.source == "pointsman"}
    assert own
    assert all(name.startswith("pointsman.") for name in own)


def test_each_attribute_is_declared_once():
    declared = [attribute.name for attribute in names.SPAN_ATTRIBUTES]
    assert len(declared) == len(set(declared))
