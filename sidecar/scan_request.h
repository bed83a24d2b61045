/* The request scanner: reads the top level of a JSON body, once, in slices.
 *
 * Decides: whether the body is one JSON object (RFC 8259, UTF-8, nested values included), which `model` it names and
 * the few parameters in enum pm_field. For every key the last duplicate wins, as in servers' parsers; keys are compared
 * unescaped. Refuses: see enum pm_refusal. Leaves to the server: 1e400, large integers, lone surrogates in escapes.
 * Called by scan.c, and by tests/scan. */
#ifndef PM_SCAN_REQUEST_H
#define PM_SCAN_REQUEST_H

#include <math.h>
#include <stdlib.h>

#include "scan_text.h"
#include "scan_utf8.h"

enum {
  PM_DEPTH_MAX = 512,  /* levels of nesting; servers' parsers give up between 200 and 1000 */
  PM_MODEL_MAX = 1024, /* bytes, unescaped */
  PM_EFFORT_MAX = 64,
  PM_NUMBER_MAX = 63,  /* characters of a number that is reported; a longer one is left out */
  PM_KEY_MAX = 24,     /* longer than any key in pm_field_of */
  PM_SPANS_MAX = 8,    /* duplicates of `model` whose places are kept */
};

enum pm_refusal {
  PM_ACCEPTED,
  PM_EMPTY,
  PM_NOT_OBJECT,
  PM_MALFORMED,
  PM_ENDED_EARLY,
  PM_TOO_DEEP,
  PM_NOT_UTF8,
  PM_MODEL_NOT_STRING,
  PM_MODEL_TOO_LONG,
};

/* What the scanner looks for; the first ten are numbers. */
enum pm_field {
  PM_FIELD_NONE,
  PM_FIELD_TEMPERATURE,
  PM_FIELD_TOP_P,
  PM_FIELD_TOP_K,
  PM_FIELD_MAX_TOKENS,
  PM_FIELD_FREQUENCY_PENALTY,
  PM_FIELD_PRESENCE_PENALTY,
  PM_FIELD_SEED,
  PM_FIELD_N,
  PM_FIELD_MAX_COMPLETION_TOKENS,
  PM_FIELD_MAX_OUTPUT_TOKENS,
  PM_FIELD_MODEL,
  PM_FIELD_STREAM,
  PM_FIELD_EFFORT,
  PM_FIELD_STOP,
  PM_FIELDS,
  PM_NUMBERS = PM_FIELD_MAX_OUTPUT_TOKENS + 1,
};

enum pm_request_state {
  PM_START,
  PM_FIRST_KEY,   /* a key or } */
  PM_NEXT_KEY,    /* a key */
  PM_COLON,
  PM_VALUE,
  PM_FIRST_VALUE, /* a value or ] */
  PM_AFTER,       /* a comma or the container's end */
  PM_IN_KEY,
  PM_IN_STRING,
  PM_IN_NUMBER,
  PM_IN_LITERAL,
  PM_DONE,
};

/* One body. Everything before `objects` is zero at the start; the rest is written before it is read. */
struct pm_request {
  uint64_t position;       /* bytes fed so far */
  struct pm_string string;
  struct pm_capture capture; /* into == NULL: the string or number is not collected */
  uint32_t present;        /* bit per pm_field */
  uint32_t stop_count;
  uint16_t depth;
  uint16_t model_size;
  uint8_t effort_size;
  uint8_t state, number_state;
  uint8_t field;           /* the top-level key whose value is being read */
  uint8_t refusal;
  uint8_t found;           /* PM_NOT_OBJECT: first byte of what was found instead */
  uint8_t bom;             /* bytes of a byte order mark seen */
  bool key_cut;            /* the key is being collected, as it is cut or has escapes */
  bool stop_array;
  bool stream;
  bool model_seen, model_bad, model_long;
  uint8_t span_count;      /* places of `model` values, quotes left out; beyond PM_SPANS_MAX it says one more */
  struct pm_utf8 utf8;
  const char *literal;     /* what is left to match */
  uint64_t objects[PM_DEPTH_MAX / 64]; /* bit per level: an object, not an array */
  struct pm_span {
    uint64_t from, to;
  } spans[PM_SPANS_MAX];
  char key[PM_KEY_MAX];
  uint8_t number_size[PM_NUMBERS];
  char number[PM_NUMBERS][PM_NUMBER_MAX + 1]; /* as sent, so that large integers stay exact */
  char effort[PM_EFFORT_MAX];
  char model[PM_MODEL_MAX];
};

