/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a replay; model in replay_device.h.
 *
 * D1  stream->completed <= stream->recorded.
 * D2  An event is complete exactly if position <= its stream's completed, or it was awaited; position 0: not recorded.
 * Locks: none; a replay has one thread.
 */
#include "tools/replay/replay_device.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/size.h"
#include "lade/soft.h"
#include "runtime/ops.h"
#include "tools/replay/memory.h"
#include "tools/replay/number_map.h"

typedef struct replay_stream {
  uint64_t number;
  uint64_t recorded;  /* events recorded on it */
  uint64_t completed; /* of those, how many are complete */
} replay_stream;

typedef struct replay_event {
  replay_stream *stream;
  uint64_t position; /* its number among the events of the stream, from 1 */
  bool waited;       /* for it alone: the trace completes all others */
} replay_event;

struct replay_device {
  lade_runtime *sim;
  lade_runtime *runtime;
  lade_runtime_ops ops; /* those of sim, except those below */
  replay_memory memory;
  uint64_t context;
  uint64_t pinned_next; /* the next address of pinned memory */
  number_map streams;   /* number -> replay_stream */
  replay_stream *last;  /* the one asked for last; NULL: none yet */
};

/* Where the ops below find their device: see the header. */
static replay_device *current;

#define PINNED_BEGIN UINT64_C(0x400000000000)
#define PINNED_ALIGN UINT64_C(4096)

static replay_stream *stream_of(lade_stream handle) { return (replay_stream *)(void *)handle; }
static replay_event *event_of(lade_event handle) { return (replay_event *)(void *)handle; }

/* ---- Ops: streams ------------------------------------------------------------------------------------------------ */

static lade_status op_stream_resolve(void *self, lade_stream stream, ladei_stream *out) {
  (void)self;
  *out = (ladei_stream){.context = current->context,
                        .id = stream_of(stream)->number,
                        .handle = stream,
                        .device = 0,
                        .kind = LADEI_STREAM_ORDINARY};
  return LADE_OK;
}

/* The trace queues no work that is not finished: only events are held back. */
static lade_status op_stream_query(void *self, const ladei_stream *stream) {
  (void)self;
  (void)stream;
  return LADE_OK;
}

static lade_status op_stream_synchronize(void *self, const ladei_stream *stream) {
  (void)self;
  replay_device_complete(stream->handle);
  return LADE_OK;
}

static lade_status op_stream_capture_info(void *self, const ladei_stream *stream, ladei_capture_info *out) {
  (void)self;
  (void)stream;
  *out = (ladei_capture_info){.status = LADEI_CAPTURE_NONE};
  return LADE_OK;
}

/* ---- Ops: events ------------------------------------------------------------------------------------------------- */

static lade_status op_event_create(void *self, uint64_t context, unsigned flags, lade_event *out) {
  (void)self;
  (void)context;
  (void)flags;
  replay_event *event = calloc(1, sizeof *event);
  if (event == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "event_create: no memory");
  *out = (lade_event)(void *)event;
  return LADE_OK;
}

static lade_status op_event_destroy(void *self, lade_event event) {
  (void)self;
  free(event_of(event));
  return LADE_OK;
}

static lade_status op_event_record(void *self, lade_event event, const ladei_stream *stream) {
  (void)self;
  replay_stream *own = stream_of(stream->handle);
  *event_of(event) = (replay_event){own, ++own->recorded, false};
  return LADE_OK;
}

static lade_status op_event_query(void *self, lade_event handle) {
  (void)self;
  const replay_event *event = event_of(handle);
  bool complete = event->position == 0 || event->waited || event->position <= event->stream->completed;
  return complete ? LADE_OK : LADE_NOT_READY;
}

/* lade waits for each event of a use that it needs, and for one after all uses if memory goes back to the driver: a
 * recorded program did that at another place, or not at all. */
static lade_status op_event_synchronize(void *self, lade_event handle) {
  (void)self;
  event_of(handle)->waited = true;
  return LADE_OK;
}

