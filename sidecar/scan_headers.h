/* What the module reads from header values, and the reason that a client sees. Pure. Called by scan.c, tests/scan. */
#ifndef PM_SCAN_HEADERS_H
#define PM_SCAN_HEADERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct pm_view {
  const char *ptr;
  size_t size;
};

#define PM_VIEW(literal) ((struct pm_view){literal, sizeof(literal) - 1})

static inline bool pm_same(struct pm_view a, struct pm_view b) {
  return a.size == b.size && (a.size == 0 || memcmp(a.ptr, b.ptr, a.size) == 0);
}

/* wanted: lower case. */
static inline bool pm_same_folded(struct pm_view a, struct pm_view wanted) {
  if (a.size != wanted.size) return false;
  for (size_t i = 0; i < a.size; i++) {
    char c = a.ptr[i];
    if (c >= 'A' && c <= 'Z') c = (char)(c | 0x20);
    if (c != wanted.ptr[i]) return false;
  }
  return true;
}

static inline bool pm_starts_folded(struct pm_view a, struct pm_view wanted) {
  return a.size >= wanted.size && pm_same_folded((struct pm_view){a.ptr, wanted.size}, wanted);
}

static inline struct pm_view pm_trimmed(struct pm_view a) {
  while (a.size && (*a.ptr == ' ' || *a.ptr == '\t')) a.ptr++, a.size--;
  while (a.size && (a.ptr[a.size - 1] == ' ' || a.ptr[a.size - 1] == '\t')) a.size--;
  return a;
}

/* The part before the first `separator`, trimmed. */
static inline struct pm_view pm_before(struct pm_view a, char separator) {
  const char *at = a.size ? memchr(a.ptr, separator, a.size) : NULL;
  if (at != NULL) a.size = (size_t)(at - a.ptr);
  return pm_trimmed(a);
}

static inline bool pm_is_ascii(struct pm_view a) {
  for (size_t i = 0; i < a.size; i++)
    if (a.ptr[i] < ' ' || a.ptr[i] > '~') return false;
  return true;
}

/* ---- media types ---- */

enum pm_media { PM_MEDIA_ABSENT, PM_MEDIA_JSON, PM_MEDIA_SSE, PM_MEDIA_GRPC, PM_MEDIA_OTHER };

static inline enum pm_media pm_media_of(struct pm_view content_type) {
  struct pm_view type = pm_before(content_type, ';');
  const struct pm_view suffix = PM_VIEW("+json");
  if (type.size == 0) return PM_MEDIA_ABSENT;
  if (pm_same_folded(type, PM_VIEW("application/json"))) return PM_MEDIA_JSON;
  if (pm_same_folded(type, PM_VIEW("text/event-stream"))) return PM_MEDIA_SSE;
  if (!pm_starts_folded(type, PM_VIEW("application/"))) return PM_MEDIA_OTHER;
  if (pm_starts_folded(type, PM_VIEW("application/grpc"))) return PM_MEDIA_GRPC;
  if (type.size > sizeof("application/+json") - 1 &&
      pm_same_folded((struct pm_view){type.ptr + type.size - suffix.size, suffix.size}, suffix))
    return PM_MEDIA_JSON;
  return PM_MEDIA_OTHER;
}

/* No coding, or only `identity`. */
static inline bool pm_is_identity(struct pm_view coding) {
  coding = pm_trimmed(coding);
  return coding.size == 0 || pm_same_folded(coding, PM_VIEW("identity"));
}

/* Digits; UINT64_MAX when there are none, something else, or too many. */
static inline uint64_t pm_decimal(struct pm_view text) {
  uint64_t value = 0;
  if (text.size == 0 || text.size > 19) return UINT64_MAX;
  for (size_t i = 0; i < text.size; i++) {
    if (text.ptr[i] < '0' || text.ptr[i] > '9') return UINT64_MAX;
    value = value * 10 + (uint64_t)(text.ptr[i] - '0');
  }
  return value;
}

/* ---- the reason that a client sees ---- */

/* The value of `;name=` in a list of parameters; size 0: not there. */
static inline struct pm_view pm_parameter(struct pm_view list, struct pm_view name) {
  while (list.size) {
    const char *semicolon = memchr(list.ptr, ';', list.size);
    if (semicolon == NULL) break;
    list.size -= (size_t)(semicolon + 1 - list.ptr);
    list.ptr = semicolon + 1;
    if (list.size > name.size && memcmp(list.ptr, name.ptr, name.size) == 0 && list.ptr[name.size] == '=')
      return pm_before((struct pm_view){list.ptr + name.size + 1, list.size - name.size - 1}, ';');
  }
  return (struct pm_view){NULL, 0};
}

/* `why;arm=TARGET;attempt=N`, put there by the route, as the client sees it: `why` when the arm answered at once,
 * `why;attempt=N` when it did later, `fallback;attempt=N` when another target did or none is known. Returns the size
 * written to `into`, or 0: there is no arm, leave it. `why` may have notes of its own (`default;class=unknown`). */
static inline size_t pm_visible_reason(struct pm_view reason, struct pm_view target, char *into, size_t room) {
  struct pm_view arm = pm_parameter(reason, PM_VIEW("arm"));
  if (arm.size == 0) return 0;
  uint64_t attempt = pm_decimal(pm_parameter(reason, PM_VIEW("attempt")));
  if (attempt == 0 || attempt > 1000) attempt = 1;
  struct pm_view why = PM_VIEW("fallback");
  if (pm_same(arm, pm_trimmed(target))) {
    /* what comes before the arm is the reason with its notes (`default;class=unknown`) */
    why = (struct pm_view){reason.ptr, (size_t)(arm.ptr - reason.ptr) - (sizeof(";arm=") - 1)};
  }
  bool told = attempt == 1 && why.ptr == reason.ptr;
  int size = told ? snprintf(into, room, "%.*s", (int)why.size, why.ptr)
                  : snprintf(into, room, "%.*s;attempt=%d", (int)why.size, why.ptr, (int)attempt);
  return size > 0 && (size_t)size < room ? (size_t)size : 0;
}

#endif
