/* SPDX-License-Identifier: Apache-2.0 */
/* Size rules; see size_rules.h. */
#include "device/heap/size_rules.h"

static size_t round_up(size_t size, size_t step) {
  size_t rest = size % step;
  return rest == 0 ? size : size + (step - rest);
}

size_t ladei_device_round_to_division(size_t size, uint64_t divisions) {
  if (ladei_is_power_of_two(size)) return size;
  /* A number of divisions that is no power of two acts like the next lower one. */
  size_t power = (size_t)1 << ladei_log2_floor(size);
  size_t step = power >> ladei_log2_floor(divisions);
  return step == 0 ? 2 * power : round_up(size, step);
}

/* The table holds one entry per power of two from 1 MiB up; the first and last also serve what is beyond. */
static uint64_t divisions_for(const ladei_device_settings *settings, size_t size) {
  unsigned log = ladei_log2_floor(size);
  unsigned entry = log < 20 ? 0 : log - 20;
  return settings->divisions[entry < LADEI_DEVICE_DIVISION_ENTRIES ? entry : LADEI_DEVICE_DIVISION_ENTRIES - 1];
}

size_t ladei_device_round_request(const ladei_device_settings *settings, size_t requested) {
  if (requested <= LADEI_DEVICE_BLOCK_QUANTUM) return LADEI_DEVICE_BLOCK_QUANTUM;
  uint64_t divisions = divisions_for(settings, requested);
  size_t gate;
  if (divisions > 1 && ladei_size_mul(divisions, LADEI_DEVICE_BLOCK_QUANTUM, &gate) && requested > gate)
    return ladei_device_round_to_division(requested, divisions);
  return round_up(requested, LADEI_DEVICE_BLOCK_QUANTUM);
}

size_t ladei_device_heap_segment_bytes(const ladei_device_settings *settings, size_t rounded) {
  if (rounded <= LADEI_DEVICE_SMALL_MAX) return LADEI_DEVICE_SMALL_SEGMENT;
  if (rounded < LADEI_DEVICE_OWN_SEGMENT_MIN) return settings->large_segment_bytes;
  return round_up(rounded, LADEI_DEVICE_OWN_SEGMENT_ROUND);
}
