/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versioned structs: the first member is always `size_t struct_size`, set by the caller's inline initialiser. It tells
 * which header version the program was compiled with.
 */
#include "base/options.h"

#include <string.h>

#include "base/error.h"
#include "base/size.h"

static size_t struct_size_of(const void *caller) {
  size_t bytes;
  memcpy(&bytes, caller, sizeof bytes);
  return bytes;
}

lade_status ladei_options_read(const char *what, const void *caller, void *own, size_t own_bytes) {
  memset(own, 0, own_bytes);
  if (caller != NULL) {
    size_t bytes = struct_size_of(caller);
    if (bytes < sizeof(size_t))
      return ladei_error_argument(what, "struct_size", "what the _init function sets", "%zu", bytes);
    const unsigned char *tail = caller;
    for (size_t i = own_bytes; i < bytes; i++) {
      if (tail[i] != 0) {
        return ladei_error(LADE_ERR_UNSUPPORTED, 0,
                           "%s: byte %zu is set, but this library knows %zu bytes: the program is newer", what, i,
                           own_bytes);
      }
    }
    memcpy(own, caller, ladei_size_min(bytes, own_bytes));
  }
  memcpy(own, &own_bytes, sizeof own_bytes);
  return LADE_OK;
}

lade_status ladei_options_reserved(const char *call, const char *field, int64_t value) {
  return value == 0 ? LADE_OK : ladei_error_argument(call, field, "0", "%lld", (long long)value);
}

lade_status ladei_stats_write(const char *what, const void *own, size_t own_bytes, void *caller) {
  if (caller == NULL) return ladei_error_null(what, "the struct");
  size_t bytes = struct_size_of(caller);
  if (bytes < sizeof(size_t))
    return ladei_error_argument(what, "struct_size", "what the _init function sets", "%zu", bytes);
  memcpy(caller, own, ladei_size_min(bytes, own_bytes));
  memcpy(caller, &bytes, sizeof bytes);
  return LADE_OK;
}
