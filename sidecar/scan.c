/* pmscan: an Envoy HTTP dynamic module (Envoy 1.40, ABI v0.2.0) with two filters.
 *
 * `scan` (downstream, before the router) decides from a request's body which model it asks for: header x-pm-model and a
 * cleared route cache; parameters and, from the answer, token counts go to dynamic metadata (scan_metadata.h). Refuses
 * bodies that no server could read (400), other media types on JSON paths (415), bodies that are too large (413). It
 * turns the route's x-pointsman-reason into what the client sees. Bodies and answers are never changed.
 * `rewrite` (upstream, on a cluster) replaces the bytes of the top-level `model` values by what x-pm-rewrite says.
 *
 * Envoy calls the functions marked PM_HOOK and answers those named envoy_dynamic_module_callback_*. The pure parts are
 * scan_text.h, scan_utf8.h, scan_request.h, scan_answer.h, scan_metadata.h and scan_headers.h. No text of a body is
 * ever logged or sent back. */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>
#include <time.h>

#include "scan_abi.h"
#include "scan_config.h"
#include "scan_metadata.h"

/* Envoy resolves these at load time whether it will call them or not. */
#define PM_UNUSED_HOOK(name) \
  PM_HOOK void envoy_dynamic_module_on_http_filter_##name(void) {}
PM_UNUSED_HOOK(scheduled)
PM_UNUSED_HOOK(http_callout_done)
PM_UNUSED_HOOK(http_stream_headers)
PM_UNUSED_HOOK(http_stream_data)
PM_UNUSED_HOOK(http_stream_trailers)
PM_UNUSED_HOOK(http_stream_complete)
PM_UNUSED_HOOK(http_stream_reset)
PM_UNUSED_HOOK(downstream_above_write_buffer_high_watermark)
PM_UNUSED_HOOK(downstream_below_write_buffer_low_watermark)

PM_HOOK const char *envoy_dynamic_module_on_program_init(void) { return "v0.2.0"; }

PM_HOOK void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, struct pm_view name, struct pm_view text) {
  return config_parse(name, text);
}

PM_HOOK void envoy_dynamic_module_on_http_filter_config_destroy(void *config) { config_free(config); }

/* There is nothing to say per route; a configuration there is a mistake. */
PM_HOOK void *envoy_dynamic_module_on_http_filter_per_route_config_new(void *envoy, struct pm_view name,
                                                                       struct pm_view text) {
  log_refused("per-route configuration: expected none", name);
  return NULL;
}
PM_HOOK void envoy_dynamic_module_on_http_filter_per_route_config_destroy(void *config) {}

/* ---- one request ---- */

enum body {
  BODY_PASSED,  /* nothing to do */
  BODY_COUNTED, /* passed, but its length is not known beforehand */
  BODY_SCANNED, /* held back and read */
  BODY_BROKEN,  /* the rest is dropped; refused at its end, when the client listens */
  BODY_REWRITTEN,
};

enum answer { ANSWER_PASSED, ANSWER_JSON, ANSWER_SSE };

struct filter {
  const struct config *config;
  uint8_t body, answer;
  bool accepted;         /* the request's body was read whole and is fine */
  bool must_say;         /* a body of no bytes is refused as an empty one */
  bool has_length;       /* the request came with a content-length */
  uint64_t seen;         /* bytes of the request's body so far */
  uint64_t first_chunk_ns; /* from the request's head on; 0: there was none */
  struct timespec began;
  size_t name_size;      /* rewrite: the names that the server accepts */
  char *name;
  struct pm_answer reply;
  struct pm_request request;
};

PM_HOOK void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  struct filter *f = malloc(sizeof *f);
  if (f != NULL) {
    memset(f, 0, offsetof(struct filter, reply));
    f->config = config;
  }
  return f;
}

PM_HOOK void envoy_dynamic_module_on_http_filter_destroy(void *filter) {
  struct filter *f = filter;
  if (f != NULL) free(f->name);
  free(f);
}

/* The headers that decide, found in one pass: each look-up by name would cost a copy of the name and a search. */
struct request_head {
  struct pm_view method, path, content_type, rewrite;
  uint64_t length; /* UINT64_MAX: not given */
  bool encoded, upgrade;
};

enum { HEADERS_AT_ONCE = 128 };

