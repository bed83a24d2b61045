/* The answer scanner: reads token counts, finish reasons, id and model from JSON and SSE answers as they pass.
 *
 * A push parser that follows the few paths in pm_place_below and skips the rest by brackets and quotes, so nothing is
 * kept but the place: a cut at any byte is the same as no cut, and text inside a string cannot pose as a key. It never
 * refuses: what is not JSON is passed over. SSE is parsed by event (WHATWG: lines end in LF, CR or CRLF; the data lines
 * of an event are one text). Later values replace earlier ones, except id and model: the first counts.
 * Called by scan.c, and by tests/scan. */
#ifndef PM_SCAN_ANSWER_H
#define PM_SCAN_ANSWER_H

#include "scan_text.h"

enum {
  PM_PLACES_MAX = 6,    /* response.usage.input_tokens_details is the deepest path: 4 containers */
  PM_WORD_MAX = 32,     /* longer than any key; a finish reason may be as long */
  PM_LABEL_MAX = 128,   /* id and model */
  PM_FINISHES_MAX = 8,
  PM_COUNT_DIGITS = 15,
};

/* A container on a path that is followed. */
enum pm_place {
  PM_OFF_PATH,
  PM_OUTSIDE,
  PM_ROOT,
  PM_PART,    /* "response" of the Responses API, "message" of message_start */
  PM_USAGE,
  PM_INPUT_DETAILS,
  PM_OUTPUT_DETAILS,
  PM_CHOICES,
  PM_CHOICE,
  PM_DELTA,   /* of message_delta */
};

enum pm_word {
  PM_WORD_NONE,
  PM_WORD_ID,
  PM_WORD_MODEL,
  PM_WORD_USAGE,
  PM_WORD_CHOICES,
  PM_WORD_PART,
  PM_WORD_DELTA,
  PM_WORD_FINISH,
  PM_WORD_INPUT,
  PM_WORD_OUTPUT,
  PM_WORD_INPUT_DETAILS,
  PM_WORD_OUTPUT_DETAILS,
  PM_WORD_CACHED,
  PM_WORD_REASONING,
};

enum pm_count { PM_COUNT_INPUT, PM_COUNT_OUTPUT, PM_COUNT_CACHED, PM_COUNT_REASONING, PM_COUNTS };

enum pm_answer_state { PM_BETWEEN, PM_AT_STRING, PM_AT_COUNT, PM_SKIPPING };

enum pm_line_state { PM_LINE_START, PM_LINE_SPACE, PM_LINE_DATA, PM_LINE_OTHER };

/* One answer. Everything before `finishes` is zero at the start. */
struct pm_answer {
  struct pm_string string;
  struct pm_capture capture;
  uint64_t count[PM_COUNTS];
  uint64_t number;
  uint32_t skipped;        /* open brackets off the path */
  uint8_t state, line_state;
  uint8_t line_at;         /* bytes of "data" matched at the line's start */
  uint8_t done_at;         /* bytes of "[DONE]" matched in the event's data; 255: it is something else */
  uint8_t depth;           /* places in use */
  uint8_t place[PM_PLACES_MAX];
  uint8_t word;            /* the key whose value comes */
  bool key_next;           /* a string here is a key */
  bool is_key;             /* the string being read is one */
  bool escaped_off_path;   /* skipping: inside a string */
  bool after_cr;
  bool stream_done;
  uint8_t present;         /* bit per pm_count */
  uint8_t digits;
  uint8_t id_size, model_size, finish_count;
  uint16_t finishes_size;
  char finishes[PM_FINISHES_MAX * (PM_WORD_MAX + 1)]; /* a comma list */
  char text[PM_WORD_MAX];
  char id[PM_LABEL_MAX];
  char model[PM_LABEL_MAX];
};

static inline void pm_answer_start(struct pm_answer *a) { memset(a, 0, offsetof(struct pm_answer, finishes)); }

#define PM_SAYS(name) (memcmp(key, name, sizeof(name) - 1) == 0)

