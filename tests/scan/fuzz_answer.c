/* libFuzzer target of the answer scanner, JSON and SSE: no crash, and the same result whole and in pieces. */
#include <stdlib.h>

#include "../../sidecar/scan_metadata.h"

#define HOLDS(claim) \
  do {               \
    if (!(claim)) __builtin_trap(); \
  } while (0)

static void feed(struct pm_answer *a, int sse, const uint8_t *bytes, size_t size) {
  uint8_t *copy = malloc(size + 1);
  memcpy(copy, bytes, size);
  if (sse) pm_answer_sse(a, copy, copy + size);
  else pm_answer_json(a, copy, copy + size);
  free(copy);
}

static void check_said(const struct pm_answer *a) {
  static struct pm_said said;
  pm_said_write(&said, NULL, a, 0);
  int separators = 0;
  for (uint32_t i = 0; i < said.size; i++) {
    if (said.text[i] == '\n') separators++;
    else HOLDS(said.text[i] >= 0x20 && said.text[i] < 0x7f);
  }
  HOLDS(separators == PM_COLUMNS - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static struct pm_answer whole, cut;
  for (int sse = 0; sse < 2; sse++) {
    pm_answer_start(&whole);
    feed(&whole, sse, data, size);
    pm_answer_finish(&whole);
    pm_answer_start(&cut);
    uint32_t step = 2166136261u;
    for (size_t at = 0; at < size;) {
      step = (step ^ data[at]) * 16777619u;
      size_t piece = (step >> 16) % (step & 4 ? 5 : 90);
      if (piece > size - at) piece = size - at;
      feed(&cut, sse, data + at, piece);
      at += piece;
    }
    pm_answer_finish(&cut);
    check_said(&whole);
    HOLDS(whole.present == cut.present && whole.stream_done == cut.stream_done);
    for (int i = 0; i < PM_COUNTS; i++)
      if (whole.present >> i & 1) HOLDS(whole.count[i] == cut.count[i]);
    HOLDS(whole.finishes_size <= sizeof whole.finishes && whole.finishes_size == cut.finishes_size);
    HOLDS(memcmp(whole.finishes, cut.finishes, whole.finishes_size) == 0);
    HOLDS(whole.id_size == cut.id_size && memcmp(whole.id, cut.id, whole.id_size) == 0);
    HOLDS(whole.model_size == cut.model_size && memcmp(whole.model, cut.model, whole.model_size) == 0);
  }
  return 0;
}