struct header_list {
  struct header at_once[HEADERS_AT_ONCE];
  struct header *headers;
  size_t count;
};

static void headers_read(void *envoy, int type, struct header_list *list) {
  list->headers = list->at_once;
  list->count = envoy_dynamic_module_callback_http_get_headers_size(envoy, type);
  if (list->count > HEADERS_AT_ONCE) list->headers = malloc(list->count * sizeof(struct header));
  if (list->headers == NULL || !envoy_dynamic_module_callback_http_get_headers(envoy, type, list->headers))
    list->count = 0;
}

static void headers_free(struct header_list *list) {
  if (list->headers != list->at_once) free(list->headers);
}

#define KEY_IS(name) (memcmp(h->key.ptr, name, sizeof(name) - 1) == 0)

static void request_head(const struct header_list *list, struct request_head *head) {
  *head = (struct request_head){.length = UINT64_MAX};
  for (const struct header *h = list->headers, *end = h + list->count; h < end; h++) {
    switch (h->key.size) {
      case 5:
        if (KEY_IS(":path")) head->path = h->value;
        break;
      case 7:
        if (KEY_IS(":method")) head->method = h->value;
        else if (KEY_IS("upgrade")) head->upgrade = true;
        break;
      case 12:
        if (KEY_IS("content-type") && head->content_type.ptr == NULL) head->content_type = h->value;
        else if (KEY_IS("x-pm-rewrite")) head->rewrite = h->value;
        break;
      case 14:
        if (KEY_IS("content-length")) head->length = pm_decimal(h->value);
        break;
      case 16:
        if (KEY_IS("content-encoding") && !pm_is_identity(h->value)) head->encoded = true;
        break;
      default: break;
    }
  }
}

/* ---- refusals ---- */

/* Answers in place of the server. The filter may be gone afterwards: return at once and touch it no more. */
static void refuse(void *envoy, uint32_t status, const char *text, struct pm_view details) {
  envoy_dynamic_module_callback_http_send_response(envoy, status, NULL, 0, (struct pm_view){text, strlen(text)},
                                                   details);
}

static void refuse_large(void *envoy, const struct config *config) {
  char text[96];
  snprintf(text, sizeof text, "request body: expected at most %llu bytes", (unsigned long long)config->body_bytes);
  refuse(envoy, 413, text, PM_VIEW("pointsman_body_too_large"));
}

static const char *json_kind(pm_byte first) {
  switch (first) {
    case '[': return "an array";
    case '"': return "a string";
    case 't': case 'f': return "a boolean";
    case 'n': return "null";
    default: return "a number";
  }
}

static void refuse_body(void *envoy, const struct pm_request *r) {
  char text[128];
  unsigned long long position = r->position;
  struct pm_view details = PM_VIEW("pointsman_body_malformed");
  switch (r->refusal) {
    case PM_EMPTY:
      snprintf(text, sizeof text, "request body: expected a JSON object, found nothing");
      details = PM_VIEW("pointsman_body_empty");
      break;
    case PM_NOT_OBJECT:
      snprintf(text, sizeof text, "request body: expected a JSON object, found %s", json_kind(r->found));
      details = PM_VIEW("pointsman_body_not_object");
      break;
    case PM_ENDED_EARLY:
      snprintf(text, sizeof text, "request body: expected JSON, found its end after %llu bytes", position);
      break;
    case PM_TOO_DEEP:
      snprintf(text, sizeof text, "request body: expected at most %d levels of nesting", PM_DEPTH_MAX);
      details = PM_VIEW("pointsman_body_too_deep");
      break;
    case PM_NOT_UTF8: snprintf(text, sizeof text, "request body: expected UTF-8"); break;
    case PM_MODEL_NOT_STRING:
      snprintf(text, sizeof text, "request body: model: expected a string");
      details = PM_VIEW("pointsman_body_model");
      break;
    case PM_MODEL_TOO_LONG:
      snprintf(text, sizeof text, "request body: model: expected at most %d bytes", PM_MODEL_MAX);
      details = PM_VIEW("pointsman_body_model");
      break;
    default: snprintf(text, sizeof text, "request body: expected JSON, found an error at byte %llu", position); break;
  }
  refuse(envoy, 400, text, details);
}

/* ---- the request's head ---- */

