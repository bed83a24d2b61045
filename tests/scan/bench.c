/* How fast the pure scanners are: make bench-scan, or
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

static int scan_request(const char *body, size_t size) {
  pm_request_start(&request);
  for (size_t at = 0; at < size; at += SLICE)
    if (!pm_request_feed(&request, (const pm_byte *)body + at, size - at < SLICE ? size - at : SLICE)) return 0;
  return pm_request_finish(&request);
}

static int scan_json(const char *body, size_t size) {
  pm_answer_start(&answer);
  for (size_t at = 0; at < size; at += SLICE)
    pm_answer_json(&answer, (const pm_byte *)body + at, (const pm_byte *)body + (size - at < SLICE ? size : at + SLICE));
  return answer.present != 0;
}

static int scan_sse(const char *body, size_t size) {
  pm_answer_start(&answer);
  for (size_t at = 0; at < size; at += SLICE)
    pm_answer_sse(&answer, (const pm_byte *)body + at, (const pm_byte *)body + (size - at < SLICE ? size : at + SLICE));
  return answer.present != 0;
}

static void measure(const char *name, int (*scan)(const char *, size_t), const char *body, size_t size) {
  double best = 1e18;
  int times = (int)(2000000 / (size + 500)) + 1;
  for (int round = 0; round < 7; round++) {
    double from = now_us();
    for (int i = 0; i < times; i++)
      if (!scan(body, size)) { printf("%s: not accepted\n", name); return; }
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

int main(void) {
  char *body = malloc(2 << 20);
  size_t size;
  size = fill(body, ONE, "What is the weather like in Oslo today? ", "\"}" TAIL, 500);
  measure("request, chat", scan_request, body, size);
  size = fill(body, ONE, "What is the weather like in Oslo today? ", "\"}" TAIL, 32000);
  measure("request, one plain string", scan_request, body, size);
  size = fill(body, ONE, "What is the weather like in Oslo today? ", "\"}" TAIL, 220000);
  measure("request, one plain string", scan_request, body, size);
  size = fill(body, HEAD "{}", ",{\"role\":\"user\",\"content\":\"say \\\"hi\\\" to C:\\\\dir\\\\x\\n and \\\"bye\\\"\"}", TAIL, 220000);
  measure("request, messages full of escapes", scan_request, body, size);
  size = fill(body, ONE, "say \\\"hi\\\" to C:\\\\dir\\\\x\\n and \\\"bye\\\" ", "\"}" TAIL, 220000);
  measure("request, one string full of escapes", scan_request, body, size);
  size = fill(body, ONE, "\\u4f60\\u597d ", "\"}" TAIL, 220000);
  measure("request, \\u escapes", scan_request, body, size);
  size = fill(body, ONE, "\xe9\x98\xb4\xe6\xb0\x94\xe6\xb8\x90\xe9\x87\x8d\xef\xbc\x8c\xe9\x9c\xb2\xe5\x87\x9d", "\"}" TAIL, 220000);
  measure("request, Chinese", scan_request, body, size);
  size = fill(body, ONE, "d\xc3\xa9j\xc3\xa0 vu, na\xc3\xafve caf\xc3\xa9, garc\xc3\xb3n; ", "\"}" TAIL, 220000);
  measure("request, French", scan_request, body, size);
  size = fill(body, "{\"model\":\"m\",\"prompt\":[1", ",15496", "]}", 220000);
  measure("request, token ids", scan_request, body, size);
  size = fill(body, "{\"object\":\"list\",\"data\":[{\"embedding\":[0.1", ",-0.012345678", "]}],\"usage\":{\"prompt_tokens\":5}}", 1000000);
  measure("answer, embeddings", scan_json, body, size);
  size = fill(body, "{\"id\":\"x\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"", "It is \\\"cold\\\" today, bring a coat.\\n", "\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}", 2000);
  measure("answer, chat", scan_json, body, size);
  size = fill(body, "", "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n", "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":7}}\n\ndata: [DONE]\n\n", 100000);
  measure("answer, SSE of 175 B events", scan_sse, body, size);
  free(body);
  return 0;
}
