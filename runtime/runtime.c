/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A runtime: an adopted ops table with its object, and the public helpers on it.
 *
 *   lade_runtime --ops--> table (static) --self--> runtime/cuda or runtime/soft
 *        | users: pools, allocators, pipelines, groups, graph trees alive on it
 *
 * I1  A table that ladei_ops_check() refuses is never called.
 * I2  users counts the objects that hold the runtime; close succeeds only at 0.
 * I3  In a forked child every call that could reach the driver returns LADE_ERR_FORKED: the child has none of the
 *     driver's threads and contexts.
 * Locks: none; users is atomic, the rest is constant after adoption.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/options.h"
#include "base/size.h"
#include "lade/copy.h"
#include "runtime/convert.h"
#include "runtime/last_stream.h"
#include "runtime/ops.h"
#include "runtime/ops_list.h"

/* ---- Checking a table -------------------------------------------------------------------------------------------- */

typedef enum op_group {
  GROUP_REQUIRED,
  GROUP_VIRTUAL_MEMORY,
  GROUP_DRIVER_POOLS,
  GROUP_GRAPHS,
  GROUP_IPC,
  GROUP_COPY_BATCH,
  GROUP_WRITE_VALUE,
  GROUP_VIRTUAL_TIME,
  GROUP_KERNELS,
  GROUP_CAPTURE_ORDER,
  GROUP_COPY_KERNEL,
  GROUP_COUNT
} op_group;

typedef struct op_entry {
  const char *name;
  size_t offset;
  op_group group;
} op_entry;

static const op_entry op_entries[] = {
#define OP_ENTRY(op, group) {#op, offsetof(lade_runtime_ops, op), GROUP_##group},
    LADEI_OPS_LIST(OP_ENTRY)
#undef OP_ENTRY
};

enum { OP_COUNT = sizeof op_entries / sizeof op_entries[0] };

_Static_assert(sizeof(lade_runtime_ops) == sizeof(size_t) + sizeof(const char *) + OP_COUNT * sizeof(void (*)(void)),
               "an op of ops.h is missing in ops_list.h");

static bool op_present(const lade_runtime_ops *ops, const op_entry *entry) {
  void (*function)(void);
  memcpy(&function, (const char *)ops + entry->offset, sizeof function);
  return function != NULL;
}

lade_status ladei_ops_check(const lade_runtime_ops *ops) {
  if (ops == NULL || ops->name == NULL || ops->struct_size != sizeof *ops) {
    return ladei_error_argument("ladei_ops_check", "ops", "a table with a name and this library's struct_size", "%p",
                                (const void *)ops);
  }
  const op_entry *first[GROUP_COUNT] = {NULL};
  for (size_t i = 0; i < OP_COUNT; i++) {
    const op_entry *entry = &op_entries[i];
    bool present = op_present(ops, entry);
    if (entry->group == GROUP_REQUIRED && !present) {
      return ladei_error_argument("ladei_ops_check", entry->name, "a function: the operation is required",
                                  "NULL in the table \"%s\"", ops->name);
    }
    if (first[entry->group] == NULL) {
      first[entry->group] = entry;
    } else if (present != op_present(ops, first[entry->group])) {
      return ladei_error_argument("ladei_ops_check", entry->name, "both operations of a group, or neither",
                                  "%s in the table \"%s\", unlike %s", present ? "a function" : "NULL", ops->name,
                                  first[entry->group]->name);
    }
  }
  return LADE_OK;
}

