/* libFuzzer target of the answer scanner, JSON and SSE: no crash, and the same result whole and in pieces. */
#include <stdlib.h>

#include "../../sidecar/scan_answer.h"

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
    HOLDS(whole.present == cut.present && whole.stream_done == cut.stream_done);
    for (int i = 0; i < PM_COUNTS; i++)
      if (whole.present >> i & 1) HOLDS(whole.count[i] == cut.count[i] && whole.count[i] >= 0);
    HOLDS(whole.finishes_size <= sizeof whole.finishes && whole.finishes_size == cut.finishes_size);
    HOLDS(memcmp(whole.finishes, cut.finishes, whole.finishes_size) == 0);
    HOLDS(whole.id_size == cut.id_size && memcmp(whole.id, cut.id, whole.id_size) == 0);
    HOLDS(whole.model_size == cut.model_size && memcmp(whole.model, cut.model, whole.model_size) == 0);
  }
  return 0;
}