static bool is_json_path(const struct config *config, struct pm_view path) {
  const char *query = path.size ? memchr(path.ptr, '?', path.size) : NULL;
  if (query != NULL) path.size = (size_t)(query - path.ptr);
  for (size_t i = 0; i < config->path_count; i++)
    if (pm_same(path, config->paths[i])) return true;
  return false;
}

static bool sends_body(struct pm_view method) {
  return pm_same(method, PM_VIEW("POST")) || pm_same(method, PM_VIEW("PUT")) || pm_same(method, PM_VIEW("PATCH"));
}

/* Values that Envoy puts into protobuf strings as they are (log entries, span tags): bytes outside printable ASCII would
 * make the whole message unreadable, other requests' entries included. They become question marks, for the server too. */
static void make_harmless(void *envoy, const struct header_list *list) {
  static const struct pm_view told[] = {PM_VIEW("x-request-id"), PM_VIEW("user-agent"), PM_VIEW("x-client-trace-id"),
                                        PM_VIEW("x-prompt-template")};
  enum { TOLD = sizeof told / sizeof *told, ROOM = 256 };
  char texts[TOLD][ROOM];
  size_t sizes[TOLD] = {0};
  bool changed[TOLD] = {false};
  for (const struct header *h = list->headers, *end = h + list->count; h < end; h++) {
    if (h->key.size != 10 && h->key.size != 12 && h->key.size != 17) continue;
    for (size_t n = 0; n < TOLD; n++) {
      if (!pm_same(h->key, told[n]) || changed[n] || pm_is_ascii(h->value)) continue;
      changed[n] = true;
      sizes[n] = h->value.size < ROOM ? h->value.size : ROOM;
      for (size_t i = 0; i < sizes[n]; i++)
        texts[n][i] = h->value.ptr[i] >= ' ' && h->value.ptr[i] <= '~' ? h->value.ptr[i] : '?';
    }
  }
  /* Only now: a header that is set takes its other lines with it, and the list would point to nothing. */
  for (size_t n = 0; n < TOLD; n++)
    if (changed[n])
      envoy_dynamic_module_callback_http_set_header(envoy, REQUEST_HEADERS, told[n],
                                                    (struct pm_view){texts[n], sizes[n]});
}

static int scan_request_headers(void *envoy, struct filter *f, const struct request_head *head, bool end) {
  const struct config *config = f->config;
  clock_gettime(CLOCK_MONOTONIC, &f->began);
  enum pm_media media = pm_media_of(head->content_type);
  if (head->upgrade || pm_same(head->method, PM_VIEW("CONNECT")) || media == PM_MEDIA_GRPC) return CONTINUE;
  bool json_path = is_json_path(config, head->path);
  if (end) {
    if (!json_path || !sends_body(head->method)) return CONTINUE;
    pm_request_start(&f->request);
    pm_request_finish(&f->request);
    refuse_body(envoy, &f->request);
    return STOP_HEADERS;
  }
  if (json_path && media != PM_MEDIA_JSON && media != PM_MEDIA_ABSENT) {
    refuse(envoy, 415, "request content-type: expected application/json", PM_VIEW("pointsman_body_media_type"));
    return STOP_HEADERS;
  }
  f->has_length = head->length != UINT64_MAX;
  if (f->has_length && head->length > config->body_bytes) {
    refuse_large(envoy, config);
    return STOP_HEADERS;
  }
  bool json = json_path || media == PM_MEDIA_JSON;
  if (!json || head->encoded || (f->has_length && head->length > config->inspect_body_bytes)) {
    f->body = f->has_length ? BODY_PASSED : BODY_COUNTED; /* the codec holds a body to its content-length */
    return CONTINUE;
  }
  f->body = BODY_SCANNED;
  f->must_say = json_path && sends_body(head->method);
  pm_request_start(&f->request);
  return STOP_HEADERS;
}

/* ---- the request's body ---- */

enum { CHUNKS_AT_ONCE = 64 };

typedef bool (*feed_slice)(void *to, const pm_byte *bytes, size_t size);

