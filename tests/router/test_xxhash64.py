"""XXH64 against the published vectors of its specification."""

import pytest
from pointsman.router.xxhash64 import hash_lines, xxh64


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
        (b"xxhash", 20141025, 0xB559B98D844E0635),
    ],
)
def test_published_vectors(data: bytes, seed: int, expected: int) -> None:
    assert expected == xxh64(data, seed)


def test_lines_are_hashed_sorted_each_seeded_with_the_one_before() -> None:
    assert xxh64(b"b", xxh64(b"a")) == hash_lines(("b", "a"))
    assert hash_lines(("a", "b")) == hash_lines(("b", "a"))
    assert xxh64(b"a") == hash_lines(("a",))
