/* Tokens under the scanners: where a JSON string or number ends, what a string says unescaped.
 *
 * Everything here is a push parser: it is fed slices of any size, remembers what a cut leaves open, allocates nothing.
 * Refuses nothing itself; it reports. Called by scan_request.h and scan_answer.h. */
#ifndef PM_SCAN_TEXT_H
#define PM_SCAN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && !defined(PM_PORTABLE) /* PM_PORTABLE: for tests of the other branch */
#define PM_SSE2 1
#include <emmintrin.h>
#endif

typedef unsigned char pm_byte;

#define PM_INLINE static inline __attribute__((always_inline))
#define PM_NOINLINE static __attribute__((noinline))

/* ---- 64 bytes at a time: bit i of a mask speaks of byte i ---- */

struct pm_masks {
  uint64_t quote;     /* '"' */
  uint64_t backslash; /* '\' */
  uint64_t odd;       /* control characters and bytes of 0x80 and above */
};

#if defined(PM_SSE2)

PM_INLINE uint64_t pm_mask_eq(const pm_byte *at, char wanted) {
  const __m128i pattern = _mm_set1_epi8(wanted);
  uint64_t mask = 0;
  for (int i = 0; i < 4; i++) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i));
    mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(v, pattern)) << (16 * i);
  }
  return mask;
}

PM_INLINE struct pm_masks pm_mask_string(const pm_byte *at) {
  struct pm_masks m = {0, 0, 0};
  for (int i = 0; i < 4; i++) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i));
    m.quote |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('"'))) << (16 * i);
    m.backslash |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(v, _mm_set1_epi8('\\'))) << (16 * i);
    /* signed: bytes of 0x80 and above are negative, so one compare finds them together with the control characters */
    m.odd |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_cmplt_epi8(v, _mm_set1_epi8(0x20))) << (16 * i);
  }
  return m;
}

PM_INLINE uint64_t pm_mask_high(const pm_byte *at) {
  uint64_t mask = 0;
  for (int i = 0; i < 4; i++) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * i));
    mask |= (uint64_t)(uint32_t)_mm_movemask_epi8(v) << (16 * i);
  }
  return mask;
}

#else /* any other machine: eight bytes in a word */