lade_status ladei_ops_convert_check(const struct lade_copy_piece *pieces, size_t count, lade_dtype from, lade_dtype to,
                                    unsigned blocks) {
  static const char call[] = "copy_kernel_convert";
  const ladei_number_format *source = ladei_number_format_of(from), *target = ladei_number_format_of(to);
  if (count == 0 || blocks == 0)
    return ladei_error_argument(call, "count, blocks", "more than 0", "%zu, %u", count, blocks);
  if (source == NULL || target == NULL || from == to)
    return ladei_error_argument(call, "from, to", "two of F32, F16, BF16, F8_E5M2 and F8_E4M3", "%d, %d", (int)from,
                                (int)to);
  for (size_t i = 0; i < count; i++) {
    if (pieces[i].bytes % source->bytes != 0 || (uintptr_t)pieces[i].src % source->bytes != 0)
      return ladei_error_argument(call, "src, bytes", "multiples of the source's numbers", "%p, %zu", pieces[i].src,
                                  pieces[i].bytes);
    if ((uintptr_t)pieces[i].dst % target->bytes != 0)
      return ladei_error_argument(call, "dst", "a multiple of the destination's numbers", "%p", pieces[i].dst);
  }
  return LADE_OK;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

lade_status ladei_runtime_adopt(const lade_runtime_ops *ops, void *self, void *software_device, lade_runtime **out) {
  LADEI_TRY(ladei_ops_check(ops));
  lade_runtime *runtime = calloc(1, sizeof *runtime);
  if (runtime == NULL) {
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "runtime \"%s\": no memory for %zu bytes", ops->name,
                       sizeof *runtime);
  }
  runtime->ops = ops;
  runtime->self = self;
  runtime->software_device = software_device;
  ladei_process_take(&runtime->owner);
  atomic_init(&runtime->users, 0);
  *out = runtime;
  return LADE_OK;
}

lade_status lade_runtime_close(lade_runtime *runtime) {
  if (runtime == NULL) return LADE_OK;
  LADEI_TRY(ladei_runtime_check_process(runtime));
  uint64_t users = atomic_load(&runtime->users);
  if (users != 0) {
    return ladei_error(
        LADE_ERR_BUSY, 0,
        "runtime \"%s\": close: %llu pools, allocators, pipelines, groups or graph trees are alive on it",
        runtime->ops->name, (unsigned long long)users);
  }
  lade_status status = runtime->ops->close(runtime->self);
  if (status == LADE_OK) {
    ladei_process_release(&runtime->owner);
    free(atomic_load(&runtime->copy_memory));
    ladei_last_stream_forget(); /* another thread may open one at this address once it is free */
    free(runtime);
  }
  return status;
}

lade_status ladei_runtime_forked(const lade_runtime *runtime) {
  return ladei_error(LADE_ERR_FORKED, 0,
                     "runtime \"%s\" belongs to process %d; expected one that its child %d opens after fork()",
                     runtime->ops->name, (int)runtime->owner.id, (int)getpid());
}

lade_status ladei_runtime_acquire(lade_runtime *runtime) {
  if (runtime == NULL) return ladei_error_null("ladei_runtime_acquire", "runtime");
  lade_status status = ladei_runtime_check_process(runtime);
  if (status == LADE_OK) atomic_fetch_add(&runtime->users, 1);
  return status;
}

void ladei_runtime_release(lade_runtime *runtime) { atomic_fetch_sub(&runtime->users, 1); }

/* ---- Arguments that all runtimes check in the same way ----------------------------------------------------------- */

static lade_status extent_check(const char *field, size_t value, size_t least) {
  char expected[64];
  if (value >= least && value <= INT32_MAX) return LADE_OK;
  (void)snprintf(expected, sizeof expected, "from %zu to 2147483647", least);
  return ladei_error_argument("copy_2d", field, expected, "%zu", value);
}

lade_status ladei_copy_2d_check(size_t dst_pitch, size_t src_pitch, size_t width, size_t rows) {
  LADEI_TRY(extent_check("width", width, 1));
  LADEI_TRY(extent_check("rows", rows, 1));
  LADEI_TRY(extent_check("dst_pitch", dst_pitch, width));
  return extent_check("src_pitch", src_pitch, width);
}

/* ---- Streams that capture: Note [Asking and capturing] ----------------------------------------------------------- */

lade_status ladei_stream_uncaptured(const lade_runtime *runtime, const ladei_stream *stream, const char *call) {
  static const char *const states[] = {"", "captures", "is in a capture that became invalid",
                                       "is a legacy stream beside one that captures"};
  ladei_capture_info info = {.status = LADEI_CAPTURE_NONE};
  lade_status status = runtime->ops->stream_capture_info(runtime->self, stream, &info);
  if (status != LADE_OK || info.status == LADEI_CAPTURE_NONE) return status;
  return ladei_error(LADE_ERR_CAPTURE, 0, "%s: stream id %llu %s", call, (unsigned long long)stream->id,
                     states[info.status]);
}