static inline uint8_t pm_word_of(const char *key, size_t size) {
  switch (size) {
    case 2: return PM_SAYS("id") ? PM_WORD_ID : PM_WORD_NONE;
    case 5:
      return PM_SAYS("model") ? PM_WORD_MODEL
                              : PM_SAYS("usage") ? PM_WORD_USAGE : PM_SAYS("delta") ? PM_WORD_DELTA : PM_WORD_NONE;
    case 7: return PM_SAYS("choices") ? PM_WORD_CHOICES : PM_SAYS("message") ? PM_WORD_PART : PM_WORD_NONE;
    case 8: return PM_SAYS("response") ? PM_WORD_PART : PM_WORD_NONE;
    case 11: return PM_SAYS("stop_reason") ? PM_WORD_FINISH : PM_WORD_NONE;
    case 12: return PM_SAYS("input_tokens") ? PM_WORD_INPUT : PM_WORD_NONE;
    case 13:
      return PM_SAYS("finish_reason") ? PM_WORD_FINISH
             : PM_SAYS("prompt_tokens") ? PM_WORD_INPUT
             : PM_SAYS("output_tokens") ? PM_WORD_OUTPUT
             : PM_SAYS("cached_tokens") ? PM_WORD_CACHED
                                        : PM_WORD_NONE;
    case 16: return PM_SAYS("reasoning_tokens") ? PM_WORD_REASONING : PM_WORD_NONE;
    case 17: return PM_SAYS("completion_tokens") ? PM_WORD_OUTPUT : PM_WORD_NONE;
    case 20: return PM_SAYS("input_tokens_details") ? PM_WORD_INPUT_DETAILS : PM_WORD_NONE;
    case 21:
      return PM_SAYS("prompt_tokens_details") ? PM_WORD_INPUT_DETAILS
             : PM_SAYS("output_tokens_details") ? PM_WORD_OUTPUT_DETAILS
                                                : PM_WORD_NONE;
    case 25: return PM_SAYS("completion_tokens_details") ? PM_WORD_OUTPUT_DETAILS : PM_WORD_NONE;
    default: return PM_WORD_NONE;
  }
}

/* The place that a container has, opened under `word` in `place`. */
static inline uint8_t pm_place_below(uint8_t place, uint8_t word, bool object) {
  switch (place) {
    case PM_OUTSIDE: return object ? PM_ROOT : PM_OFF_PATH;
    case PM_ROOT:
      if (!object) return word == PM_WORD_CHOICES ? PM_CHOICES : PM_OFF_PATH;
      if (word == PM_WORD_PART) return PM_PART;
      if (word == PM_WORD_DELTA) return PM_DELTA;
      return word == PM_WORD_USAGE ? PM_USAGE : PM_OFF_PATH;
    case PM_PART: return object && word == PM_WORD_USAGE ? PM_USAGE : PM_OFF_PATH;
    case PM_USAGE:
      if (!object) return PM_OFF_PATH;
      if (word == PM_WORD_INPUT_DETAILS) return PM_INPUT_DETAILS;
      return word == PM_WORD_OUTPUT_DETAILS ? PM_OUTPUT_DETAILS : PM_OFF_PATH;
    case PM_CHOICES: return object ? PM_CHOICE : PM_OFF_PATH;
    default: return PM_OFF_PATH;
  }
}

/* Which count a number under `word` in `place` is; PM_COUNTS: none. */
static inline uint8_t pm_count_of(uint8_t place, uint8_t word) {
  if (place == PM_USAGE && word == PM_WORD_INPUT) return PM_COUNT_INPUT;
  if (place == PM_USAGE && word == PM_WORD_OUTPUT) return PM_COUNT_OUTPUT;
  if (place == PM_INPUT_DETAILS && word == PM_WORD_CACHED) return PM_COUNT_CACHED;
  if (place == PM_OUTPUT_DETAILS && word == PM_WORD_REASONING) return PM_COUNT_REASONING;
  return PM_COUNTS;
}

PM_INLINE uint8_t pm_here(const struct pm_answer *a) { return a->depth ? a->place[a->depth - 1] : PM_OUTSIDE; }

PM_INLINE void pm_document_start(struct pm_answer *a) {
  a->state = PM_BETWEEN, a->depth = 0, a->skipped = 0, a->key_next = false, a->word = PM_WORD_NONE;
}

/* ---- values ---- */

/* One a choice, in the order in which they are told. */
static void pm_finish_seen(struct pm_answer *a) {
  if (a->capture.over || a->capture.size == 0 || a->finish_count == PM_FINISHES_MAX) return;
  uint32_t size = a->capture.size;
  for (uint32_t i = 0; i < size; i++)
    if (a->text[i] != '_' && (a->text[i] < 'a' || a->text[i] > 'z')) return;
  if (a->finish_count++) a->finishes[a->finishes_size++] = ',';
  memcpy(a->finishes + a->finishes_size, a->text, size);
  a->finishes_size = (uint16_t)(a->finishes_size + size);
}

static bool pm_is_label(const char *text, uint32_t size) {
  for (uint32_t i = 0; i < size; i++)
    if ((pm_byte)text[i] < 0x20 || (pm_byte)text[i] >= 0x7f) return false;
  return size > 0;
}

