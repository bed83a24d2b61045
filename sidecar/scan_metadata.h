/* What the module says about a request: one text, under the key `said` of the metadata namespace `pointsman`.
 *
 * One text, as each key costs Envoy some 4000 instructions, to set and to copy into the log entry. It is PM_COLUMNS
 * columns, separated by LF, always in this order; a column that is empty is not known:
 *
 *    0  temperature            8  how many stop sequences   16  time to the first chunk of an event stream, ns
 *    1  top_p                  9  stream: 0 or 1            17  the answer's model
 *    2  top_k                 10  model                     18  the answer's id
 *    3  max_tokens            11  reasoning_effort          19  finish reasons, separated by commas
 *    4  frequency_penalty     12  input tokens              20  1: the event stream ended with [DONE]
 *    5  presence_penalty      13  output tokens
 *    6  seed                  14  cached tokens
 *    7  n                     15  reasoning tokens
 *
 * 0 to 7 are JSON numbers as they were sent, of PM_NUMBER_MAX characters at most and finite as doubles; the others are
 * digits. Texts are printable ASCII, so none can make a column. A new column goes to the end: readers leave
 * what follows the ones that they know, and take what is missing as empty. xds/log_entries.py reads it. Called by
 * scan.c, and by tests/scan. */
#ifndef PM_SCAN_METADATA_H
#define PM_SCAN_METADATA_H

#include "scan_answer.h"
#include "scan_request.h"

enum {
  PM_COLUMNS = 21,
  PM_DIGITS_MAX = 20, /* of any uint64_t */
  PM_SAID_MAX = PM_COLUMNS + PM_NUMBERS * PM_NUMBER_MAX + PM_MODEL_MAX + PM_EFFORT_MAX +
                (PM_COUNTS + 2) * PM_DIGITS_MAX + 2 * PM_LABEL_MAX + PM_FINISHES_MAX * (PM_WORD_MAX + 1) + 2,
};

/* The text in the making. */
struct pm_said {
  uint32_t size, empty; /* empty: separators in it; when it is nothing else, nothing is said */
  char text[PM_SAID_MAX];
};

/* The next column. PM_SAID_MAX has room for all of them at their longest. */
PM_INLINE void pm_say(struct pm_said *s, const char *value, size_t size) {
  if (size > sizeof s->text - s->size - 1) size = 0;
  if (size) memcpy(s->text + s->size, value, size);
  s->size += (uint32_t)size;
  s->text[s->size++] = '\n';
  s->empty++;
}

static void pm_say_digits(struct pm_said *s, bool known, uint64_t value) {
  char digits[PM_DIGITS_MAX], *end = digits + sizeof digits, *at = end;
  if (known)
    do *--at = (char)('0' + value % 10);
    while (value /= 10);
  pm_say(s, at, (size_t)(end - at));
}

static inline void pm_say_request(struct pm_said *s, const struct pm_request *r) {
  for (uint8_t column = PM_FIELD_TEMPERATURE; column <= PM_FIELD_N; column++) {
    uint8_t field = column == PM_FIELD_MAX_TOKENS ? pm_max_tokens_field(r) : column;
    pm_say(s, r->number[field], pm_has(r, field) ? r->number_size[field] : 0);
  }
  pm_say_digits(s, pm_has(r, PM_FIELD_STOP), r->stop_count);
  pm_say(s, r->stream ? "1" : "0", pm_has(r, PM_FIELD_STREAM));
  pm_say(s, r->model, r->model_seen && pm_is_printable(r->model, r->model_size) ? r->model_size : 0);
  bool effort = pm_has(r, PM_FIELD_EFFORT) && pm_is_printable(r->effort, r->effort_size);
  pm_say(s, r->effort, effort ? r->effort_size : 0);
}

static inline void pm_say_answer(struct pm_said *s, const struct pm_answer *a, uint64_t first_chunk_ns) {
  for (int count = 0; count < PM_COUNTS; count++) pm_say_digits(s, a->present >> count & 1, a->count[count]);
  pm_say_digits(s, first_chunk_ns != 0, first_chunk_ns);
  pm_say(s, a->model, a->model_size);
  pm_say(s, a->id, a->id_size);
  pm_say(s, a->finishes, a->finishes_size);
  pm_say(s, "1", a->stream_done);
}

/* Writes the text. request: an accepted body, or NULL; answer: one that is over or broken off, or NULL.
 * first_chunk_ns: 0, not known. False: there is nothing to say. */
static inline bool pm_said_write(struct pm_said *s, const struct pm_request *request, const struct pm_answer *answer,
                                 uint64_t first_chunk_ns) {
  enum { REQUEST_COLUMNS = 12 };
  s->size = s->empty = 0;
  if (request != NULL) pm_say_request(s, request);
  else
    while (s->empty < REQUEST_COLUMNS) pm_say(s, NULL, 0);
  if (answer != NULL) pm_say_answer(s, answer, first_chunk_ns);
  else
    while (s->empty < PM_COLUMNS) pm_say(s, NULL, 0);
  bool says = s->size > s->empty;
  s->size--; /* the last separator separates nothing */
  return says;
}

#endif
