"""Changes of a text by words, for fuzz targets whose input has a grammar; pure but for the seed that is given."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

POLICY_WORDS = tuple(Path(__file__).with_name("policy_words.txt").read_text(encoding="utf-8").split())
"""Keys, names and values of a policy, and what YAML and numbers have of surprises."""


def change_words(data: bytes, word: re.Pattern[str], words: Sequence[str], *, max_size: int, seed: int) -> bytes:
    """Return the text with one to four of its words or lines replaced, repeated, moved or left out."""
    chance = random.Random(seed)
    text = data.decode("utf-8", "replace")
    for _ in range(chance.randint(1, 4)):
        text = chance.choice((_other_word, _other_word, _own_word, _line_again, _line_out, _line_moved))(
            text, word, words, chance
        )
    return text.encode()[:max_size]


def _other_word(text: str, word: re.Pattern[str], words: Sequence[str], chance: random.Random) -> str:
    return _replaced(text, word, chance, chance.choice(words))


def _own_word(text: str, word: re.Pattern[str], words: Sequence[str], chance: random.Random) -> str:
    found = word.findall(text)
    return _replaced(text, word, chance, chance.choice(found)) if found else text


def _replaced(text: str, word: re.Pattern[str], chance: random.Random, by: str) -> str:
    places = [match.span() for match in word.finditer(text) if not match.group().isspace()]
    if not places:
        return by
    start, end = chance.choice(places)
    return text[:start] + by + text[end:]


def _line_again(text: str, _word: re.Pattern[str], _words: Sequence[str], chance: random.Random) -> str:
    lines = text.split("\n")
    place = chance.randrange(len(lines))
    return "\n".join((*lines[: place + 1], *lines[place:]))


def _line_out(text: str, _word: re.Pattern[str], _words: Sequence[str], chance: random.Random) -> str:
    lines = text.split("\n")
    del lines[chance.randrange(len(lines))]
    return "\n".join(lines)


def _line_moved(text: str, _word: re.Pattern[str], _words: Sequence[str], chance: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(chance.randint(0, len(lines) - 1), lines.pop(chance.randrange(len(lines))))
    return "\n".join(lines)
