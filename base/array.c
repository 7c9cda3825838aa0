/* SPDX-License-Identifier: Apache-2.0 */
#include "base/array.h"

#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { ROOM_LEAST = 16 };

bool ladei_array_grow(void *array, size_t *room, size_t count, size_t element_bytes) {
  size_t larger = ladei_size_max(ladei_size_max(count, ROOM_LEAST), *room > SIZE_MAX / 2 ? SIZE_MAX : 2 * *room), bytes;
  void *elements;
  memcpy(&elements, array, sizeof elements);
  elements = ladei_size_mul(larger, element_bytes, &bytes) ? realloc(elements, bytes) : NULL;
  if (elements == NULL) return false;
  memcpy(array, &elements, sizeof elements);
  *room = larger;
  return true;
}
