/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that grow. */
#ifndef LADE_BASE_ARRAY_H
#define LADE_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>

/* Makes room for `count` elements in an array that free() ends; NULL with a room of 0 is one. `room`, a size_t, says how many fit,
 * and at least doubles when it changes. False: no memory, and nothing changed. `count` is read twice. */
#define LADEI_ARRAY_ROOM(array, room, count)                                                                           \
  ((count) <= (room) || ladei_array_grow(&(array), &(room), (count), sizeof *(array)))

/* `array` is the address of the pointer to the elements. */
bool ladei_array_grow(void *array, size_t *room, size_t count, size_t element_bytes);

#endif /* LADE_BASE_ARRAY_H */
