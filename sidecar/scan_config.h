/* The module's configuration: lines of key=value, checked whole; what is not known is refused. Called by scan.c. */
#ifndef PM_SCAN_CONFIG_H
#define PM_SCAN_CONFIG_H

#include <stdio.h>

#include "scan_abi.h"

enum role { ROLE_SCAN, ROLE_REWRITE };

struct config {
  enum role role;
  uint64_t inspect_body_bytes; /* larger bodies are routed by headers only */
  uint64_t body_bytes;         /* larger bodies are refused */
  size_t path_count;
  struct pm_view *paths;       /* where a body is JSON whatever its media type says; point into text */
  char text[];
};

static void log_refused(const char *what, struct pm_view found) {
  char line[256];
  int size = snprintf(line, sizeof line, "pmscan: %s: found '%.*s'", what, found.size > 100 ? 100 : (int)found.size,
                      found.ptr);
  if (size > 0) envoy_dynamic_module_callback_log(LOG_ERROR, (struct pm_view){line, (size_t)size});
}

/* Takes one line; false: refused, and logged. */
static bool config_line(struct config *c, struct pm_view line) {
  struct pm_view key = pm_before(line, '=');
  struct pm_view value = {line.ptr + line.size, 0};
  const char *equals = memchr(line.ptr, '=', line.size);
  if (equals != NULL) value = pm_trimmed((struct pm_view){equals + 1, (size_t)(line.ptr + line.size - equals - 1)});
  if (pm_same(key, PM_VIEW("json_path"))) {
    if (value.size && *value.ptr == '/') return c->paths[c->path_count++] = value, true;
    log_refused("configuration: json_path: expected a path that begins with /", value);
    return false;
  }
  uint64_t *bytes = pm_same(key, PM_VIEW("inspect_body_bytes")) ? &c->inspect_body_bytes
                    : pm_same(key, PM_VIEW("body_bytes"))       ? &c->body_bytes
                                                                : NULL;
  if (bytes == NULL) {
    log_refused("configuration: expected inspect_body_bytes, body_bytes or json_path", key);
    return false;
  }
  *bytes = pm_decimal(value);
  if (*bytes != UINT64_MAX) return true;
  log_refused("configuration: expected a number of bytes", line);
  return false;
}

static void config_free(struct config *c) {
  if (c != NULL) free(c->paths);
  free(c);
}

/* NULL: refused, and logged. */
static struct config *config_parse(struct pm_view name, struct pm_view text) {
  bool scan = pm_same(name, PM_VIEW("scan"));
  if (!scan && !pm_same(name, PM_VIEW("rewrite"))) {
    log_refused("filter_name: expected scan or rewrite", name);
    return NULL;
  }
  struct config *c = malloc(sizeof *c + text.size);
  struct pm_view *paths = malloc((text.size / 2 + 1) * sizeof *paths); /* more lines than that do not fit */
  if (c == NULL || paths == NULL) return free(c), free(paths), NULL;
  *c = (struct config){.role = scan ? ROLE_SCAN : ROLE_REWRITE, .inspect_body_bytes = 4 << 20, .body_bytes = 64 << 20};
  c->paths = paths;
  if (text.size) memcpy(c->text, text.ptr, text.size);
  for (struct pm_view rest = {c->text, text.size}; rest.size;) {
    const char *newline = memchr(rest.ptr, '\n', rest.size);
    size_t size = newline != NULL ? (size_t)(newline - rest.ptr) : rest.size;
    struct pm_view line = pm_trimmed((struct pm_view){rest.ptr, size});
    if (line.size && !config_line(c, line)) return config_free(c), NULL;
    size += newline != NULL;
    rest.ptr += size, rest.size -= size;
  }
  return c;
}

#endif