PM_INLINE uint64_t pm_word(const pm_byte *at) {
  uint64_t w;
  memcpy(&w, at, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  w = __builtin_bswap64(w);
#endif
  return w;
}

/* The top bits of eight bytes, gathered into eight bits. */
PM_INLINE uint64_t pm_gather(uint64_t tops) { return ((tops >> 7) * 0x0102040810204080ull) >> 56; }

PM_INLINE uint64_t pm_zero_bytes(uint64_t w) {
  const uint64_t low7 = 0x7f7f7f7f7f7f7f7full;
  return ~(((w & low7) + low7) | w | low7);
}

PM_INLINE uint64_t pm_mask_eq(const pm_byte *at, char wanted) {
  const uint64_t pattern = 0x0101010101010101ull * (pm_byte)wanted;
  uint64_t mask = 0;
  for (int i = 0; i < 8; i++) mask |= pm_gather(pm_zero_bytes(pm_word(at + 8 * i) ^ pattern)) << (8 * i);
  return mask;
}

PM_INLINE uint64_t pm_mask_high(const pm_byte *at) {
  uint64_t mask = 0;
  for (int i = 0; i < 8; i++) mask |= pm_gather(pm_word(at + 8 * i) & 0x8080808080808080ull) << (8 * i);
  return mask;
}

PM_INLINE struct pm_masks pm_mask_string(const pm_byte *at) {
  struct pm_masks m = {pm_mask_eq(at, '"'), pm_mask_eq(at, '\\'), 0};
  for (int i = 0; i < 8; i++) {
    uint64_t w = pm_word(at + 8 * i), tops = 0x8080808080808080ull;
    uint64_t control = pm_zero_bytes(w & 0xe0e0e0e0e0e0e0e0ull);
    m.odd |= pm_gather((w | control) & tops) << (8 * i);
  }
  return m;
}

#endif

PM_INLINE int pm_lowest(uint64_t mask) { return __builtin_ctzll(mask); }

/* Which bytes follow a backslash that is itself not escaped. carry: 1 when byte 0 does; left set for the next 64 bytes.
 * A run of backslashes escapes every second byte, counted from its start. Adding the start of a run to the run carries
 * through it, so the sum tells apart the runs that began on even and on odd places. */
PM_INLINE uint64_t pm_escaped(uint64_t backslash, uint64_t *carry) {
  const uint64_t even = 0x5555555555555555ull;
  uint64_t first = *carry;
  if (backslash == 0) {
    *carry = 0;
    return first;
  }
  backslash &= ~first; /* an escaped backslash starts nothing */
  uint64_t follows = (backslash << 1) | first;
  uint64_t odd_starts = backslash & ~even & ~follows;
  uint64_t sum;
  *carry = __builtin_add_overflow(odd_starts, backslash, &sum);
  return (even ^ (sum << 1)) & follows;
}

/* ---- strings ---- */

/* A string that is being walked; all zero at its opening quote. */
struct pm_string {
  uint64_t carry;   /* 1: the next byte is escaped */
  uint8_t hex_left; /* hex digits of a \u that are still to come */
  bool escapes;     /* a backslash was seen */
};

enum pm_walk { PM_OPEN, PM_CLOSED, PM_BAD };

PM_INLINE bool pm_is_hex(pm_byte c) { return (pm_byte)(c - '0') < 10 || (pm_byte)((c | 0x20) - 'a') < 6; }

PM_INLINE bool pm_is_escape(pm_byte c) {
  switch (c) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't': case 'u': return true;
    default: return false;
  }
}

/* Checks escapes that are neither \" nor \\ nor \n: rare, so one by one. letters: their places in the bytes at `at`. */
PM_NOINLINE bool pm_rare_escapes(struct pm_string *s, const pm_byte *at, uint64_t letters, const pm_byte *end) {
  for (; letters; letters &= letters - 1) {
    const pm_byte *letter = at + pm_lowest(letters);
    if (!pm_is_escape(*letter)) return false;
    if (*letter != 'u') continue;
    for (int i = 1; i <= 4; i++) {
      if (letter + i >= end) {
        s->hex_left = (uint8_t)(5 - i);
        break;
      }
      if (!pm_is_hex(letter[i])) return false;
    }
  }
  return true;
}

/* One block at `at`, of which `size` bytes (64 at most) are there. On PM_CLOSED *close is the quote's place. */
PM_INLINE enum pm_walk pm_block(struct pm_string *s, const pm_byte *at, const pm_byte *end, unsigned size, bool strict,
                                bool *high, unsigned *close) {
  pm_byte padded[64];
  const pm_byte *block = at;
  uint64_t live = ~0ull;
  if (size < 64) {
    memset(padded, ' ', sizeof padded);
    memcpy(padded, at, size);
    block = padded;
    live = (1ull << size) - 1;
  }
  struct pm_masks m = pm_mask_string(block);
  uint64_t escaped = pm_escaped(m.backslash, &s->carry);
  if (size < 64) s->carry = (escaped >> size) & 1;
  uint64_t closing = m.quote & ~escaped;
  if (closing) live &= (closing & -closing) - 1;
  if (m.backslash & live) s->escapes = true;
  if (strict && (m.odd & live)) {
    if (m.odd & live & ~pm_mask_high(block)) return PM_BAD;
    *high = true;
  }
  uint64_t letters = escaped & live & ~m.quote & ~m.backslash;
  if (strict && letters) {
    letters &= ~pm_mask_eq(block, 'n');
    if (letters && !pm_rare_escapes(s, at, letters, end)) return PM_BAD;
  }
  if (!closing) return PM_OPEN;
  *close = (unsigned)pm_lowest(closing);
  return PM_CLOSED;
}

