/* The pure scanners behind plain functions, for ctypes (pure.py) and the benchmark. */
#include "../../sidecar/scan_headers.h"
#include "../../sidecar/scan_metadata.h"

#define EXPORT __attribute__((visibility("default")))

/* Feeds data in pieces that end at the given offsets (ascending) and at its end. */
static void in_pieces(const char *data, size_t size, const size_t *cuts, size_t cut_count,
                      bool (*feed)(void *to, const pm_byte *, size_t), void *to) {
  size_t from = 0;
  for (size_t i = 0; i <= cut_count; i++) {
    size_t until = i < cut_count ? cuts[i] : size;
    if (cut_count == 0) {
      feed(to, (const pm_byte *)data, size);
      return;
    }
    pm_byte *piece = malloc(until - from + 1);
    memcpy(piece, data + from, until - from);
    bool more = feed(to, piece, until - from);
    free(piece);
    if (!more) return;
    from = until;
  }
}

static bool feed_request(void *to, const pm_byte *bytes, size_t size) { return pm_request_feed(to, bytes, size); }
static bool feed_json(void *to, const pm_byte *b, size_t size) { return pm_answer_json(to, b, b + size), true; }
static bool feed_sse(void *to, const pm_byte *b, size_t size) { return pm_answer_sse(to, b, b + size), true; }

EXPORT size_t pure_request_size(void) { return sizeof(struct pm_request); }
EXPORT size_t pure_answer_size(void) { return sizeof(struct pm_answer); }

/* Returns the refusal. */
EXPORT int pure_request(struct pm_request *r, const char *data, size_t size, const size_t *cuts, size_t cut_count) {
  pm_request_start(r);
  in_pieces(data, size, cuts, cut_count, feed_request, r);
  pm_request_finish(r);
  return r->refusal;
}

/* model: -1 absent, else its size; *into points at it. */
EXPORT int pure_model(struct pm_request *r, const char **into) {
  *into = r->model;
  return r->model_seen ? r->model_size : -1;
}

EXPORT bool pure_number(struct pm_request *r, int field, double *value) {
  if (!pm_has(r, (enum pm_field)field)) return false;
  if (pm_is_number((uint8_t)field)) *value = strtod(r->number[field], NULL);
  else *value = field == PM_FIELD_STREAM ? r->stream : r->stop_count;
  return true;
}

EXPORT bool pure_max_tokens(struct pm_request *r, double *value) { return pure_number(r, pm_max_tokens_field(r), value); }
EXPORT int pure_effort(struct pm_request *r, const char **into) {
  *into = r->effort;
  return pm_has(r, PM_FIELD_EFFORT) ? r->effort_size : -1;
}

/* Returns how many there are; into has room for PM_SPANS_MAX pairs. */
EXPORT int pure_spans(struct pm_request *r, uint64_t *into) {
  for (int i = 0; i < r->span_count && i < PM_SPANS_MAX; i++) {
    into[2 * i] = r->spans[i].from;
    into[2 * i + 1] = r->spans[i].to;
  }
  return r->span_count;
}

EXPORT uint64_t pure_position(struct pm_request *r) { return r->position; }

EXPORT void pure_answer(struct pm_answer *a, bool sse, const char *data, size_t size, const size_t *cuts,
                        size_t cut_count) {
  pm_answer_start(a);
  in_pieces(data, size, cuts, cut_count, sse ? feed_sse : feed_json, a);
  pm_answer_finish(a);
}

EXPORT bool pure_count(struct pm_answer *a, int count, double *value) {
  *value = (double)a->count[count];
  return a->present >> count & 1;
}

/* 0 finish reasons, 1 id, 2 model */
EXPORT int pure_text(struct pm_answer *a, int which, const char **into) {
  *into = which == 0 ? a->finishes : which == 1 ? a->id : a->model;
  return which == 0 ? a->finishes_size : which == 1 ? a->id_size : a->model_size;
}
EXPORT bool pure_done(struct pm_answer *a) { return a->stream_done; }

EXPORT size_t pure_said_size(void) { return sizeof(struct pm_said); }

/* said: -1 nothing, else the size of the text; *into points at it. r and a may be NULL. */
EXPORT int pure_said(struct pm_said *s, const struct pm_request *r, const struct pm_answer *a, uint64_t first_chunk_ns,
                     const char **into) {
  bool says = pm_said_write(s, r, a, first_chunk_ns);
  *into = s->text;
  return says ? (int)s->size : -1;
}

EXPORT int pure_media(const char *text, size_t size) { return (int)pm_media_of((struct pm_view){text, size}); }

EXPORT size_t pure_reason(const char *reason, size_t reason_size, const char *target, size_t target_size, char *into,
                          size_t room) {
  return pm_visible_reason((struct pm_view){reason, reason_size}, (struct pm_view){target, target_size}, into, room);
}
