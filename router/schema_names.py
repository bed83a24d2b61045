"""Names and plain values that several kinds of policy document share, as shapes.

Decides which names are allowed; refuses nothing itself. Read by the schema modules and by crosscheck.py.
"""

from __future__ import annotations

import re

from pointsman.router import policy
from pointsman.router.request import INTERNAL_HEADERS, INTERNAL_PREFIXES
from pointsman.router.shape import Integer, Listing, Number, Text, words_of
from pointsman.router.table import AUTO

MODEL_NAME = Text(
    "a model name: letters, digits and ._:/- (128 characters at most, letter or digit at both ends), not auto",
    re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?"),
    reserved=(AUTO,),
)
VERSION_NAME = Text(
    "a version name: letters, digits and ._+- (63 characters at most, a letter or digit first)",
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}"),
)
LABEL = Text(
    "a name: letters, digits, - and _ (63 characters at most, letter or digit at both ends)",
    re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"),
)
HEADER_NAME = Text(
    f"a header name that clients may send: not {', '.join((*INTERNAL_PREFIXES, *INTERNAL_HEADERS))}, no colon first",
    re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+"),
    max_characters=128,
    refused_prefixes=(*INTERNAL_PREFIXES, *INTERNAL_HEADERS),
    is_folded=True,
)
HOST_NAME = Text("a node name", re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"))
WORD = Text("a word: letters, digits and ._+- (63 characters at most)", VERSION_NAME.pattern)
PROVIDER = Text("a provider name: lower-case letters, digits and ._-", re.compile(r"[a-z0-9][a-z0-9._-]{0,62}"))
FILE = Text("a file path")
RATIO = Number(0, 1)
INTENTS = Listing(words_of(policy.Intent), is_unique=True)
LATENCY_MS = Integer(1, 3_600_000, "ms")