PM_NOINLINE enum pm_walk pm_walk_on(struct pm_string *s, const pm_byte **at, const pm_byte *end, bool strict,
                                    bool *high) {
  const pm_byte *p = *at;
  for (; s->hex_left; s->hex_left--, p++) {
    if (p == end) return (void)(*at = p), PM_OPEN;
    if (strict && !pm_is_hex(*p)) return (void)(*at = p), PM_BAD;
  }
  while (p < end) {
    unsigned size = end - p < 64 ? (unsigned)(end - p) : 64, close = 0;
    enum pm_walk walk = pm_block(s, p, end, size, strict, high, &close);
    if (walk == PM_OPEN) {
      p += size;
      continue;
    }
    if (walk == PM_CLOSED) s->carry = 0;
    *at = p + (walk == PM_CLOSED ? close + 1 : 0);
    return walk;
  }
  *at = p;
  return PM_OPEN;
}

/* Walks from *at, inside a string, to just after its closing quote or to the end of the slice (PM_OPEN: feed the next
 * slice). strict: control characters and unknown escapes are PM_BAD; *high is set at a byte of 0x80 or above. */
PM_INLINE enum pm_walk pm_walk_string(struct pm_string *s, const pm_byte **at, const pm_byte *end, bool strict,
                                      bool *high) {
#if defined(PM_SSE2)
  /* most strings are short and plain: look at 16 bytes before taking 64 */
  if (end - *at >= 16 && s->carry == 0 && s->hex_left == 0) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)*at);
    __m128i special = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\\')));
    if (strict) special = _mm_or_si128(special, _mm_cmplt_epi8(v, _mm_set1_epi8(0x20)));
    unsigned mask = (unsigned)_mm_movemask_epi8(special);
    *at += mask ? __builtin_ctz(mask) : 16;
    if (mask && **at == '"') return ++*at, PM_CLOSED;
  }
#endif
  return pm_walk_on(s, at, end, strict, high);
}

/* ---- what a string says ---- */

/* Collects the unescaped bytes of a string that comes in pieces: up to `room` of them; more set `over`. */
struct pm_capture {
  char *into;
  uint32_t room, size;
  uint32_t unit;     /* the \u unit that is being read, or a high surrogate that waits for its other half */
  uint8_t hex_left;
  uint8_t after;     /* 0 plain, 1 just after a backslash */
  bool surrogate;    /* unit holds a high surrogate */
  bool over;
};

PM_INLINE void pm_capture_start(struct pm_capture *c, char *into, uint32_t room) {
  *c = (struct pm_capture){.into = into, .room = room};
}

PM_INLINE void pm_capture_byte(struct pm_capture *c, pm_byte b) {
  if (c->size < c->room) c->into[c->size++] = (char)b;
  else c->over = true;
}

PM_NOINLINE void pm_capture_point(struct pm_capture *c, uint32_t point) {
  if (point < 0x80) {
    pm_capture_byte(c, (pm_byte)point);
  } else if (point < 0x800) {
    pm_capture_byte(c, (pm_byte)(0xc0 | point >> 6));
    pm_capture_byte(c, (pm_byte)(0x80 | (point & 63)));
  } else {
    if (point < 0x10000) {
      pm_capture_byte(c, (pm_byte)(0xe0 | point >> 12));
    } else {
      pm_capture_byte(c, (pm_byte)(0xf0 | point >> 18));
      pm_capture_byte(c, (pm_byte)(0x80 | (point >> 12 & 63)));
    }
    pm_capture_byte(c, (pm_byte)(0x80 | (point >> 6 & 63)));
    pm_capture_byte(c, (pm_byte)(0x80 | (point & 63)));
  }
}

/* A lone surrogate is kept as its three bytes: only its length and its being unprintable matter. */
PM_INLINE void pm_capture_flush(struct pm_capture *c, uint32_t waiting) {
  if (c->surrogate) pm_capture_point(c, waiting);
  c->surrogate = false;
}