/* Feeds each slice of a body, until one says false. */
static void each_chunk(void *envoy, int type, feed_slice feed, void *to) {
  struct pm_view at_once[CHUNKS_AT_ONCE], *chunks = at_once;
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, type);
  if (count > CHUNKS_AT_ONCE) chunks = malloc(count * sizeof *chunks);
  if (count && chunks != NULL && envoy_dynamic_module_callback_http_get_body_chunks(envoy, type, chunks)) {
    for (size_t i = 0; i < count; i++)
      if (!feed(to, (const pm_byte *)chunks[i].ptr, chunks[i].size)) break;
  }
  if (chunks != at_once) free(chunks);
}

static bool feed_request(void *to, const pm_byte *bytes, size_t size) { return pm_request_feed(to, bytes, size); }

/* An accepted body: its model routes. */
static void route_request(void *envoy, const struct pm_request *r) {
  struct pm_view model = {r->model, r->model_size};
  if (!r->model_seen || pm_same(model, PM_VIEW("auto"))) return;
  if (!pm_is_printable(model.ptr, model.size)) model = PM_VIEW("?"); /* no policy can name it */
  envoy_dynamic_module_callback_http_set_header(envoy, REQUEST_HEADERS, PM_VIEW("x-pm-model"), model);
  envoy_dynamic_module_callback_http_clear_route_cache(envoy);
}

/* The body is over: accept or refuse it. True: it may pass. */
static bool scan_request_end(void *envoy, struct filter *f) {
  struct pm_request *r = &f->request;
  f->body = BODY_PASSED;
  if (f->seen == 0 && !f->must_say) return true; /* a body of no bytes is no body */
  if (!pm_request_finish(r)) return refuse_body(envoy, r), false;
  f->accepted = true;
  route_request(envoy, r);
  return true;
}

static int scan_request_body(void *envoy, struct filter *f, bool end) {
  const struct config *config = f->config;
  if (f->body == BODY_PASSED) return CONTINUE;
  f->seen += envoy_dynamic_module_callback_http_get_body_size(envoy, RECEIVED_REQUEST);
  if (f->seen > config->body_bytes) {
    f->body = BODY_PASSED;
    refuse_large(envoy, config);
    return STOP_WITHOUT_BUFFER;
  }
  if (f->body == BODY_COUNTED) return CONTINUE;
  if (f->body == BODY_SCANNED && f->seen > config->inspect_body_bytes) {
    f->body = f->has_length ? BODY_PASSED : BODY_COUNTED;
    return CONTINUE;
  }
  if (f->body == BODY_SCANNED) {
    each_chunk(envoy, RECEIVED_REQUEST, feed_request, &f->request);
    if (f->request.refusal != PM_ACCEPTED) f->body = BODY_BROKEN;
  }
  if (end) return scan_request_end(envoy, f) ? CONTINUE : STOP_WITHOUT_BUFFER;
  return f->body == BODY_BROKEN ? STOP_WITHOUT_BUFFER : STOP_AND_BUFFER;
}

/* ---- the answer ---- */

struct answer_head {
  struct pm_view content_type, reason, target;
  bool encoded;
};

static void answer_head(const struct header_list *list, struct answer_head *head) {
  *head = (struct answer_head){.encoded = false};
  for (const struct header *h = list->headers, *end = h + list->count; h < end; h++) {
    switch (h->key.size) {
      case 12:
        if (KEY_IS("content-type")) head->content_type = h->value;
        break;
      case 16:
        if (KEY_IS("content-encoding") && !pm_is_identity(h->value)) head->encoded = true;
        break;
      case 18:
        if (KEY_IS("x-pointsman-reason")) head->reason = h->value;
        else if (KEY_IS("x-pointsman-target")) head->target = h->value;
        break;
      default: break;
    }
  }
}

static void answer_headers(void *envoy, struct filter *f, const struct answer_head *head, bool end) {
  if (!end && !head->encoded) {
    enum pm_media media = pm_media_of(head->content_type);
    f->answer = media == PM_MEDIA_JSON ? ANSWER_JSON : media == PM_MEDIA_SSE ? ANSWER_SSE : ANSWER_PASSED;
    if (f->answer != ANSWER_PASSED) pm_answer_start(&f->reply);
  }
  char reason[160];
  size_t size = head->reason.size ? pm_visible_reason(head->reason, head->target, reason, sizeof reason) : 0;
  if (size)
    envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, PM_VIEW("x-pointsman-reason"),
                                                  (struct pm_view){reason, size});
}