lade_status ladei_stream_verify(const lade_runtime *runtime, const ladei_stream *stream) {
  if (stream->kind != LADEI_STREAM_ORDINARY) return LADE_OK;
  ladei_stream now;
  lade_status status = runtime->ops->stream_resolve(runtime->self, stream->handle, &now);
  bool other = status == LADE_OK && (now.id != stream->id || now.context != stream->context);
  if (!other && status != LADE_ERR_INVALID_ARGUMENT) return status;
  return ladei_error(LADE_ERR_STREAM_RETIRED, 0, "stream id %llu was destroyed; its handle %p names %s",
                     (unsigned long long)stream->id, (void *)stream->handle, other ? "another stream" : "no stream");
}

lade_status ladei_stream_confirm(const lade_runtime *runtime, const ladei_stream *stream, const char *call) {
  lade_status status = ladei_stream_verify(runtime, stream);
  return status != LADE_OK ? status : ladei_stream_uncaptured(runtime, stream, call);
}

lade_status ladei_stream_ask(const lade_runtime *runtime, const ladei_stream *stream) {
  lade_status status = ladei_stream_uncaptured(runtime, stream, "stream_query");
  return status != LADE_OK ? status : runtime->ops->stream_query(runtime->self, stream);
}

lade_status ladei_stream_wait(const lade_runtime *runtime, const ladei_stream *stream) {
  lade_status status = ladei_stream_uncaptured(runtime, stream, "stream_synchronize");
  return status != LADE_OK ? status : runtime->ops->stream_synchronize(runtime->self, stream);
}

/* ---- Copies between devices: Note [Copies between devices] ------------------------------------------------------- */

/* For copies that the plain copy refuses: they must not endanger a capture. */
static lade_status between_uncaptured(const lade_runtime *runtime, int dst_device, int src_device,
                                      const ladei_stream *stream) {
  char call[160];
  (void)snprintf(
      call, sizeof call,
      "a copy from device %d to device %d, to be captured, needs live memory at both ends that device %d may access "
      "(lade_device_peer_add)",
      src_device, dst_device, stream->device);
  return ladei_stream_uncaptured(runtime, stream, call);
}

lade_status ladei_copy_between(const lade_runtime *runtime, void *dst, int dst_device, const void *src, int src_device,
                               size_t bytes, const ladei_stream *stream) {
  lade_error before;
  bool between = dst_device != src_device || dst_device != stream->device;
  if (between) ladei_error_save(&before);
  lade_status status = runtime->ops->copy(runtime->self, LADEI_COPY_D2D, dst, src, bytes, stream);
  if (status != LADE_ERR_INVALID_ARGUMENT || !between) return status;
  status = between_uncaptured(runtime, dst_device, src_device, stream);
  if (status != LADE_OK) return status;
  status = runtime->ops->copy_peer(runtime->self, dst, dst_device, src, src_device, bytes, stream);
  if (status == LADE_OK) ladei_error_restore(&before);
  return status;
}

ladei_capture_mode ladei_capture_mode_relax(const lade_runtime *runtime) {
  ladei_capture_mode mode = LADEI_CAPTURE_RELAXED;
  ladei_lock_assert_none_held();
  return runtime->ops->capture_mode_exchange(runtime->self, &mode) == LADE_OK ? mode : LADEI_CAPTURE_RELAXED;
}

void ladei_capture_mode_restore(const lade_runtime *runtime, ladei_capture_mode mode) {
  if (mode != LADEI_CAPTURE_RELAXED) (void)runtime->ops->capture_mode_exchange(runtime->self, &mode);
}

/* ---- Public helpers ---------------------------------------------------------------------------------------------- */

const char *lade_runtime_name(const lade_runtime *runtime) { return runtime->ops->name; }

uint64_t lade_runtime_now_ns(lade_runtime *runtime) { return runtime->ops->now_ns(runtime->self); }

