/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as what follows the checksum of an index that is kept in a file: refused with a reason, and then nothing stays; or opened, and
 * then each record has a key, and ranges that lie within files of the index.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lade/loader.h"
#include "loaders/index.h"
#include "tests/fuzz/fuzz.h"

enum { MAGIC_BYTES = 16 };

static void index_check(const lade_record_index *index) {
  for (uint64_t record = 0; record < lade_index_count(index); record++) {
    const char *key = lade_index_key(index, record);
    FUZZ_CHECK(key == NULL || strlen(key) < index->key_length);
    for (uint64_t field = 0; field < index->field_count; field++) {
      lade_range range = {0, 0, 0};
      FUZZ_CHECK(lade_index_range(index, record, field, &range) == LADE_OK);
      FUZZ_CHECK(range.file < index->file_count && range.bytes <= index->files[range.file].bytes);
      FUZZ_CHECK(range.offset <= index->files[range.file].bytes - range.bytes);
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char head[MAGIC_BYTES + sizeof(uint64_t)] = "lade index 1", path[64];
  uint64_t sum = XXH3_64bits(data, size);
  memcpy(head + MAGIC_BYTES, &sum, sizeof sum);
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  lade_record_index *index = NULL;
  if (write(fd, head, sizeof head) == (ssize_t)sizeof head && write(fd, data, size) == (ssize_t)size) {
    lade_status status = lade_index_open(path, &index);
    if (status == LADE_OK)
      index_check(index);
    else
      FUZZ_CHECK(index == NULL && lade_last_error()->status == status && lade_last_error()->text[0] != '\0');
  }
  lade_index_destroy(index);
  close(fd);
  return 0;
}
