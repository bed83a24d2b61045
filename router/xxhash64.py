"""XXH64, the hash that Envoy splits sticky traffic by.

Source: the xxHash specification (Yann Collet, "XXH64 algorithm description"); Envoy hashes one header line with seed 0
and several lines, sorted, each seeded with the hash of the one before (facts observed against Envoy 1.40).
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK = 0xFFFFFFFFFFFFFFFF
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(accumulator: int, lane: int) -> int:
    return _rotate((accumulator + lane * _P2) & _MASK, 31) * _P1 & _MASK


def _merge(accumulator: int, lane: int) -> int:
    return ((accumulator ^ _round(0, lane)) * _P1 + _P4) & _MASK


def xxh64(data: bytes, seed: int = 0) -> int:
    """Return the 64-bit xxHash of `data`."""
    length = len(data)
    position = 0
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while position <= length - 32:
            for n in range(4):
                lanes[n] = _round(lanes[n], int.from_bytes(data[position + 8 * n : position + 8 * n + 8], "little"))
            position += 32
        digest = sum(_rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            digest = _merge(digest, lane)
    else:
        digest = (seed + _P5) & _MASK
    digest = (digest + length) & _MASK
    while position <= length - 8:
        digest ^= _round(0, int.from_bytes(data[position : position + 8], "little"))
        digest = (_rotate(digest, 27) * _P1 + _P4) & _MASK
        position += 8
    if position <= length - 4:
        digest ^= int.from_bytes(data[position : position + 4], "little") * _P1 & _MASK
        digest = (_rotate(digest, 23) * _P2 + _P3) & _MASK
        position += 4
    for byte in data[position:]:
        digest ^= byte * _P5 & _MASK
        digest = _rotate(digest, 11) * _P1 & _MASK
    digest = (digest ^ (digest >> 33)) * _P2 & _MASK
    digest = (digest ^ (digest >> 29)) * _P3 & _MASK
    return digest ^ (digest >> 32)


def hash_lines(lines: Sequence[str]) -> int:
    """Return Envoy's hash of a header's lines: sorted, each line's seed is the hash of the one before."""
    digest = 0
    for line in sorted(lines):
        digest = xxh64(line.encode("latin-1"), digest)
    return digest