/* Entry of every public helper: right process, and an argument that must not be NULL. */
static lade_status helper_enter(const lade_runtime *runtime, const char *field, const void *argument,
                                const char *function) {
  if (runtime == NULL) return ladei_error_null(function, "runtime");
  if (argument == NULL) return ladei_error_null(function, field);
  return ladei_runtime_check_process(runtime);
}

/* The same for calls on a stream; resolves it. */
static lade_status helper_enter_stream(const lade_runtime *runtime, lade_stream stream, const char *field,
                                       const void *argument, const char *function, ladei_stream *out) {
  lade_status status = helper_enter(runtime, field, argument, function);
  return status != LADE_OK ? status : runtime->ops->stream_resolve(runtime->self, stream, out);
}

lade_status lade_runtime_device_count(lade_runtime *runtime, int *out_count) {
  lade_status status = helper_enter(runtime, "out_count", out_count, __func__);
  return status != LADE_OK ? status : runtime->ops->device_count(runtime->self, out_count);
}

lade_status lade_runtime_device_info(lade_runtime *runtime, int device, lade_device_info *info) {
  LADEI_TRY(helper_enter(runtime, "info", info, __func__));
  ladei_device_properties properties;
  LADEI_TRY(runtime->ops->device_properties(runtime->self, device, &properties));
  lade_device_info own;
  lade_device_info_init(&own);
  _Static_assert(sizeof own.name == sizeof properties.name, "copied whole");
  _Static_assert(sizeof own.pci_bus_id == sizeof properties.pci_bus_id, "copied whole");
  memcpy(own.name, properties.name, sizeof own.name);
  memcpy(own.pci_bus_id, properties.pci_bus_id, sizeof own.pci_bus_id);
  own.total_bytes = properties.total_bytes;
  own.numa_node = properties.numa_node;
  own.software = runtime->software_device != NULL;
  return ladei_stats_write("lade_device_info", &own, sizeof own, info);
}

lade_status lade_runtime_set_device(lade_runtime *runtime, int device) {
  lade_status status = helper_enter(runtime, "runtime", runtime, __func__);
  return status != LADE_OK ? status : runtime->ops->current_device_set(runtime->self, device);
}

lade_status lade_stream_create(lade_runtime *runtime, int device, lade_stream *out) {
  lade_status status = helper_enter(runtime, "out", out, __func__);
  return status != LADE_OK ? status
                           : runtime->ops->stream_create(runtime->self, device, 0, LADEI_STREAM_NON_BLOCKING, out);
}

lade_status lade_stream_destroy(lade_runtime *runtime, lade_stream stream) {
  bool special = stream == NULL || stream == LADE_STREAM_LEGACY || stream == LADE_STREAM_PER_THREAD;
  lade_status status = helper_enter(runtime, "runtime", runtime, __func__);
  if (status == LADE_OK && special)
    return ladei_error_argument(__func__, "stream", "a stream from lade_stream_create", "%p", (void *)stream);
  ladei_last_stream_forget(); /* another thread may get the handle once the stream is gone */
  return status == LADE_OK ? runtime->ops->stream_destroy(runtime->self, stream) : status;
}

lade_status lade_stream_synchronize(lade_runtime *runtime, lade_stream stream) {
  ladei_stream resolved;
  lade_status status = helper_enter_stream(runtime, stream, "runtime", runtime, __func__, &resolved);
  if (status == LADE_OK) status = ladei_stream_wait(runtime, &resolved);
  ladei_log_flush();
  return status;
}

lade_status lade_stream_query(lade_runtime *runtime, lade_stream stream) {
  ladei_stream resolved;
  lade_status status = helper_enter_stream(runtime, stream, "runtime", runtime, __func__, &resolved);
  return status != LADE_OK ? status : ladei_stream_ask(runtime, &resolved);
}

lade_status lade_stream_wait_event(lade_runtime *runtime, lade_stream stream, lade_event event) {
  ladei_stream resolved;
  lade_status status = helper_enter_stream(runtime, stream, "event", event, __func__, &resolved);
  return status != LADE_OK ? status : runtime->ops->stream_wait_event(runtime->self, &resolved, event);
}