/* A string begins: say where its text goes. Keys are short, so they are always collected when cut or escaped. */
static void pm_answer_string_begins(struct pm_answer *a) {
  a->string = (struct pm_string){0};
  a->is_key = a->key_next;
  a->capture.into = NULL;
  uint8_t here = pm_here(a);
  if (a->is_key) {
    pm_capture_start(&a->capture, a->text, PM_WORD_MAX);
  } else if (here == PM_ROOT || here == PM_PART) {
    if (a->word == PM_WORD_ID && a->id_size == 0) pm_capture_start(&a->capture, a->id, PM_LABEL_MAX);
    if (a->word == PM_WORD_MODEL && a->model_size == 0) pm_capture_start(&a->capture, a->model, PM_LABEL_MAX);
  }
  bool finish = here == PM_CHOICE || here == PM_DELTA || here == PM_ROOT;
  if (!a->is_key && finish && a->word == PM_WORD_FINISH) pm_capture_start(&a->capture, a->text, PM_WORD_MAX);
}

static void pm_answer_string_ended(struct pm_answer *a) {
  pm_capture_end(&a->capture);
  uint8_t size = a->capture.over ? 0 : (uint8_t)a->capture.size;
  if (a->is_key) {
    a->word = pm_word_of(a->text, size);
  } else if (a->capture.into == a->id) {
    a->id_size = pm_is_label(a->id, size) ? size : 0;
  } else if (a->capture.into == a->model) {
    a->model_size = pm_is_label(a->model, size) ? size : 0;
  } else {
    pm_finish_seen(a);
  }
}

static void pm_count_ended(struct pm_answer *a, bool whole) {
  uint8_t count = pm_count_of(pm_here(a), a->word);
  a->word = PM_WORD_NONE;
  if (!whole || count == PM_COUNTS || a->digits > PM_COUNT_DIGITS) return; /* 10^15 tokens is no count */
  a->count[count] = a->number;
  a->present |= (uint8_t)(1u << count);
}

/* ---- off the path ---- */

/* The next byte in [p, end) that matters off the path: a quote or a bracket. */
PM_INLINE const pm_byte *pm_next_bracket(const pm_byte *p, const pm_byte *end) {
#if defined(PM_SSE2)
  for (; end - p >= 16; p += 16) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i folded = _mm_or_si128(v, _mm_set1_epi8(0x20)); /* [ and { differ in that bit, as do ] and } */
    __m128i hit = _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('"')),
                               _mm_or_si128(_mm_cmpeq_epi8(folded, _mm_set1_epi8('{')),
                                            _mm_cmpeq_epi8(folded, _mm_set1_epi8('}'))));
    unsigned mask = (unsigned)_mm_movemask_epi8(hit);
    if (mask) return p + __builtin_ctz(mask);
  }
#endif
  while (p < end && *p != '"' && (*p | 0x20) != '{' && (*p | 0x20) != '}') p++;
  return p;
}

/* Skips until the container that left the path is closed, or the slice ends. */
static const pm_byte *pm_skip(struct pm_answer *a, const pm_byte *p, const pm_byte *end) {
  bool high;
  while (p < end) {
    if (a->escaped_off_path) {
      if (pm_walk_string(&a->string, &p, end, false, &high) == PM_OPEN) return p;
      a->escaped_off_path = false;
    }
    p = pm_next_bracket(p, end);
    if (p == end) return p;
    pm_byte c = *p++;
    if (c == '"') {
      a->string = (struct pm_string){0};
      a->escaped_off_path = true;
    } else if ((c | 0x20) == '{') {
      a->skipped++;
    } else if (--a->skipped == 0) {
      a->state = PM_BETWEEN;
      return p;
    }
  }
  return p;
}

/* ---- the machine ---- */

PM_INLINE void pm_open(struct pm_answer *a, bool object) {
  uint8_t below = pm_place_below(pm_here(a), a->word, object);
  if (below == PM_OFF_PATH || a->depth == PM_PLACES_MAX) {
    a->state = PM_SKIPPING, a->skipped = 1, a->escaped_off_path = false;
    return;
  }
  a->place[a->depth++] = below;
  a->key_next = object;
  a->word = PM_WORD_NONE;
}

