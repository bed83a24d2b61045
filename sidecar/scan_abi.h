/* The part of Envoy's dynamic module ABI (v0.2.0, Envoy 1.40) that the module uses.
 *
 * Structs go by value; what Envoy hands out holds until the hook returns or a header is set. Called by scan.c. */
#ifndef PM_SCAN_ABI_H
#define PM_SCAN_ABI_H

#include <stdlib.h>

#include "scan_headers.h"
#include "scan_text.h"

#define PM_HOOK __attribute__((visibility("default")))

struct header {
  struct pm_view key, value;
};

enum { REQUEST_HEADERS = 0, RESPONSE_HEADERS = 2 };
enum { RECEIVED_REQUEST, BUFFERED_REQUEST, RECEIVED_RESPONSE };
enum { CONTINUE = 0, STOP_HEADERS = 1, STOP_AND_BUFFER = 1, STOP_WITHOUT_BUFFER = 3 };
enum { LOG_ERROR = 4 };

extern void envoy_dynamic_module_callback_log(int level, struct pm_view message);
extern size_t envoy_dynamic_module_callback_http_get_headers_size(void *envoy, int type);
extern bool envoy_dynamic_module_callback_http_get_headers(void *envoy, int type, struct header *headers);
/* A value without a pointer removes the header. */
extern bool envoy_dynamic_module_callback_http_set_header(void *envoy, int type, struct pm_view key,
                                                          struct pm_view value);
extern void envoy_dynamic_module_callback_http_clear_route_cache(void *envoy);
extern size_t envoy_dynamic_module_callback_http_get_body_size(void *envoy, int type);
extern size_t envoy_dynamic_module_callback_http_get_body_chunks_size(void *envoy, int type);
extern bool envoy_dynamic_module_callback_http_get_body_chunks(void *envoy, int type, struct pm_view *chunks);
extern bool envoy_dynamic_module_callback_http_received_buffered_request_body(void *envoy);
extern bool envoy_dynamic_module_callback_http_append_body(void *envoy, int type, struct pm_view data);
extern bool envoy_dynamic_module_callback_http_drain_body(void *envoy, int type, size_t size);
extern void envoy_dynamic_module_callback_http_set_dynamic_metadata_string(void *envoy, struct pm_view name,
                                                                           struct pm_view key, struct pm_view value);
extern void envoy_dynamic_module_callback_http_send_response(void *envoy, uint32_t status,
                                                             const struct header *headers, size_t header_count,
                                                             struct pm_view body, struct pm_view details);

#endif