lade_status lade_event_create(lade_runtime *runtime, int device, lade_event *out) {
  lade_status status = helper_enter(runtime, "out", out, __func__);
  uint64_t context = 0;
  if (status == LADE_OK) status = runtime->ops->device_context(runtime->self, device, &context);
  return status != LADE_OK ? status : runtime->ops->event_create(runtime->self, context, 0, out);
}

lade_status lade_event_destroy(lade_runtime *runtime, lade_event event) {
  lade_status status = helper_enter(runtime, "event", event, __func__);
  return status != LADE_OK ? status : runtime->ops->event_destroy(runtime->self, event);
}

lade_status lade_event_record(lade_runtime *runtime, lade_event event, lade_stream stream) {
  ladei_stream resolved;
  lade_status status = helper_enter_stream(runtime, stream, "event", event, __func__, &resolved);
  return status != LADE_OK ? status : runtime->ops->event_record(runtime->self, event, &resolved);
}

/* The part of `bytes` that one copy may name: to the end of the pinned range, if the address lies in one. */
static size_t copy_reach(const ladei_pointer_attributes *attributes, const void *address, size_t bytes) {
  uint64_t offset = (uint64_t)(uintptr_t)address - attributes->base;
  bool ends = attributes->kind == LADEI_MEMORY_PINNED && offset < attributes->bytes;
  return ends ? ladei_size_min(bytes, attributes->bytes - (size_t)offset) : bytes;
}

static bool is_host(const ladei_pointer_attributes *attributes) {
  return attributes->kind == LADEI_MEMORY_PINNED || attributes->kind == LADEI_MEMORY_UNKNOWN;
}

/* A copy, and the attributes of its two addresses. */
typedef struct stretch {
  char *dst;
  const char *src;
  size_t bytes;
  ladei_pointer_attributes to, from;
} stretch;

static lade_status stretch_ask(const lade_runtime *runtime, stretch *rest) {
  lade_status status = runtime->ops->pointer_attributes(runtime->self, rest->dst, &rest->to);
  return status != LADE_OK ? status : runtime->ops->pointer_attributes(runtime->self, rest->src, &rest->from);
}

/* Length of the next single copy. */
static size_t stretch_length(const stretch *rest) {
  return ladei_size_min(copy_reach(&rest->to, rest->dst, rest->bytes), copy_reach(&rest->from, rest->src, rest->bytes));
}

/* Goes on after the first `length` bytes. A side in host memory must stay in host memory: no copy serves both. */
static lade_status stretch_next(const lade_runtime *runtime, size_t length, stretch *rest) {
  bool to_host = is_host(&rest->to), from_host = is_host(&rest->from);
  rest->dst += length;
  rest->src += length;
  rest->bytes -= length;
  lade_status status = stretch_ask(runtime, rest);
  if (status == LADE_OK && (is_host(&rest->to) != to_host || is_host(&rest->from) != from_host)) {
    status = ladei_error_argument(
        "lade_copy_async", is_host(&rest->to) != to_host ? "dst" : "src", "host memory, or device memory, to the end",
        "something else from %p on, %zu bytes short",
        is_host(&rest->to) != to_host ? (const void *)rest->dst : (const void *)rest->src, rest->bytes);
  }
  return status;
}

/* Called before anything is queued. */
static lade_status stretches_check(const lade_runtime *runtime, stretch rest) {
  lade_status status = LADE_OK;
  for (size_t length; status == LADE_OK && (length = stretch_length(&rest)) < rest.bytes;)
    status = stretch_next(runtime, length, &rest);
  return status;
}

/* Between pinned memory a batch of one, as a single copy waits there; without batches a single copy. */
static lade_status stretch_copy(const lade_runtime *runtime, ladei_copy_direction direction, const stretch *rest,
                                size_t length, const ladei_stream *stream) {
  bool pinned = rest->to.kind == LADEI_MEMORY_PINNED && rest->from.kind == LADEI_MEMORY_PINNED;
  if (pinned && runtime->ops->copy_batch != NULL) {
    void *const dst = rest->dst;
    const void *const src = rest->src;
    lade_error before;
    ladei_error_save(&before);
    lade_status status = runtime->ops->copy_batch(runtime->self, direction, 1, &dst, &src, &length, stream);
    if (status != LADE_ERR_UNSUPPORTED) return status;
    ladei_error_restore(&before);
  }
  return runtime->ops->copy(runtime->self, direction, rest->dst, rest->src, length, stream);
}

