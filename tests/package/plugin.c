/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that uses lade, and what it makes (plugin.h). */
#include "tests/package/plugin.h"

#include <lade/lade.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

#define LADE(call)                                                                                                     \
  do                                                                                                                   \
    if ((call) != LADE_OK) return lade_last_error()->text;                                                             \
  while (0)

enum { BYTES = 1 << 20, CHUNK_BYTES = 64 << 10 };

static lade_runtime *runtime;
static lade_pinned_pool *pool;
static lade_device_allocator *device;
static lade_pipeline *pipeline;
static lade_stream stream;
static char sent[BYTES], received[BYTES];

#define X(name) EXPORTED plugin_call plugin_##name;
PLUGIN_CALLS(X)
#undef X

static void line(void *user, lade_log_level level, const char *text) {
  (void)level;
  (void)text;
  atomic_fetch_add((_Atomic(int) *)user, 1);
}

static const char *objects_make(void) {
  lade_device_options device_options;
  lade_pipeline_options pipeline_options;
  lade_device_options_init(&device_options);
  device_options.flags = LADE_DEVICE_THREAD_CACHES;
  lade_pipeline_options_init(&pipeline_options);
  pipeline_options.chunk_bytes = CHUNK_BYTES;
  LADE(lade_runtime_open("cpu", NULL, &runtime));
  LADE(lade_stream_create(runtime, 0, &stream));
  LADE(lade_pinned_pool_create(runtime, NULL, &pool));
  LADE(lade_device_allocator_create(runtime, 0, &device_options, &device));
  LADE(lade_pipeline_create(runtime, pool, &pipeline_options, &pipeline));
  return NULL;
}

const char *plugin_open(void) {
  static _Atomic(int) lines;
  lade_config config;
  lade_config_init(&config);
  LADE(lade_config_from_env(&config));
  LADE(lade_log_set(line, &lines, LADE_LOG_DEBUG));
  return objects_make();
}

const char *plugin_label(void) {
  LADE(lade_history_label_set("from a plugin"));
  return NULL;
}

const char *plugin_use(void) {
  lade_stream own;
  void *staging, *block;
  LADE(lade_stream_create(runtime, 0, &own));
  LADE(lade_pinned_alloc(pool, 4096, &staging));
  LADE(lade_pinned_record_event(pool, staging, own));
  LADE(lade_pinned_free(pool, staging));
  LADE(lade_device_alloc(device, 4096, own, &block));
  LADE(lade_device_free(device, block));
  if (lade_pinned_free(pool, received) != LADE_ERR_FOREIGN_POINTER) return "a foreign pointer is taken";
  LADE(lade_pinned_stream_retire(pool, own));
  LADE(lade_device_stream_retire(device, own));
  LADE(lade_stream_destroy(runtime, own));
  return NULL;
}

static const char *move(lade_direction direction, char *host, void *block) {
  lade_transfer transfer;
  lade_ticket *ticket;
  lade_transfer_init(&transfer);
  transfer.direction = (int32_t)direction;
  transfer.host = lade_endpoint_memory(host);
  transfer.device_memory = block;
  transfer.bytes = BYTES;
  LADE(lade_pipeline_submit(pipeline, &transfer, &ticket));
  LADE(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  return NULL;
}

const char *plugin_transfer(void) {
  void *block;
  LADE(lade_device_alloc(device, BYTES, stream, &block));
  for (size_t i = 0; i < BYTES; i++) sent[i] = (char)(i * 7);
  memset(received, 0, sizeof received);
  const char *wrong = move(LADE_TO_DEVICE, sent, block);
  if (wrong == NULL) wrong = move(LADE_TO_HOST, received, block);
  LADE(lade_device_free(device, block));
  return wrong != NULL || memcmp(sent, received, BYTES) == 0 ? wrong : "other bytes came back";
}

const char *plugin_hush(void) {
  LADE(lade_log_set(NULL, NULL, LADE_LOG_OFF));
  return NULL;
}

const char *plugin_close(void) {
  LADE(lade_device_stream_retire(device, stream));
  LADE(lade_pipeline_destroy(pipeline, false));
  LADE(lade_device_allocator_destroy(device, true));
  LADE(lade_pinned_pool_destroy(pool, true));
  LADE(lade_stream_destroy(runtime, stream));
  LADE(lade_runtime_close(runtime));
  return NULL;
}
