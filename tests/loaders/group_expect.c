/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/loaders/group_expect.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/shim/lade_test.h"

static void bits_copy(unsigned char *out, size_t at, const unsigned char *from, size_t place, size_t bits) {
  for (size_t bit = 0; bit < bits; bit++, at++, place++) {
    unsigned char mask = (unsigned char)(1U << at % 8);
    bool is_set = (from[place / 8] >> place % 8 & 1) != 0;
    out[at / 8] = (unsigned char)(is_set ? out[at / 8] | mask : out[at / 8] & ~mask);
  }
}

/* The bytes of a slice, element by element, from those of the whole tensor. Elements of four bits: the low ones first. */
static size_t slice_cut(const lade_tensor_info *info, const lade_load_slice *slice, const unsigned char *whole,
                        unsigned char *out) {
  size_t bits = lade_dtype_bits((lade_dtype)info->dtype), at = 0, inner = 1, count = info->bytes * 8 / bits;
  for (uint64_t i = (uint64_t)slice->dim + 1; i < info->rank; i++) inner *= info->shape[i];
  for (size_t i = 0; i < count; i++) {
    size_t place = i / inner % info->shape[slice->dim];
    if (place < slice->begin || place >= slice->end) continue;
    if (bits % 8 == 0)
      memcpy(out + at / 8, whole + i * bits / 8, bits / 8);
    else
      bits_copy(out, at, whole, i * bits, bits);
    at += bits;
  }
  LADE_EXPECT_EQ_UINT(at % 8, 0);
  return at / 8;
}

void group_expect_tensor(const ranks_one *one, const fixture *f, lade_safetensors *file, lade_tensor_load *load,
                         uint64_t tensor, uint64_t index) {
  lade_tensor_info info;
  lade_load_slice slice;
  void *memory = NULL;
  lade_tensor_info_init(&info);
  lade_load_slice_init(&slice);
  LADE_ASSERT_OK(lade_safetensors_tensor(file, tensor, &info));
  LADE_ASSERT_OK(lade_tensor_load_slice(load, index, &slice));
  LADE_ASSERT_OK(lade_tensor_load_address(load, index, &memory, NULL));
  unsigned char *whole = malloc(info.bytes + 1), *want = malloc(info.bytes + 1), *have = malloc(info.bytes + 1);
  int fd = open(lade_safetensors_file_path(file, info.file), O_RDONLY);
  LADE_EXPECT_EQ_INT(pread(fd, whole, info.bytes, (off_t)info.offset), (long)info.bytes);
  (void)close(fd);
  size_t bytes = info.bytes;
  memcpy(want, whole, bytes);
  if (slice.spread == LADE_SPREAD_SLICE)
    bytes = info.bytes == 0 ? 0 : slice_cut(&info, &slice, whole, want);
  else if (slice.spread != LADE_SPREAD_REPLICATE && slice.rank != one->rank)
    bytes = 0;
  LADE_EXPECT_EQ_UINT(slice.bytes, bytes);
  LADE_EXPECT_EQ_INT(memory == NULL, bytes == 0);
  if (bytes > 0 && memory != NULL) {
    fixture_device_read(f, 0, memory, have, bytes);
    if (memcmp(have, want, bytes) != 0) LADE_FAIL("rank %u: tensor \"%s\" differs", (unsigned)one->rank, info.name);
  }
  free(whole);
  free(want);
  free(have);
}