#define PM_IS(name) (memcmp(key, name, sizeof(name) - 1) == 0)

/* By length first: a body has some ten keys and most are none of ours. */
static inline uint8_t pm_field_of(const char *key, size_t size) {
  switch (size) {
    case 1: return PM_IS("n") ? PM_FIELD_N : PM_FIELD_NONE;
    case 4: return PM_IS("stop") ? PM_FIELD_STOP : PM_IS("seed") ? PM_FIELD_SEED : PM_FIELD_NONE;
    case 5:
      return PM_IS("model") ? PM_FIELD_MODEL : PM_IS("top_p") ? PM_FIELD_TOP_P : PM_IS("top_k") ? PM_FIELD_TOP_K
                                                                                                 : PM_FIELD_NONE;
    case 6: return PM_IS("stream") ? PM_FIELD_STREAM : PM_FIELD_NONE;
    case 10: return PM_IS("max_tokens") ? PM_FIELD_MAX_TOKENS : PM_FIELD_NONE;
    case 11: return PM_IS("temperature") ? PM_FIELD_TEMPERATURE : PM_FIELD_NONE;
    case 16:
      return PM_IS("reasoning_effort") ? PM_FIELD_EFFORT
                                       : PM_IS("presence_penalty") ? PM_FIELD_PRESENCE_PENALTY : PM_FIELD_NONE;
    case 17:
      return PM_IS("max_output_tokens") ? PM_FIELD_MAX_OUTPUT_TOKENS
                                        : PM_IS("frequency_penalty") ? PM_FIELD_FREQUENCY_PENALTY : PM_FIELD_NONE;
    case 21: return PM_IS("max_completion_tokens") ? PM_FIELD_MAX_COMPLETION_TOKENS : PM_FIELD_NONE;
    default: return PM_FIELD_NONE;
  }
}

static inline void pm_request_start(struct pm_request *r) { memset(r, 0, offsetof(struct pm_request, objects)); }

