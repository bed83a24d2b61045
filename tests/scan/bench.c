/* How fast the pure scanners are. By hand:
 *   cc -std=c11 -O3 -o tests/scan/bin/bench tests/scan/bench.c -lm && tests/scan/bin/bench
 * Prints microseconds a body and MB/s, best of 7 rounds. Bodies come in slices of 16 KB, as Envoy's buffers do. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <time.h>

#include "../../sidecar/scan_answer.h"
#include "../../sidecar/scan_request.h"

enum { SLICE = 16384 };

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static struct pm_request request;
static struct pm_answer answer;

static size_t slice_end(size_t at, size_t size) { return size - at < SLICE ? size : at + SLICE; }

static int scan_request(const char *body, size_t size) {
  pm_request_start(&request);
  for (size_t at = 0; at < size; at += SLICE)
    if (!pm_request_feed(&request, (const pm_byte *)body + at, slice_end(at, size) - at)) return 0;
  return pm_request_finish(&request);
}

static int scan_json(const char *body, size_t size) {
  pm_answer_start(&answer);
  for (size_t at = 0; at < size; at += SLICE)
    pm_answer_json(&answer, (const pm_byte *)body + at, (const pm_byte *)body + slice_end(at, size));
  return answer.present != 0;
}

static int scan_sse(const char *body, size_t size) {
  pm_answer_start(&answer);
  for (size_t at = 0; at < size; at += SLICE)
    pm_answer_sse(&answer, (const pm_byte *)body + at, (const pm_byte *)body + slice_end(at, size));
  return answer.present != 0;
}

static void measure(const char *name, int (*scan)(const char *, size_t), const char *body, size_t size) {
  double best = 1e18;
  int times = (int)(2000000 / (size + 500)) + 1;
  for (int round = 0; round < 7; round++) {
    double from = now_us();
    for (int i = 0; i < times; i++)
      if (!scan(body, size)) {
        printf("%s: not accepted\n", name);
        return;
      }
    double each = (now_us() - from) / times;
    if (each < best) best = each;
  }
  printf("%-44s %8zu B %9.2f us %8.0f MB/s\n", name, size, best, (double)size / best);
}

/* head + unit repeated up to about `size` bytes + tail */
static size_t fill(char *into, const char *head, const char *unit, const char *tail, size_t size) {
  size_t at = (size_t)sprintf(into, "%s", head), step = strlen(unit);
  while (at + step < size) memcpy(into + at, unit, step), at += step;
  return at + (size_t)sprintf(into + at, "%s", tail);
}

#define HEAD "{\"model\":\"support-chat\",\"messages\":["
#define TAIL "],\"temperature\":0.2,\"max_tokens\":256,\"stream\":true,\"stop\":[\"\\n\\n\"]}"
#define ONE HEAD "{\"role\":\"user\",\"content\":\""
#define PLAIN "What is the weather like in Oslo today? "
#define ESCAPED "say \\\"hi\\\" to C:\\\\dir\\\\x\\n and \\\"bye\\\" "
#define USAGE "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}"

static const struct {
  const char *name;
  int (*scan)(const char *, size_t);
  size_t size;
  const char *head, *unit, *tail;
} cases[] = {
    {"request, chat", scan_request, 500, ONE, PLAIN, "\"}" TAIL},
    {"request, one plain string", scan_request, 32000, ONE, PLAIN, "\"}" TAIL},
    {"request, one plain string", scan_request, 220000, ONE, PLAIN, "\"}" TAIL},
    {"request, one string full of escapes", scan_request, 220000, ONE, ESCAPED, "\"}" TAIL},
    {"request, short messages full of escapes", scan_request, 220000, HEAD "{}",
     ",{\"role\":\"user\",\"content\":\"" ESCAPED "\"}", TAIL},
    {"request, \\u escapes", scan_request, 220000, ONE, "\\u4f60\\u597d ", "\"}" TAIL},
    {"request, Chinese", scan_request, 220000, ONE, "阴气渐重，露凝", "\"}" TAIL},
    {"request, French", scan_request, 220000, ONE, "déjà vu, naïve café, garçón; ", "\"}" TAIL},
    {"request, token ids", scan_request, 220000, "{\"model\":\"m\",\"prompt\":[1", ",15496", "]}"},
    {"answer, embeddings", scan_json, 1000000, "{\"data\":[{\"embedding\":[0.1", ",-0.012345678", "]}]," USAGE},
    {"answer, chat", scan_json, 2000, "{\"id\":\"x\",\"choices\":[{\"message\":{\"content\":\"", ESCAPED,
     "\"},\"finish_reason\":\"stop\"}]," USAGE},
    {"answer, SSE of 170 B events", scan_sse, 100000, "",
     "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\","
     "\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n",
     "data: {\"choices\":[]," USAGE "\n\ndata: [DONE]\n\n"},
};

int main(void) {
  char *body = malloc(2 << 20);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t size = fill(body, cases[i].head, cases[i].unit, cases[i].tail, cases[i].size);
    measure(cases[i].name, cases[i].scan, body, size);
  }
  free(body);
  return 0;
}
