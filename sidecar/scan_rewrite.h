/* The filter `rewrite`: runs in a cluster's upstream filter chain, once per try, and gives the server a model name that
 * it accepts. The header x-pm-rewrite, put there from the endpoint's metadata, lists those names, separated by commas: a
 * body that names one of them stays as it is, any other gets the first of them. Changes the bytes of the top-level
 * `model` values and the content-length, nothing else. Leaves alone what it cannot read: encoded bodies, bodies beyond
 * the inspection limit, more than PM_SPANS_MAX duplicates. Included by scan.c only. */
#ifndef PM_SCAN_REWRITE_H
#define PM_SCAN_REWRITE_H

/* Takes the name that this try's server needs. Headers are shared by the tries: x-pm-rewrite is removed each time, and
 * a content-length may be what an earlier try wrote, so a body that came with one is held and measured anew. */
static int rewrite_request_headers(void *envoy, struct filter *f, const struct request_head *head, bool end) {
  struct pm_view name = pm_same(head->rewrite, PM_VIEW("-")) ? PM_VIEW("") : pm_trimmed(head->rewrite);
  f->has_length = head->length != UINT64_MAX;
  bool rewrite = name.size != 0 && !head->encoded;
  bool held = !end && (rewrite || f->has_length);
  if (f->has_length && head->length > f->config->inspect_body_bytes) held = false; /* no try rewrote it */
  if (held) f->body = BODY_REWRITTEN;
  if (held && rewrite) {
    f->name = malloc(name.size);
    if (f->name != NULL) memcpy(f->name, name.ptr, f->name_size = name.size);
    pm_request_start(&f->request);
  }
  if (head->rewrite.ptr != NULL)
    envoy_dynamic_module_callback_http_set_header(envoy, REQUEST_HEADERS, PM_VIEW("x-pm-rewrite"), (struct pm_view){0});
  return held ? STOP_HEADERS : CONTINUE;
}

struct copy {
  char *into;
  size_t size, room;
};

static bool copy_chunk(void *to, const pm_byte *bytes, size_t size) {
  struct copy *c = to;
  if (size > c->room - c->size) return false;
  memcpy(c->into + c->size, bytes, size);
  c->size += size;
  return true;
}

/* What was held back and, unless that is the same, what has just come: together the whole body. */
struct whole {
  uint64_t held, received;
};

static struct whole whole_body(void *envoy, bool receiving) {
  struct whole w = {.received = 0};
  if (receiving) w.received = envoy_dynamic_module_callback_http_get_body_size(envoy, RECEIVED_REQUEST);
  if (!receiving || !envoy_dynamic_module_callback_http_received_buffered_request_body(envoy))
    w.held = envoy_dynamic_module_callback_http_get_body_size(envoy, BUFFERED_REQUEST);
  return w;
}

static void each_of_whole(void *envoy, struct whole w, feed_slice feed, void *to) {
  if (w.held) each_chunk(envoy, BUFFERED_REQUEST, feed, to);
  if (w.received) each_chunk(envoy, RECEIVED_REQUEST, feed, to);
}

/* Puts the body together anew around the places of its `model` values. Returns its size. */
static uint64_t rewrite_places(void *envoy, const struct filter *f, struct whole w, struct pm_view name) {
  const struct pm_request *r = &f->request;
  const uint64_t size = w.held + w.received;
  const int type = w.received ? RECEIVED_REQUEST : BUFFERED_REQUEST; /* the new body goes where the last bytes were */
  struct copy old = {.into = malloc(size), .room = size};
  if (old.into == NULL) return size;
  each_of_whole(envoy, w, copy_chunk, &old);
  if (w.held) envoy_dynamic_module_callback_http_drain_body(envoy, BUFFERED_REQUEST, w.held);
  if (w.received) envoy_dynamic_module_callback_http_drain_body(envoy, RECEIVED_REQUEST, w.received);
  uint64_t at = 0, total = 0;
  for (unsigned i = 0; i <= r->span_count; i++) {
    uint64_t from = i < r->span_count ? r->spans[i].from : size;
    envoy_dynamic_module_callback_http_append_body(envoy, type, (struct pm_view){old.into + at, from - at});
    total += from - at;
    if (i == r->span_count) break;
    envoy_dynamic_module_callback_http_append_body(envoy, type, name);
    total += name.size;
    at = r->spans[i].to;
  }
  free(old.into);
  return total;
}

/* The first name of the list, unless the body's own name is in it: then there is nothing to do and the size is 0.
 * Policy allows no commas, quotes and backslashes in names, so neither the list nor the JSON needs escapes. */
static struct pm_view wanted_name(const struct filter *f) {
  struct pm_view list = {f->name, f->name_size}, asked = {f->request.model, f->request.model_size};
  struct pm_view first = pm_before(list, ',');
  while (list.size) {
    struct pm_view one = pm_before(list, ',');
    if (pm_same(one, asked)) return (struct pm_view){0};
    const char *comma = memchr(list.ptr, ',', list.size);
    if (comma == NULL) break;
    list.size -= (size_t)(comma + 1 - list.ptr);
    list.ptr = comma + 1;
  }
  return first;
}

/* receiving: in the body hook, not the trailers'. */
static int rewrite_request_end(void *envoy, struct filter *f, bool receiving) {
  struct whole w = whole_body(envoy, receiving);
  uint64_t size = w.held + w.received;
  struct pm_request *r = &f->request;
  if (f->name_size && size + PM_SPANS_MAX * f->name_size <= f->config->inspect_body_bytes) {
    each_of_whole(envoy, w, feed_request, r);
    bool readable = pm_request_finish(r) && r->span_count && r->span_count <= PM_SPANS_MAX;
    struct pm_view name = readable ? wanted_name(f) : (struct pm_view){0};
    if (name.size) size = rewrite_places(envoy, f, w, name);
  }
  if (f->has_length) {
    char text[24];
    int digits = snprintf(text, sizeof text, "%llu", (unsigned long long)size);
    envoy_dynamic_module_callback_http_set_header(envoy, REQUEST_HEADERS, PM_VIEW("content-length"),
                                                  (struct pm_view){text, (size_t)digits});
  }
  return CONTINUE;
}

#endif
