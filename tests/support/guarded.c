/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guards.
 *
 *   device   | guard | block | guard |   one allocation of the driver; the guards hold the pattern of GUARD_SEED
 *   host     | no access | slack, block | no access |   whole pages; the block ends where the second guard begins
 */
#include "tests/support/guarded.h"

#include <sys/mman.h>

#include "device/native/native.h"
#include "runtime/ops.h"
#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"

enum { GUARD_SEED = 0x6a4d };

/* --- device memory ------------------------------------------------------------------------------------------------ */

static lade_status guard_copy(const support_guarded_device *guarded, int device, ladei_copy_direction direction,
                              void *to, const void *from) {
  const lade_runtime *runtime = guarded->runtime;
  return runtime->ops->copy_sync(runtime->self, device, direction, to, from, SUPPORT_GUARD_BYTES);
}

static lade_status guard_write(const support_guarded_device *guarded, int device, char *guard) {
  unsigned char bytes[SUPPORT_GUARD_BYTES];
  support_pattern_fill(bytes, sizeof bytes, GUARD_SEED, 0);
  return guard_copy(guarded, device, LADEI_COPY_H2D, guard, bytes);
}

static void guard_expect(const support_guarded_device *guarded, const struct support_guarded_block *block,
                         const char *guard, const char *place) {
  unsigned char bytes[SUPPORT_GUARD_BYTES];
  LADE_EXPECT_OK(guard_copy(guarded, block->device, LADEI_COPY_D2H, bytes, guard));
  size_t first = support_pattern_mismatch(bytes, sizeof bytes, GUARD_SEED, 0);
  if (first < sizeof bytes) LADE_FAIL("block of %zu bytes: byte %zu %s was written", block->bytes, first, place);
}

static void block_expect(const support_guarded_device *guarded, const struct support_guarded_block *block) {
  guard_expect(guarded, block, block->memory - SUPPORT_GUARD_BYTES, "of the guard before it");
  guard_expect(guarded, block, block->memory + block->bytes, "behind it");
}

static lade_status block_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  support_guarded_device *guarded = user;
  const lade_runtime *runtime = guarded->runtime;
  struct support_guarded_block *block = guarded->blocks;
  void *whole;
  (void)stream;
  while (block < guarded->blocks + SUPPORT_GUARDED_BLOCKS && block->memory != NULL) block++;
  if (block == guarded->blocks + SUPPORT_GUARDED_BLOCKS) return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  lade_status status =
      runtime->ops->device_alloc(runtime->self, device, bytes + 2 * (size_t)SUPPORT_GUARD_BYTES, &whole);
  if (status != LADE_OK) return status;
  char *memory = (char *)whole + SUPPORT_GUARD_BYTES;
  status = guard_write(guarded, device, whole);
  if (status == LADE_OK) status = guard_write(guarded, device, memory + bytes);
  if (status != LADE_OK) {
    LADE_EXPECT_OK(runtime->ops->device_free(runtime->self, device, whole));
    return status;
  }
  *block = (struct support_guarded_block){memory, bytes, device};
  *out = memory;
  return LADE_OK;
}

static lade_status block_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  support_guarded_device *guarded = user;
  const lade_runtime *runtime = guarded->runtime;
  (void)stream;
  for (struct support_guarded_block *block = guarded->blocks; block < guarded->blocks + SUPPORT_GUARDED_BLOCKS;
       block++) {
    if (block->memory != pointer) continue;
    LADE_EXPECT_EQ_SIZE(bytes, block->bytes);
    block_expect(guarded, block);
    lade_status status = runtime->ops->device_free(runtime->self, device, block->memory - SUPPORT_GUARD_BYTES);
    if (status == LADE_OK) block->memory = NULL;
    return status;
  }
  LADE_FAIL("a block that goes back is none of the provider's");
  return LADE_ERR_FOREIGN_POINTER;
}

void support_guarded_device_begin(support_guarded_device *guarded, lade_runtime *runtime,
                                  lade_device_allocator *allocator) {
  lade_device_plugin provider;
  lade_device_options options;
  lade_device_options_init(&options);
  options.flags = LADE_DEVICE_UNCACHED;
  *guarded = (support_guarded_device){.runtime = runtime};
  lade_device_plugin_init(&provider);
  provider.user = guarded;
  provider.alloc = block_alloc;
  provider.free = block_free;
  LADE_EXPECT_OK(ladei_device_native_provider_set(allocator, &provider)); /* nothing was asked for yet */
  LADE_EXPECT_OK(lade_device_configure(allocator, &options));
}

void support_guarded_device_check(const support_guarded_device *guarded) {
  for (size_t i = 0; i < SUPPORT_GUARDED_BLOCKS; i++)
    if (guarded->blocks[i].memory != NULL) block_expect(guarded, &guarded->blocks[i]);
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

static size_t host_pages_bytes(size_t bytes) {
  return (bytes + SUPPORT_GUARD_BYTES - 1) / SUPPORT_GUARD_BYTES * SUPPORT_GUARD_BYTES;
}

void *support_guarded_host(size_t bytes) {
  size_t inner = host_pages_bytes(bytes);
  char *whole = mmap(NULL, inner + 2 * (size_t)SUPPORT_GUARD_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED || (inner > 0 && mprotect(whole + SUPPORT_GUARD_BYTES, inner, PROT_READ | PROT_WRITE) != 0)) {
    LADE_FAIL("no guarded memory of %zu bytes", bytes);
    return NULL;
  }
  return whole + SUPPORT_GUARD_BYTES + inner - bytes;
}

void support_guarded_host_free(void *memory, size_t bytes) {
  size_t inner = host_pages_bytes(bytes);
  if (memory != NULL)
    munmap((char *)memory + bytes - inner - SUPPORT_GUARD_BYTES, inner + 2 * (size_t)SUPPORT_GUARD_BYTES);
}