/* ---- Ops: device memory ------------------------------------------------------------------------------------------ */

static uint64_t address_of(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static lade_status range_take(uint64_t bytes, bool charged, void **out) {
  uint64_t address = 0;
  lade_status status = replay_memory_take(&current->memory, bytes, charged, &address);
  if (status == LADE_OK) *out = (void *)(uintptr_t)address;
  return status;
}

static lade_status op_memory_info(void *self, int device, size_t *out_free_bytes, size_t *out_total_bytes) {
  (void)self;
  (void)device;
  *out_free_bytes = (size_t)(current->memory.capacity - current->memory.charged);
  *out_total_bytes = (size_t)current->memory.capacity;
  return LADE_OK;
}

static lade_status op_device_alloc(void *self, int device, size_t bytes, void **out) {
  (void)self;
  (void)device;
  return range_take(bytes, true, out);
}

static lade_status op_device_free(void *self, int device, void *pointer) {
  (void)self;
  (void)device;
  return replay_memory_give(&current->memory, address_of(pointer), true);
}

static lade_status op_vm_reserve(void *self, int device, size_t bytes, size_t align, void **out_address) {
  (void)self;
  (void)device;
  (void)align;
  return range_take(bytes, false, out_address);
}

static lade_status op_vm_address_free(void *self, void *address, size_t bytes) {
  (void)self;
  (void)bytes;
  return replay_memory_give(&current->memory, address_of(address), false);
}

static lade_status op_vm_create(void *self, int device, size_t bytes, bool exportable, ladei_vm_handle *out_handle) {
  (void)self;
  (void)device;
  (void)exportable;
  return replay_memory_create(&current->memory, bytes, out_handle);
}

static lade_status op_vm_release(void *self, ladei_vm_handle handle) {
  (void)self;
  return replay_memory_release(&current->memory, handle);
}

/* Mappings are the allocator's: the addresses have no memory. */
static lade_status op_vm_map(void *self, void *address, size_t bytes, ladei_vm_handle handle) {
  (void)self;
  (void)address;
  (void)bytes;
  (void)handle;
  return LADE_OK;
}

static lade_status op_vm_unmap(void *self, void *address, size_t bytes) {
  (void)self;
  (void)address;
  (void)bytes;
  return LADE_OK;
}

static lade_status op_vm_set_access(void *self, void *address, size_t bytes, int device, bool writable) {
  (void)self;
  (void)address;
  (void)bytes;
  (void)device;
  (void)writable;
  return LADE_OK;
}

/* ---- Ops: pinned memory ------------------------------------------------------------------------------------------ */

static lade_status op_host_alloc(void *self, int device, size_t bytes, unsigned flags, void **out) {
  (void)self;
  (void)device;
  (void)flags;
  size_t step;
  if (!ladei_size_round_up(bytes, PINNED_ALIGN, &step))
    return ladei_error(LADE_ERR_OUT_OF_PINNED_MEMORY, 0, "host_alloc: %zu bytes", bytes);
  *out = (void *)(uintptr_t)current->pinned_next;
  current->pinned_next += step;
  return LADE_OK;
}

static lade_status op_host_free(void *self, void *pointer) {
  (void)self;
  (void)pointer;
  return LADE_OK;
}

/* ---- The device -------------------------------------------------------------------------------------------------- */

static void ops_replace(lade_runtime_ops *ops) {
  ops->stream_resolve = op_stream_resolve;
  ops->stream_query = op_stream_query;
  ops->stream_synchronize = op_stream_synchronize;
  ops->stream_capture_info = op_stream_capture_info;
  ops->event_create = op_event_create;
  ops->event_destroy = op_event_destroy;
  ops->event_record = op_event_record;
  ops->event_query = op_event_query;
  ops->event_synchronize = op_event_synchronize;
  ops->memory_info = op_memory_info;
  ops->device_alloc = op_device_alloc;
  ops->device_free = op_device_free;
  ops->vm_reserve = op_vm_reserve;
  ops->vm_address_free = op_vm_address_free;
  ops->vm_create = op_vm_create;
  ops->vm_release = op_vm_release;
  ops->vm_map = op_vm_map;
  ops->vm_unmap = op_vm_unmap;
  ops->vm_set_access = op_vm_set_access;
  ops->host_alloc = op_host_alloc;
  ops->host_free = op_host_free;
}

/* The object is sim's: it goes when sim is closed. */
static lade_status op_close(void *self) {
  (void)self;
  return LADE_OK;
}

lade_status replay_device_open(uint64_t capacity_bytes, replay_device **out) {
  if (current != NULL) return ladei_error(LADE_ERR_BUSY, 0, "replay: a replay device is open");
  replay_device *device = calloc(1, sizeof *device);
  if (device == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "replay: no memory for the device");
  lade_soft_device description = {.memory_bytes = capacity_bytes, .addresses_only = 1};
  lade_soft_options soft;
  lade_soft_options_init(&soft);
  soft.devices = &description;
  soft.device_count = 1;
  lade_runtime_options options;
  lade_runtime_options_init(&options);
  options.soft = &soft;
  lade_status status = lade_runtime_open("sim", &options, &device->sim);
  if (status != LADE_OK) goto fail_free;
  status = device->sim->ops->device_context(device->sim->self, 0, &device->context);
  if (status != LADE_OK) goto fail_close;
  device->ops = *device->sim->ops;
  ops_replace(&device->ops);
  device->ops.close = op_close;
  status = ladei_runtime_adopt(&device->ops, device->sim->self, device->sim->software_device, &device->runtime);
  if (status != LADE_OK) goto fail_close;
  device->pinned_next = PINNED_BEGIN;
  replay_memory_init(&device->memory, capacity_bytes);
  current = device;
  *out = device;
  return LADE_OK;

fail_close:
  (void)lade_runtime_close(device->sim);
fail_free:
  free(device);
  return status;
}

lade_status replay_device_close(replay_device *device) {
  if (device == NULL) return LADE_OK;
  lade_status status = lade_runtime_close(device->runtime);
  if (status == LADE_OK) status = lade_runtime_close(device->sim);
  if (status != LADE_OK) return status;
  size_t place = 0;
  number_map_entry entry;
  while (number_map_next(&device->streams, &place, &entry)) free((void *)(uintptr_t)entry.value);
  number_map_destroy(&device->streams);
  replay_memory_destroy(&device->memory);
  current = NULL;
  free(device);
  return LADE_OK;
}

void replay_device_place(replay_device *device, uint64_t address) { device->memory.at = address; }

bool replay_device_placed(replay_device *device) {
  bool placed = !device->memory.at_beyond;
  device->memory.at = 0;
  device->memory.at_beyond = false;
  return placed;
}

lade_runtime *replay_device_runtime(replay_device *device) { return device->runtime; }

lade_stream replay_device_stream(replay_device *device, uint64_t number) {
  if (device->last != NULL && device->last->number == number) return (lade_stream)(void *)device->last;
  uint64_t *known = number_map_get(&device->streams, number);
  if (known != NULL) {
    device->last = (replay_stream *)(uintptr_t)*known;
    return (lade_stream)(void *)device->last;
  }
  replay_stream *stream = calloc(1, sizeof *stream);
  if (stream == NULL) return NULL;
  stream->number = number;
  if (!number_map_set(&device->streams, number, (uint64_t)(uintptr_t)stream)) {
    free(stream);
    return NULL;
  }
  return (lade_stream)(void *)stream;
}

uint64_t replay_stream_number(lade_stream stream) { return stream_of(stream)->number; }

uint64_t replay_device_record(lade_stream stream) { return ++stream_of(stream)->recorded; }

bool replay_device_done(lade_stream stream, uint64_t position) { return position <= stream_of(stream)->completed; }

void replay_device_complete(lade_stream stream) { stream_of(stream)->completed = stream_of(stream)->recorded; }