static bool feed_json(void *to, const pm_byte *bytes, size_t size) {
  pm_answer_json(to, bytes, bytes + size);
  return true;
}

static bool feed_sse(void *to, const pm_byte *bytes, size_t size) {
  pm_answer_sse(to, bytes, bytes + size);
  return true;
}

static void note_first_chunk(struct filter *f) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  f->first_chunk_ns = (uint64_t)((now.tv_sec - f->began.tv_sec) * 1000000000ll + (now.tv_nsec - f->began.tv_nsec));
}

/* ---- what is said ---- */

/* The only place where metadata is written: Envoy calls it once, however the request ended. */
static void tell(void *envoy, struct filter *f) {
  struct pm_said said;
  bool answered = f->answer != ANSWER_PASSED;
  if (!f->accepted && !answered) return;
  if (answered) pm_answer_finish(&f->reply);
  if (pm_said_write(&said, f->accepted ? &f->request : NULL, answered ? &f->reply : NULL, f->first_chunk_ns))
    envoy_dynamic_module_callback_http_set_dynamic_metadata_string(envoy, PM_VIEW("pointsman"), PM_VIEW("said"),
                                                                   (struct pm_view){said.text, said.size});
}

#include "scan_rewrite.h" /* shares struct filter and the helpers above */

/* ---- hooks: a filter that could not be allocated is NULL and does nothing ---- */

PM_HOOK int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, void *filter, bool end) {
  struct filter *f = filter;
  if (f == NULL) return CONTINUE;
  struct header_list list;
  struct request_head head;
  headers_read(envoy, REQUEST_HEADERS, &list);
  request_head(&list, &head);
  if (f->config->role == ROLE_SCAN) make_harmless(envoy, &list);
  int status = f->config->role == ROLE_SCAN ? scan_request_headers(envoy, f, &head, end)
                                            : rewrite_request_headers(envoy, f, &head, end);
  headers_free(&list);
  return status;
}

PM_HOOK int envoy_dynamic_module_on_http_filter_request_body(void *envoy, void *filter, bool end) {
  struct filter *f = filter;
  if (f == NULL) return CONTINUE;
  if (f->config->role == ROLE_SCAN) return scan_request_body(envoy, f, end);
  if (f->body != BODY_REWRITTEN) return CONTINUE;
  return end ? rewrite_request_end(envoy, f, true) : STOP_AND_BUFFER;
}

/* Trailers end a body: all of it has been seen. */
PM_HOOK int envoy_dynamic_module_on_http_filter_request_trailers(void *envoy, void *filter) {
  struct filter *f = filter;
  if (f == NULL) return CONTINUE;
  if (f->body == BODY_REWRITTEN) return rewrite_request_end(envoy, f, false);
  if (f->body != BODY_SCANNED && f->body != BODY_BROKEN) return CONTINUE;
  return scan_request_end(envoy, f) ? CONTINUE : STOP_HEADERS;
}

PM_HOOK int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, void *filter, bool end) {
  struct filter *f = filter;
  if (f == NULL || f->config->role != ROLE_SCAN) return CONTINUE;
  struct header_list list;
  struct answer_head head;
  headers_read(envoy, RESPONSE_HEADERS, &list);
  answer_head(&list, &head);
  answer_headers(envoy, f, &head, end);
  headers_free(&list);
  return CONTINUE;
}

PM_HOOK int envoy_dynamic_module_on_http_filter_response_body(void *envoy, void *filter, bool end) {
  struct filter *f = filter;
  if (f == NULL || f->answer == ANSWER_PASSED) return CONTINUE;
  bool sse = f->answer == ANSWER_SSE;
  if (sse && f->first_chunk_ns == 0 && envoy_dynamic_module_callback_http_get_body_size(envoy, RECEIVED_RESPONSE))
    note_first_chunk(f);
  each_chunk(envoy, RECEIVED_RESPONSE, sse ? feed_sse : feed_json, &f->reply);
  return CONTINUE;
}

PM_HOOK int envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, void *filter) { return CONTINUE; }

/* Before the access log is written, also when the client left early. */
PM_HOOK void envoy_dynamic_module_on_http_filter_stream_complete(void *envoy, void *filter) {
  if (filter != NULL) tell(envoy, filter);
}
