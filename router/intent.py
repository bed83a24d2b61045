"""Intents and the API paths that imply them.

A request's `x-intent` names its intent; absent or unknown, the path does (design section 4). A path that is in neither
table has no intent: only Routes that match by path or header take it.
"""

from __future__ import annotations

from pointsman.router.policy import Intent

PATH_INTENTS: dict[str, Intent] = {
    "/v1/chat/completions": Intent.CHAT,
    "/v1/responses": Intent.CHAT,
    "/v1/messages": Intent.CHAT,
    "/v1/completions": Intent.COMPLETE,
    "/v1/embeddings": Intent.EMBED,
    "/v1/rerank": Intent.RERANK,
    "/v2/rerank": Intent.RERANK,
    "/rerank": Intent.RERANK,
    "/v1/audio/transcriptions": Intent.TRANSCRIBE,
    "/v1/audio/translations": Intent.TRANSCRIBE,
    "/v1/audio/speech": Intent.SPEAK,
    "/v1/images/generations": Intent.IMAGE,
    "/v1/images/edits": Intent.IMAGE,
    "/v1/images/variations": Intent.IMAGE,
}
"""Paths (without query) of the OpenAI API, of vLLM's and of Anthropic's, and what they want."""

JSON_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/audio/speech",
        "/v1/images/generations",
    }
)
"""Paths whose request body is JSON by the API's definition: another content type is refused there."""

MODELS_PATH = "/v1/models"
"""Answered from policy (`GET`)."""


def strip_query(path: str) -> str:
    """Return the path without its query."""
    return path.partition("?")[0]


def paths_of(intents: tuple[Intent, ...]) -> tuple[str, ...]:
    """Return the paths that imply one of the intents, in table order."""
    return tuple(path for path, intent in PATH_INTENTS.items() if intent in intents)


def known_intent(value: str | None) -> Intent | None:
    """Return the intent of that name, or None when absent or unknown."""
    try:
        return Intent(value) if value is not None else None
    except ValueError:
        return None