/* Note [Copies end with registrations] in ops.h. */
static lade_status stretches_copy(const lade_runtime *runtime, stretch rest, const ladei_stream *stream) {
  ladei_copy_direction direction =
      ladei_copy_direction_of(rest.to.kind == LADEI_MEMORY_DEVICE, rest.from.kind == LADEI_MEMORY_DEVICE);
  lade_status status = stretches_check(runtime, rest);
  while (status == LADE_OK) {
    size_t length = stretch_length(&rest);
    status = stretch_copy(runtime, direction, &rest, length, stream);
    if (length == rest.bytes) break;
    if (status == LADE_OK) status = stretch_next(runtime, length, &rest);
  }
  return status;
}

lade_status lade_copy_async(lade_runtime *runtime, void *dst, const void *src, size_t bytes, lade_stream stream) {
  ladei_stream resolved;
  bool dst_missing = bytes > 0 && dst == NULL, src_missing = bytes > 0 && src == NULL;
  if (runtime != NULL && (dst_missing || src_missing)) return ladei_error_null(__func__, dst_missing ? "dst" : "src");
  if (runtime != NULL && bytes >= LADEI_SIZE_LIMIT)
    return ladei_error_argument(__func__, "bytes", "less than 2^60", "%zu", bytes);
  lade_status status = helper_enter_stream(runtime, stream, "runtime", runtime, __func__, &resolved);
  if (status != LADE_OK || bytes == 0) return status;
  stretch all = {.dst = dst, .src = src, .bytes = bytes};
  status = stretch_ask(runtime, &all);
  if (status != LADE_OK) return status;
  bool between = all.to.kind == LADEI_MEMORY_DEVICE && all.from.kind == LADEI_MEMORY_DEVICE;
  if (between && all.to.device != all.from.device)
    return ladei_copy_between(runtime, dst, all.to.device, src, all.from.device, bytes, &resolved);
  return stretches_copy(runtime, all, &resolved);
}

/* Fills registration by registration, as stretches_copy() copies; stream NULL: only checks the arguments. */
static lade_status parts_fill(const lade_runtime *runtime, char *dst, unsigned char value, size_t bytes,
                              const ladei_stream *stream) {
  lade_status status = LADE_OK;
  for (bool first = true; bytes != 0 && status == LADE_OK; first = false) {
    ladei_pointer_attributes to;
    status = runtime->ops->pointer_attributes(runtime->self, dst, &to);
    if (status != LADE_OK) return status;
    if (!first && to.kind != LADEI_MEMORY_PINNED) {
      return ladei_error_argument("lade_fill_async", "dst", "pinned memory to the end",
                                  "something else from %p on, %zu bytes short", (void *)dst, bytes);
    }
    size_t length = copy_reach(&to, dst, bytes);
    if (stream != NULL) status = runtime->ops->fill(runtime->self, dst, value, length, stream);
    dst += length;
    bytes -= length;
  }
  return status;
}

lade_status lade_fill_async(lade_runtime *runtime, void *dst, uint8_t value, size_t bytes, lade_stream stream) {
  ladei_stream resolved;
  if (runtime != NULL && bytes > 0 && dst == NULL) return ladei_error_null(__func__, "dst");
  if (runtime != NULL && bytes >= LADEI_SIZE_LIMIT)
    return ladei_error_argument(__func__, "bytes", "less than 2^60", "%zu", bytes);
  lade_status status = helper_enter_stream(runtime, stream, "runtime", runtime, __func__, &resolved);
  if (status == LADE_OK) status = parts_fill(runtime, dst, value, bytes, NULL);
  return status == LADE_OK ? parts_fill(runtime, dst, value, bytes, &resolved) : status;
}