PM_INLINE bool pm_has(const struct pm_request *r, enum pm_field field) { return r->present >> field & 1; }
PM_INLINE bool pm_is_number(uint8_t field) {
  return field >= PM_FIELD_TEMPERATURE && field < PM_NUMBERS;
}
PM_INLINE bool pm_is_space(pm_byte c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

PM_INLINE bool pm_in_object(const struct pm_request *r) {
  unsigned level = r->depth - 1u;
  return r->objects[level / 64] >> (level % 64) & 1;
}

PM_INLINE bool pm_push(struct pm_request *r, bool object) {
  unsigned level = r->depth;
  if (level == PM_DEPTH_MAX) return false;
  uint64_t bit = 1ull << (level % 64);
  if (object) r->objects[level / 64] |= bit;
  else r->objects[level / 64] &= ~bit;
  r->depth++;
  return true;
}

/* ---- what the top level says ---- */

static void pm_key_known(struct pm_request *r, const char *key, size_t size) {
  uint8_t field = pm_field_of(key, size);
  r->field = field;
  r->present &= ~(1u << field);
  r->stop_array = false;
  r->capture.into = NULL;
  if (field == PM_FIELD_MODEL) r->model_seen = r->model_bad = true, r->model_long = false;
}

/* A value of a wanted top-level key begins with c: decide whether it is collected, and note arrays of `stop`. */
static void pm_value_begins(struct pm_request *r, pm_byte c, uint64_t at) {
  r->capture.into = NULL;
  if (c == '"') {
    if (r->field == PM_FIELD_MODEL) {
      pm_capture_start(&r->capture, r->model, PM_MODEL_MAX);
      if (r->span_count <= PM_SPANS_MAX) r->span_count++;
      if (r->span_count <= PM_SPANS_MAX) r->spans[r->span_count - 1].from = at + 1;
    } else if (r->field == PM_FIELD_EFFORT) {
      pm_capture_start(&r->capture, r->effort, PM_EFFORT_MAX);
    } else if (r->field == PM_FIELD_STOP) {
      r->present |= 1u << PM_FIELD_STOP, r->stop_count = 1;
    }
  } else if (c == '[') {
    if (r->field == PM_FIELD_STOP) {
      r->stop_array = true;
      r->present |= 1u << PM_FIELD_STOP, r->stop_count = 0;
    }
  } else if (c == '-' || pm_is_digit(c)) {
    if (pm_is_number(r->field)) pm_capture_start(&r->capture, r->number[r->field], PM_NUMBER_MAX);
  }
}

static void pm_string_ended(struct pm_request *r, uint64_t at) {
  pm_capture_end(&r->capture);
  if (r->field == PM_FIELD_MODEL) {
    r->model_bad = false;
    r->model_long = r->capture.over;
    r->model_size = (uint16_t)r->capture.size;
    if (r->span_count <= PM_SPANS_MAX) r->spans[r->span_count - 1].to = at;
  } else if (r->field == PM_FIELD_EFFORT && !r->capture.over) {
    r->effort_size = (uint8_t)r->capture.size;
    r->present |= 1u << PM_FIELD_EFFORT;
  }
  r->capture.into = NULL;
}

/* Only a number with an exponent can be beyond what a double holds: PM_NUMBER_MAX digits are not. */
static bool pm_is_finite(const char *text, size_t size) {
  if (memchr(text, 'e', size) == NULL && memchr(text, 'E', size) == NULL) return true;
  return isfinite(strtod(text, NULL));
}

static void pm_number_ended(struct pm_request *r) {
  char *text = r->capture.into;
  uint32_t size = r->capture.size;
  r->capture.into = NULL;
  if (text == NULL || r->capture.over) return;
  text[size] = 0;
  if (!pm_is_finite(text, size)) return;
  r->number_size[r->field] = (uint8_t)size;
  r->present |= 1u << r->field;
}

/* ---- tokens ---- */

/* The state after the first byte of a value; PM_DONE: no value begins so. Containers are pushed by the caller. */
PM_INLINE uint8_t pm_first_of_value(struct pm_request *r, pm_byte c) {
  switch (c) {
    case '"':
      r->string = (struct pm_string){0};
      return PM_IN_STRING;
    case '-': r->number_state = PM_MINUS; return PM_IN_NUMBER;
    case '0': r->number_state = PM_ZERO; return PM_IN_NUMBER;
    case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9':
      r->number_state = PM_INTEGER;
      return PM_IN_NUMBER;
    case 't': r->literal = "rue"; return PM_IN_LITERAL;
    case 'f': r->literal = "alse"; return PM_IN_LITERAL;
    case 'n': r->literal = "ull"; return PM_IN_LITERAL;
    default: return PM_DONE;
  }
}

static bool pm_refuse(struct pm_request *r, enum pm_refusal refusal, const pm_byte *base, const pm_byte *at) {
  r->refusal = (uint8_t)refusal;
  r->position += (uint64_t)(at - base);
  return false;
}

/* ---- the machine ---- */

/* Feeds a key's bytes from `from` to p: a plain key in one piece is looked up where it lies, others are collected. */
PM_INLINE void pm_key_walked(struct pm_request *r, const pm_byte *from, const pm_byte *p, bool closed) {
  if (closed && !r->key_cut && !r->string.escapes) {
    pm_key_known(r, (const char *)from, (size_t)(p - 1 - from));
    return;
  }
  if (!r->key_cut) pm_capture_start(&r->capture, r->key, PM_KEY_MAX);
  r->key_cut = true;
  pm_capture_feed(&r->capture, from, closed ? p - 1 : p);
  if (!closed) return;
  pm_capture_end(&r->capture);
  pm_key_known(r, r->key, r->capture.over ? 0 : r->capture.size);
}

/* The slice is used up in this state. */
#define PM_REST(in_state)  \
  do {                     \
    if (p == end) {        \
      state = (in_state);  \
      goto out;            \
    }                      \
  } while (0)

#define PM_SPACE(in_state)                              \
  do {                                                  \
    while (p < end && *p <= ' ' && pm_is_space(*p)) p++; \
    PM_REST(in_state);                                  \
  } while (0)

#define PM_REFUSE(refusal, at) return pm_refuse(r, refusal, base, at)
#define PM_AT(p) (r->position + (uint64_t)((p) - base))

/* Feeds one slice. False: refused, r->refusal says why and r->position where; feed no more. One long function, as the
 * states run into each other: what follows is mostly known, so each goes to the next without a look-up. */
static bool pm_request_feed(struct pm_request *r, const pm_byte *base, size_t size) {
  const pm_byte *p = base, *const end = base + size, *from = p;
  bool high = r->utf8.left != 0;
  uint8_t state = r->state;
  enum pm_walk walk;
  switch (state) {
    case PM_START: goto start;
    case PM_FIRST_KEY: goto first_key;
    case PM_NEXT_KEY: goto next_key;
    case PM_COLON: goto colon;
    case PM_VALUE: goto value;
    case PM_FIRST_VALUE: goto first_value;
    case PM_AFTER: goto after;
    case PM_IN_KEY: goto in_key;
    case PM_IN_STRING: goto in_string;
    case PM_IN_NUMBER: goto in_number;
    case PM_IN_LITERAL: goto in_literal;
    default: goto done;
  }

start:
  PM_SPACE(PM_START);
  if (r->bom < 3 && *p == (pm_byte)"\xef\xbb\xbf"[r->bom] && PM_AT(p) == r->bom) {
    r->bom++, p++;
    high = true;
    goto start;
  }
  if (*p != '{' || (r->bom != 0 && r->bom != 3)) {
    r->found = *p;
    PM_REFUSE(*p == '[' || pm_first_of_value(r, *p) != PM_DONE ? PM_NOT_OBJECT : PM_MALFORMED, p);
  }
  pm_push(r, true);
  p++;

first_key:
  PM_SPACE(PM_FIRST_KEY);
  if (*p == '}') goto closes;
  goto key;

next_key:
  PM_SPACE(PM_NEXT_KEY);
key:
  if (*p != '"') PM_REFUSE(PM_MALFORMED, p);
  r->string = (struct pm_string){0}, r->key_cut = false;
  from = ++p;

in_key:
  walk = pm_walk_string(&r->string, &p, end, true, &high);
  if (walk == PM_BAD) PM_REFUSE(PM_MALFORMED, p);
  if (r->depth == 1) pm_key_walked(r, from, p, walk == PM_CLOSED);
  if (walk == PM_OPEN) PM_REST(PM_IN_KEY);

colon:
  PM_SPACE(PM_COLON);
  if (*p != ':') PM_REFUSE(PM_MALFORMED, p);
  p++;

value:
  PM_SPACE(PM_VALUE);
any_value:
  if (r->depth <= 2) {
    if (r->depth == 1 && r->field) pm_value_begins(r, *p, PM_AT(p));
    else if (r->depth == 2 && r->stop_array) r->stop_count++;
  }
  if (*p == '"') {
    r->string = (struct pm_string){0};
    from = ++p;
    goto in_string;
  }
  if (*p == '{') {
    if (!pm_push(r, true)) PM_REFUSE(PM_TOO_DEEP, p);
    p++;
    goto first_key;
  }
  if (*p == '[') {
    if (!pm_push(r, false)) PM_REFUSE(PM_TOO_DEEP, p);
    p++;
    goto first_value;
  }
  state = pm_first_of_value(r, *p);
  if (state == PM_DONE) PM_REFUSE(PM_MALFORMED, p);
  from = p++;
  if (state == PM_IN_LITERAL) goto in_literal;

in_number:
  walk = pm_walk_number(&r->number_state, &p, end);
  if (walk == PM_BAD) PM_REFUSE(PM_MALFORMED, p);
  if (r->capture.into != NULL) {
    for (; from < p; from++) pm_capture_byte(&r->capture, *from);
    if (walk == PM_CLOSED) pm_number_ended(r);
  }
  if (walk == PM_OPEN) PM_REST(PM_IN_NUMBER);
  goto after;

first_value:
  PM_SPACE(PM_FIRST_VALUE);
  if (*p == ']') goto closes;
  goto any_value;

in_string:
  walk = pm_walk_string(&r->string, &p, end, true, &high);
  if (walk == PM_BAD) PM_REFUSE(PM_MALFORMED, p);
  if (r->capture.into != NULL) {
    pm_capture_feed(&r->capture, from, walk == PM_CLOSED ? p - 1 : p);
    if (walk == PM_CLOSED) pm_string_ended(r, PM_AT(p - 1));
  }
  if (walk == PM_OPEN) PM_REST(PM_IN_STRING);
  goto after;

in_literal:
  for (; *r->literal; r->literal++, p++) {
    PM_REST(PM_IN_LITERAL);
    if (*p != (pm_byte)*r->literal) PM_REFUSE(PM_MALFORMED, p);
  }
  if (r->depth == 1 && r->field == PM_FIELD_STREAM && r->literal[-1] == 'e') { /* "rue" or "alse" */
    r->present |= 1u << PM_FIELD_STREAM;
    r->stream = r->literal[-2] == 'u';
  }

after:
  PM_SPACE(PM_AFTER);
  if (*p == ',') {
    p++;
    if (pm_in_object(r)) goto next_key;
    goto value;
  }
closes:
  if (*p != (pm_in_object(r) ? '}' : ']')) PM_REFUSE(PM_MALFORMED, p);
  p++;
  if (--r->depth != 0) goto after;

done:
  PM_SPACE(PM_DONE);
  PM_REFUSE(PM_MALFORMED, p);

out:
  r->state = state;
  if (high && !pm_utf8_feed(&r->utf8, base, end)) PM_REFUSE(PM_NOT_UTF8, base);
  r->position += size;
  return true;
}

#undef PM_REST
#undef PM_SPACE
#undef PM_REFUSE
#undef PM_AT

/* The body has ended. False: refused, r->refusal says why. */
static bool pm_request_finish(struct pm_request *r) {
  if (r->refusal != PM_ACCEPTED) return false;
  enum pm_refusal refusal = PM_ACCEPTED;
  if (r->state == PM_START && (r->bom == 0 || r->bom == 3)) refusal = PM_EMPTY;
  else if (r->state != PM_DONE) refusal = PM_ENDED_EARLY;
  else if (r->model_seen && r->model_bad) refusal = PM_MODEL_NOT_STRING;
  else if (r->model_seen && r->model_long) refusal = PM_MODEL_TOO_LONG;
  r->refusal = (uint8_t)refusal;
  return refusal == PM_ACCEPTED;
}

/* ---- what it found ---- */

/* Every byte is in 0x21..0x7e, and there is one. */
static inline bool pm_is_printable(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++)
    if ((pm_byte)text[i] <= 0x20 || (pm_byte)text[i] >= 0x7f) return false;
  return size > 0;
}

/* max_completion_tokens, else max_output_tokens, else max_tokens; PM_FIELD_NONE: none of them. */
static inline uint8_t pm_max_tokens_field(const struct pm_request *r) {
  static const uint8_t order[] = {PM_FIELD_MAX_COMPLETION_TOKENS, PM_FIELD_MAX_OUTPUT_TOKENS, PM_FIELD_MAX_TOKENS};
  for (size_t i = 0; i < sizeof order; i++)
    if (pm_has(r, order[i])) return order[i];
  return PM_FIELD_NONE;
}

#endif