/* Feeds one piece of a JSON text. */
static void pm_answer_json(struct pm_answer *a, const pm_byte *p, const pm_byte *end) {
  bool high;
  while (p < end) {
    switch (a->state) {
      case PM_SKIPPING: p = pm_skip(a, p, end); continue;
      case PM_AT_STRING: {
        const pm_byte *from = p;
        enum pm_walk walk = pm_walk_string(&a->string, &p, end, false, &high);
        if (a->capture.into != NULL) pm_capture_feed(&a->capture, from, walk == PM_CLOSED ? p - 1 : p);
        if (walk == PM_OPEN) return;
        if (a->capture.into != NULL) pm_answer_string_ended(a);
        a->state = PM_BETWEEN;
        continue;
      }
      case PM_AT_COUNT: {
        pm_byte digit = (pm_byte)(*p - '0');
        if (digit < 10) {
          if (a->digits < 16) a->digits++, a->number = a->number * 10 + digit;
          p++;
          continue;
        }
        bool whole = *p != '.' && (*p | 0x20) != 'e';
        pm_count_ended(a, whole);
        a->state = PM_BETWEEN;
        continue;
      }
      default: break;
    }
    pm_byte c = *p++;
    switch (c) {
      case '"':
        pm_answer_string_begins(a);
        if (a->is_key) { /* the common case: a plain key in one piece */
          const pm_byte *from = p;
          if (pm_walk_string(&a->string, &p, end, false, &high) == PM_CLOSED && !a->string.escapes) {
            a->word = pm_word_of((const char *)from, (size_t)(p - 1 - from));
            continue;
          }
          a->string = (struct pm_string){0};
          p = from;
        }
        a->state = PM_AT_STRING;
        continue;
      case '{': case '[': pm_open(a, c == '{'); continue;
      case '}': case ']':
        if (a->depth) a->depth--;
        a->key_next = false, a->word = PM_WORD_NONE;
        continue;
      case ',':
        a->key_next = pm_here(a) != PM_CHOICES && a->depth != 0;
        a->word = PM_WORD_NONE;
        continue;
      case ':': a->key_next = false; continue;
      case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
        if (pm_count_of(pm_here(a), a->word) != PM_COUNTS) {
          a->state = PM_AT_COUNT, a->number = c - '0', a->digits = 1;
        }
        continue;
      case '-': a->word = PM_WORD_NONE; continue; /* no count is negative */
      default: continue;
    }
  }
}

/* ---- server-sent events ---- */

PM_INLINE const pm_byte *pm_line_end(const pm_byte *p, const pm_byte *end) {
#if defined(PM_SSE2)
  for (; end - p >= 16; p += 16) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);
    unsigned mask = (unsigned)_mm_movemask_epi8(
        _mm_or_si128(_mm_cmpeq_epi8(v, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(v, _mm_set1_epi8('\r'))));
    if (mask) return p + __builtin_ctz(mask);
  }
#endif
  while (p < end && *p != '\n' && *p != '\r') p++;
  return p;
}

static void pm_done_feed(struct pm_answer *a, const pm_byte *p, const pm_byte *end) {
  for (; p < end && a->done_at != 255; p++) {
    if (a->done_at < 6 && *p == (pm_byte)"[DONE]"[a->done_at]) a->done_at++;
    else a->done_at = 255;
  }
}

PM_INLINE void pm_line_over(struct pm_answer *a, pm_byte by) {
  a->line_state = PM_LINE_START, a->line_at = 0, a->after_cr = by == '\r';
}

/* Feeds one chunk of an event stream. */
static void pm_answer_sse(struct pm_answer *a, const pm_byte *p, const pm_byte *end) {
  while (p < end) {
    pm_byte c = *p;
    bool ends = c == '\n' || c == '\r';
    switch (a->line_state) {
      case PM_LINE_START:
        p++;
        if (a->after_cr) {
          a->after_cr = false;
          if (c == '\n') continue; /* the other half of CRLF */
        }
        if (ends) {
          if (a->line_at == 0) { /* an empty line: the event is over */
            pm_document_start(a);
            a->done_at = 0;
          }
          a->line_at = 0;
          a->after_cr = c == '\r';
        } else if (a->line_at < 4 && c == (pm_byte)"data"[a->line_at]) {
          a->line_at++;
        } else if (a->line_at == 4 && c == ':') {
          a->line_state = PM_LINE_SPACE;
        } else if (a->line_at != 0 || (c != 0xef && c != 0xbb && c != 0xbf)) { /* a byte order mark is no field */
          a->line_state = PM_LINE_OTHER;
        }
        continue;
      case PM_LINE_SPACE:
        if (c == ' ') p++;
        a->line_state = PM_LINE_DATA;
        continue;
      case PM_LINE_DATA: {
        const pm_byte *stop = pm_line_end(p, end);
        if (a->done_at != 255) pm_done_feed(a, p, stop);
        pm_answer_json(a, p, stop); /* [DONE] is no object either: it is skipped */
        p = stop;
        if (p == end) return;
        if (a->done_at == 6) a->stream_done = true;
        pm_line_over(a, *p++);
        continue;
      }
      default:
        p = pm_line_end(p, end);
        if (p == end) return;
        pm_line_over(a, *p++);
        continue;
    }
  }
}

/* The answer has ended: a last line without a line end still counts. */
static inline void pm_answer_finish(struct pm_answer *a) {
  if (a->line_state == PM_LINE_DATA && a->done_at == 6) a->stream_done = true;
}

#endif
