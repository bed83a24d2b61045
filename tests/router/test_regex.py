"""Which regular expressions a policy may hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pointsman.router.regex import regex_fault


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("/v1/.*", None),
        ("(?i)gold|silver", None),
        (r"[a-z]{1,3}\d+?", None),
        (r"(?P<a>x)(?:y)", None),
        ("[]a]", None),
        ("[^]]+", None),
        (r"a\.b\-c", None),
        ("", None),
        ("(?i:a)(?s:b)", None),
        ("(|a)", None),
        ("a(?=b)", "look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "back-references"),
        ("(?P<a>b)(?P=a)", "back-references"),
        ("(?>a)", "atomic"),
        ("a++", "possessive"),
        ("a*+", "possessive"),
        ("a?+", "possessive"),
        ("a{2}+", "possessive"),
        ("a**", "doubled"),
        ("a{2}{3}", "doubled"),
        ("(a)(?(1)b|c)", "conditional"),
        ("(?#x)a", "comment"),
        ("(?x)a", "group"),
        ("a(?i)b", "group"),
        (r"a\Z", "escape"),
        (r"\u0041", "escape"),
        (r"\pL", "escape"),
        ("a{1001}", "at most 1000"),
        ("(a{100}){100}", "larger"),
        ("a{,5}", "literal {"),
        ("a{x", "literal {"),
        ("[[:alpha:]]", r"\["),
        ("[a--b]", "escaped"),
        (r"[\b]", "escape"),
        ("(", "compile"),
        (")", "compile"),
        ("*", "compile"),
        ("a" * 513, "at most 512"),
        ("(" * 33 + ")" * 33, "nest"),
        ("[a", "compile"),
        ("\\", "compile"),
    ],
)
def test_regular_expressions_are_those_that_re2_and_python_read_alike(pattern: str, word: str | None) -> None:
    fault = regex_fault(pattern)
    assert (word is None) is (fault is None), fault
    assert (word or "") in (fault or "")


@given(st.text(st.sampled_from(r"ab019.*+?{},()[]|^$\\-:=!<>P&~_ é"), max_size=40))
@settings(max_examples=500, deadline=None)
def test_an_accepted_regular_expression_compiles(pattern: str) -> None:
    if regex_fault(pattern) is None:
        re.compile(pattern, re.ASCII)