PM_NOINLINE void pm_capture_feed(struct pm_capture *c, const pm_byte *p, const pm_byte *end) {
  size_t size = (size_t)(end - p);
  if (!c->hex_left && !c->after && !c->surrogate && size <= c->room - c->size && memchr(p, '\\', size) == NULL) {
    memcpy(c->into + c->size, p, size); /* the common case: plain, and it fits */
    c->size += (uint32_t)size;
    return;
  }
  for (; p < end; p++) {
    pm_byte b = *p;
    if (c->hex_left) {
      uint32_t digit = b <= '9' ? (uint32_t)(b - '0') : (uint32_t)((b | 0x20) - 'a' + 10);
      c->unit = c->unit << 4 | (digit & 15);
      if (--c->hex_left) continue;
      uint32_t unit = c->unit & 0xffff, waiting = c->unit >> 16;
      if (c->surrogate && unit >= 0xdc00 && unit < 0xe000) {
        c->surrogate = false;
        pm_capture_point(c, 0x10000 + ((waiting & 0x3ff) << 10) + (unit & 0x3ff));
        continue;
      }
      pm_capture_flush(c, waiting);
      if (unit >= 0xd800 && unit < 0xdc00) c->surrogate = true, c->unit = unit;
      else pm_capture_point(c, unit);
      continue;
    }
    if (c->after) {
      c->after = 0;
      if (b == 'u') {
        c->hex_left = 4; /* a waiting surrogate moves up as the digits come in */
        if (!c->surrogate) c->unit = 0;
        continue;
      }
      pm_capture_flush(c, c->unit);
      static const char plain[] = "bfnrt", real[] = "\b\f\n\r\t";
      const char *known = memchr(plain, b, 5);
      pm_capture_byte(c, known ? (pm_byte)real[known - plain] : b);
      continue;
    }
    if (b == '\\') {
      c->after = 1;
      continue;
    }
    pm_capture_flush(c, c->unit);
    pm_capture_byte(c, b);
  }
}

PM_INLINE void pm_capture_end(struct pm_capture *c) { pm_capture_flush(c, c->unit); }

/* ---- numbers ---- */

PM_INLINE bool pm_is_digit(pm_byte c) { return (pm_byte)(c - '0') < 10; }

enum pm_number_state { PM_MINUS, PM_ZERO, PM_INTEGER, PM_POINT, PM_FRACTION, PM_E, PM_E_SIGN, PM_EXPONENT };

/* Takes what a number allows next. PM_OPEN: the slice ended inside it; PM_CLOSED: *at is the first byte after it. */
PM_INLINE enum pm_walk pm_walk_number(uint8_t *state, const pm_byte **at, const pm_byte *end) {
  const pm_byte *p = *at;
  uint8_t s = *state;
  for (; p < end; p++) {
    pm_byte c = *p;
    bool digit = pm_is_digit(c);
    switch (s) {
      case PM_MINUS:
        if (!digit) return PM_BAD;
        s = c == '0' ? PM_ZERO : PM_INTEGER;
        continue;
      case PM_INTEGER:
        if (digit) continue;
        /* fall through */
      case PM_ZERO:
        if (c == '.') s = PM_POINT;
        else if ((c | 0x20) == 'e') s = PM_E;
        else goto closed;
        continue;
      case PM_POINT:
        if (!digit) return PM_BAD;
        s = PM_FRACTION;
        continue;
      case PM_FRACTION:
        if (digit) continue;
        if ((c | 0x20) != 'e') goto closed;
        s = PM_E;
        continue;
      case PM_E:
        if (c == '+' || c == '-') {
          s = PM_E_SIGN;
          continue;
        }
        /* fall through */
      case PM_E_SIGN:
        if (!digit) return PM_BAD;
        s = PM_EXPONENT;
        continue;
      default:
        if (digit) continue;
        goto closed;
    }
  }
  *at = p, *state = s;
  return PM_OPEN;
closed:
  *at = p, *state = s;
  return PM_CLOSED;
}

#endif
