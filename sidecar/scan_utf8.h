/* Whether bytes are UTF-8, in slices. A pass of its own, made only over slices with a byte beyond ASCII: where a JSON
 * string ends does not depend on it. Called by scan_request.h. */
#ifndef PM_SCAN_UTF8_H
#define PM_SCAN_UTF8_H

#include "scan_text.h"

/* A character that a cut left open; all zero between characters. */
struct pm_utf8 {
  uint8_t left, low, high; /* continuation bytes to come, and the range of the next one */
};

/* What a leading byte asks for; false: it leads nothing. */
PM_INLINE bool pm_utf8_lead(struct pm_utf8 *u, pm_byte c) {
  u->low = 0x80, u->high = 0xbf;
  if (c >= 0xc2 && c < 0xe0) u->left = 1;
  else if (c >= 0xe0 && c < 0xf0) u->left = 2;
  else if (c >= 0xf0 && c < 0xf5) u->left = 3;
  else return false;
  if (c == 0xe0) u->low = 0xa0;
  if (c == 0xed) u->high = 0x9f;
  if (c == 0xf0) u->low = 0x90;
  if (c == 0xf4) u->high = 0x8f;
  return true;
}

#if defined(PM_SSE2)

PM_INLINE __m128i pm_at_least(__m128i v, pm_byte least) {
  return _mm_cmpeq_epi8(_mm_max_epu8(v, _mm_set1_epi8((char)least)), v);
}

/* Checks the blocks of 64 bytes in [p, end), from between two characters on. Returns where the last whole character of
 * them ends, or NULL: not UTF-8. Lengths are checked by masks: continuation bytes must be exactly where leading bytes
 * put them. Leading bytes that can never be, or that narrow their second byte, are rare: looked at one by one. */
PM_NOINLINE const pm_byte *pm_utf8_blocks(const pm_byte *p, const pm_byte *end) {
  uint64_t expected = 0; /* bits 0..2: continuation bytes that the block before left open */
  for (; end - p >= 64; p += 64) {
    if (expected == 0 && pm_mask_high(p) == 0) continue;
    uint64_t follow = 0, lead2 = 0, lead3 = 0, lead4 = 0, rare = 0;
    for (int i = 0; i < 4; i++) {
      __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i));
      __m128i special = _mm_or_si128(
          _mm_or_si128(_mm_cmpeq_epi8(_mm_and_si128(v, _mm_set1_epi8((char)0xfe)), _mm_set1_epi8((char)0xc0)),
                       pm_at_least(v, 0xf4)),
          _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8((char)0xe0)),
                                    _mm_cmpeq_epi8(v, _mm_set1_epi8((char)0xed))),
                       _mm_cmpeq_epi8(v, _mm_set1_epi8((char)0xf0))));
      follow |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmplt_epi8(v, _mm_set1_epi8((char)0xc0))) << (16 * i);
      lead2 |= (uint64_t)(uint32_t)_mm_movemask_epi8(pm_at_least(v, 0xc0)) << (16 * i);
      lead3 |= (uint64_t)(uint32_t)_mm_movemask_epi8(pm_at_least(v, 0xe0)) << (16 * i);
      lead4 |= (uint64_t)(uint32_t)_mm_movemask_epi8(pm_at_least(v, 0xf0)) << (16 * i);
      rare |= (uint64_t)(uint32_t)_mm_movemask_epi8(special) << (16 * i);
    }
    expected |= lead2 << 1 | lead3 << 2 | lead4 << 3;
    if (expected != follow) return NULL;
    for (; rare; rare &= rare - 1) {
      const pm_byte *lead = p + pm_lowest(rare);
      struct pm_utf8 u;
      if (!pm_utf8_lead(&u, *lead)) return NULL;
      if (lead + 1 < end && (lead[1] < u.low || lead[1] > u.high)) return NULL;
    }
    expected = lead2 >> 63 | lead3 >> 62 | lead4 >> 61;
  }
  if (expected)
    do p--;
    while ((*p & 0xc0) == 0x80);
  return p;
}

#endif

/* False at the first byte that is not UTF-8 (surrogates and overlong forms are not). */
PM_NOINLINE bool pm_utf8_feed(struct pm_utf8 *u, const pm_byte *p, const pm_byte *end) {
  while (p < end) {
    if (u->left) {
      if (*p < u->low || *p > u->high) return false;
      u->left--, u->low = 0x80, u->high = 0xbf, p++;
      continue;
    }
#if defined(PM_SSE2)
    if (end - p >= 64) {
      p = pm_utf8_blocks(p, end);
      if (p == NULL) return false;
      if (p == end) return true;
    }
#endif
    while (end - p >= 8) {
      uint64_t w;
      memcpy(&w, p, 8);
      if (w & 0x8080808080808080ull) break;
      p += 8;
    }
    if (p == end) return true;
    pm_byte c = *p++;
    if (c >= 0x80 && !pm_utf8_lead(u, c)) return false;
  }
  return true;
}

#endif
