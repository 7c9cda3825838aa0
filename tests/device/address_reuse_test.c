/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: A driver may hand addresses out again as soon as it has taken them back, that is before the call that
 * gave them back returns. Another thread's allocation at that moment is played here inside the driver's call.
 */
#include "device/api/device.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/runtimes.h"

static struct {
  lade_runtime *inner;
  lade_device_allocator *allocator; /* NULL: nobody allocates inside the call */
  lade_stream stream;
  size_t bytes;
  void *taken;
  void *kept; /* taken back, and handed out by the next allocation; the software device would take fresh addresses */
} other;

static const lade_runtime_ops *below(void) { return other.inner->ops; }

/* What the driver has handed out again is no longer counted and shown as the former segment's. */
static void snapshot_expect_whole(lade_device_allocator *allocator) {
  lade_device_snapshot *snapshot = NULL;
  if (lade_device_snapshot_take(allocator, NULL, &snapshot) == LADE_ERR_UNSUPPORTED) return;
  LADE_ASSERT(snapshot != NULL);
  uint64_t reserved = 0;
  uint64_t end = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    LADE_EXPECT_LE_UINT(end, snapshot->segments[i].address);
    end = snapshot->segments[i].address + snapshot->segments[i].total_bytes;
    reserved += snapshot->segments[i].total_bytes;
  }
  LADE_EXPECT_EQ_UINT(reserved, snapshot->stats.reserved_bytes.all.current);
  lade_device_snapshot_destroy(snapshot);
}

static void other_thread_allocates(void) {
  lade_device_allocator *allocator = other.allocator;
  other.allocator = NULL;
  LADE_EXPECT_OK(lade_device_alloc(allocator, other.bytes, other.stream, &other.taken));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  snapshot_expect_whole(allocator);
}

/* Takes memory back; the other thread gets it at once. */
static void keep(void *pointer) {
  other.kept = pointer;
  other_thread_allocates();
}

static bool kept_take(void **out) {
  if (other.kept == NULL) return false;
  *out = other.kept;
  other.kept = NULL;
  return true;
}

static lade_status device_alloc(void *self, int device, size_t bytes, void **out) {
  return kept_take(out) ? LADE_OK : below()->device_alloc(self, device, bytes, out);
}

static lade_status device_free(void *self, int device, void *pointer) {
  if (other.allocator == NULL) return below()->device_free(self, device, pointer);
  keep(pointer);
  return LADE_OK;
}

static lade_status vm_reserve(void *self, int device, size_t bytes, size_t align, void **out) {
  return kept_take(out) ? LADE_OK : below()->vm_reserve(self, device, bytes, align, out);
}

static lade_status vm_address_free(void *self, void *address, size_t bytes) {
  if (other.allocator == NULL) return below()->vm_address_free(self, address, bytes);
  keep(address);
  return LADE_OK;
}

static lade_status pool_free(void *self, void *pointer, const ladei_stream *stream) {
  lade_status status = below()->pool_free(self, pointer, stream);
  if (other.allocator != NULL) other_thread_allocates(); /* pools of software devices do reuse addresses */
  return status;
}

static lade_status close_inner(void *self) {
  (void)self;
  return lade_runtime_close(other.inner);
}

/* One block is given back to the driver; inside, the other thread gets its addresses. */
static void run(const lade_device_options *options, size_t bytes) {
  lade_runtime *inner = support_runtime_open("sim");
  if (inner == NULL) return;
  lade_runtime_ops ops = *inner->ops;
  other.inner = inner;
  ops.close = close_inner;
  ops.device_alloc = device_alloc;
  ops.device_free = device_free;
  ops.vm_reserve = vm_reserve;
  ops.vm_address_free = vm_address_free;
  ops.pool_free = pool_free;
  lade_runtime *runtime = NULL;
  lade_device_allocator *allocator = NULL;
  lade_stream stream;
  LADE_ASSERT_OK(ladei_runtime_adopt(&ops, inner->self, inner->software_device, &runtime));
  LADE_ASSERT_OK(lade_stream_create(runtime, 0, &stream));
  LADE_ASSERT_OK(lade_device_allocator_create(runtime, 0, options, &allocator));
  void *block = NULL;
  LADE_EXPECT_OK(lade_device_alloc(allocator, bytes, stream, &block));
  other.allocator = allocator;
  other.stream = stream;
  other.bytes = bytes;
  other.taken = NULL;
  LADE_EXPECT_OK(lade_device_free(allocator, block));
  LADE_EXPECT_OK(lade_device_empty_cache(allocator));
  LADE_EXPECT_EQ_PTR(other.taken, block);
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  LADE_EXPECT_OK(lade_device_free(allocator, other.taken));
  LADE_EXPECT_OK(ladei_device_allocator_check(allocator));
  LADE_EXPECT_OK(lade_device_allocator_destroy(allocator, true));
  LADE_EXPECT_OK(lade_stream_destroy(runtime, stream));
  support_runtime_close(runtime);
}

LADE_TEST(AddressReuse, PlainSegments) { run(NULL, 30 * MIB); }

LADE_TEST(AddressReuse, ReservationsOfExpandableSegments) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.expandable_segments = 1;
  run(&options, 30 * MIB);
}

LADE_TEST(AddressReuse, DriverPools) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.backend = LADE_DEVICE_CUDA_MALLOC_ASYNC;
  run(&options, 3 * MIB);
}

LADE_TEST(AddressReuse, UncachedBlocks) {
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_UNCACHED;
  run(&options, 3 * MIB);
}
