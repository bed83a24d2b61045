"""Regular expressions that compare decimal numbers, for matchers that have no arithmetic.

Envoy's range match takes integers only and cannot say "or missing"; these expressions (RE2 syntax, whole string) accept
the numbers of `NUMBER_REGEX` that are at least, or at most, a bound. The property test compares them with arithmetic.
"""

from __future__ import annotations

from decimal import Decimal

NUMBER_REGEX = r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?"
"""A numeric demand: up to nine digits, no leading zeros, up to six decimals; anything else is unreadable."""

_MAX_DIGITS = 9
_FRACTION = r"(\.[0-9]{1,6})?"


def _digit(low: int, high: int) -> str:
    return str(low) if low == high else f"[{low}-{high}]"


def _integers_at_least(bound: int) -> str:
    """Integers without leading zeros, up to nine digits, that are >= bound; "" when there are none."""
    text = str(bound)
    if len(text) > _MAX_DIGITS:
        return ""
    options = [text]
    for n, char in enumerate(text):
        if char != "9":
            rest = len(text) - n - 1
            options.append(text[:n] + _digit(int(char) + 1, 9) + (f"[0-9]{{{rest}}}" if rest else ""))
    if len(text) < _MAX_DIGITS:
        options.append(f"[1-9][0-9]{{{len(text)},{_MAX_DIGITS - 1}}}")
    return "|".join(options)


def _integers_below(bound: int) -> str:
    """Integers without leading zeros that are < bound; "" when there are none."""
    text = str(bound)
    options = []
    if bound > 0:
        options.append("0")
    if len(text) > 1:
        options.append("[1-9]" if len(text) == 2 else f"[1-9][0-9]{{0,{len(text) - 2}}}")
    for n, char in enumerate(text):
        low = 1 if n == 0 else 0
        if int(char) > low:
            rest = len(text) - n - 1
            options.append(text[:n] + _digit(low, int(char) - 1) + (f"[0-9]{{{rest}}}" if rest else ""))
    return "|".join(dict.fromkeys(options))


def at_least(bound: int) -> str:
    """Return an expression for numbers >= bound (an integer >= 0)."""
    if bound < 0:
        raise ValueError(f"bound must not be negative, found {bound}")
    integers = _integers_at_least(bound)
    return f"({integers}){_FRACTION}" if integers else "[^\\x00-\\x{10FFFF}]"


def at_most(bound: float) -> str:
    """Return an expression for numbers <= bound (>= 0, up to four decimals)."""
    if bound < 0:
        raise ValueError(f"bound must not be negative, found {bound}")
    whole, _, fraction = f"{Decimal(repr(round(bound, 4))):f}".partition(".")
    fraction = fraction.rstrip("0")
    options = [rf"{whole}(\.({_fractions_up_to(fraction)}))?"]
    if below := _integers_below(int(whole)):
        options.append(f"({below}){_FRACTION}")
    return "|".join(f"({option})" for option in options)


def below(bound: float) -> str:
    """Return an expression for numbers < bound (> 0, up to four decimals); decimals may be longer here."""
    if bound <= 0:
        raise ValueError(f"bound must be positive, found {bound}")
    whole, _, fraction = f"{Decimal(repr(round(bound, 4))):f}".partition(".")
    fraction = fraction.rstrip("0")
    options = []
    if fraction:
        less = [fraction[:n] for n in range(1, len(fraction))]
        less += [f"{fraction[:n]}{_digit(0, int(char) - 1)}[0-9]*" for n, char in enumerate(fraction) if char != "0"]
        options.append(rf"{whole}(\.({'|'.join(less)}))?")
    if integers := _integers_below(int(whole)):
        options.append(rf"({integers})(\.[0-9]+)?")
    return "|".join(f"({option})" for option in options)


def _fractions_up_to(digits: str) -> str:
    """Digits after the point that make a fraction <= 0.digits (digits without trailing zeros)."""
    options = [f"{digits}0*" if digits else "0+"]
    for n, char in enumerate(digits):
        if n > 0:
            options.append(digits[:n])
        if char != "0":
            options.append(f"{digits[:n]}{_digit(0, int(char) - 1)}[0-9]*")
    return "|".join(options)
