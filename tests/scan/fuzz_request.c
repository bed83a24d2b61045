/* libFuzzer target of the request scanner: no crash, and the same result whole and in pieces.
 *
 * The pieces are copies of their own size, so that the address sanitizer sees a read beyond one. Where they are cut
 * follows from the body itself. */
#include "../../sidecar/scan_metadata.h"

#define HOLDS(claim) \
  do {               \
    if (!(claim)) __builtin_trap(); \
  } while (0)

static void feed(struct pm_request *r, const uint8_t *bytes, size_t size) {
  uint8_t *copy = malloc(size + 1);
  memcpy(copy, bytes, size);
  if (r->refusal == PM_ACCEPTED) pm_request_feed(r, copy, size);
  free(copy);
}

static void check(const struct pm_request *r, const uint8_t *data, size_t size) {
  HOLDS(r->position <= size);
  HOLDS(r->model_size <= PM_MODEL_MAX);
  if (r->refusal != PM_ACCEPTED) return;
  HOLDS(r->depth == 0 && r->position == size);
  for (int i = 0; i < r->span_count && i < PM_SPANS_MAX; i++) {
    HOLDS(r->spans[i].from <= r->spans[i].to && r->spans[i].to < size);
    HOLDS(data[r->spans[i].from - 1] == '"' && data[r->spans[i].to] == '"');
  }
}

static void check_said(const struct pm_request *r) {
  static struct pm_said said;
  pm_said_write(&said, r, NULL, 0);
  int separators = 0;
  for (uint32_t i = 0; i < said.size; i++) {
    if (said.text[i] == '\n') separators++;
    else HOLDS(said.text[i] > 0x20 && said.text[i] < 0x7f);
  }
  HOLDS(separators == PM_COLUMNS - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct pm_request whole, cut;
  pm_request_start(&whole);
  feed(&whole, data, size);
  pm_request_finish(&whole);
  check(&whole, data, size);

  pm_request_start(&cut);
  uint32_t step = 2166136261u;
  for (size_t at = 0; at < size;) {
    step = (step ^ data[at]) * 16777619u;
    size_t piece = (step >> 16) % (step & 4 ? 5 : 90);
    if (piece > size - at) piece = size - at;
    feed(&cut, data + at, piece);
    at += piece;
  }
  pm_request_finish(&cut);
  check(&cut, data, size);

  HOLDS((whole.refusal == PM_ACCEPTED) == (cut.refusal == PM_ACCEPTED));
  if (whole.refusal != PM_ACCEPTED) return 0;
  check_said(&whole);
  HOLDS(whole.present == cut.present && whole.model_seen == cut.model_seen && whole.span_count == cut.span_count);
  HOLDS(whole.model_size == cut.model_size && memcmp(whole.model, cut.model, whole.model_size) == 0);
  HOLDS(whole.stop_count == cut.stop_count && whole.stream == cut.stream);
  for (int field = 0; field < PM_NUMBERS; field++)
    if (pm_has(&whole, (enum pm_field)field)) HOLDS(strcmp(whole.number[field], cut.number[field]) == 0);
  return 0;
}
