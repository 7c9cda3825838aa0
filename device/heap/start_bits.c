/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start bits; model in start_bits.h.
 *
 * I1  A bit of level n + 1 is set exactly when the word of level n that it summarises is not zero.
 * I2  The topmost level is one word.
 */
#include "device/heap/start_bits.h"

#include <assert.h>
#include <stdlib.h>

#include "base/size.h"

bool ladei_device_start_bits_create(ladei_device_start_bits *bits, size_t granules) {
  size_t total = 0;
  size_t width = granules;
  unsigned levels = 0;
  do {
    if (levels == LADEI_DEVICE_START_LEVELS) return false;
    width = width / 64 + (width % 64 != 0);
    bits->offset[levels++] = total;
    total += width;
  } while (width > 1);
  bits->levels = levels;
  bits->words = calloc(total, sizeof *bits->words);
  return bits->words != NULL;
}

void ladei_device_start_bits_destroy(ladei_device_start_bits *bits) {
  free(bits->words);
  bits->words = NULL;
}

static uint64_t *word_of(const ladei_device_start_bits *bits, unsigned level, size_t bit) {
  return &bits->words[bits->offset[level] + bit / 64];
}

static uint64_t mask_of(size_t bit) { return UINT64_C(1) << (bit % 64); }

bool ladei_device_start_bits_get(const ladei_device_start_bits *bits, size_t granule) {
  return (*word_of(bits, 0, granule) & mask_of(granule)) != 0;
}

size_t ladei_device_start_bits_at_most(const ladei_device_start_bits *bits, size_t granule) {
  /* Up until a word has a set bit at or below the position, then down along the highest bits. */
  uint64_t found = *word_of(bits, 0, granule) & (mask_of(granule) | (mask_of(granule) - 1));
  size_t position = granule / 64;
  unsigned level = 0;
  while (found == 0) {
    level++;
    assert(level < bits->levels);
    found = *word_of(bits, level, position) & (mask_of(position) - 1);
    position /= 64;
  }
  for (;;) {
    position = position * 64 + ladei_log2_floor(found);
    if (level == 0) return position;
    level--;
    found = bits->words[bits->offset[level] + position];
  }
}
