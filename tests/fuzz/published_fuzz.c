/* SPDX-License-Identifier: Apache-2.0 */
/* Published counters as a reader finds them: a page that is right, with bytes of it changed, and cut to any length. */
#include <stdlib.h>
#include <string.h>

#include "inspect/live/published.h"
#include "tests/fuzz/fuzz.h"

enum { KEYS = 3, PROCESS = 4711 };

typedef struct page {
  ladei_published_header header;
  ladei_published_part parts[2];
  uint32_t keys[KEYS + 1];
  char texts[40];
  int64_t values[KEYS];
} page;

static void page_make(page *p) {
  memset(p, 0, sizeof *p);
  ladei_published_header *h = &p->header;
  memcpy(h->magic, "LADEPUB\n", 8);
  h->version = LADEI_PUBLISHED_VERSION;
  h->header_bytes = sizeof *h;
  h->bytes = sizeof *p;
  h->process_id = PROCESS;
  h->part_count = 2;
  h->value_count = KEYS;
  h->parts_at = offsetof(page, parts);
  h->keys_at = offsetof(page, keys);
  h->texts_at = offsetof(page, texts);
  h->texts_bytes = sizeof p->texts;
  h->values_at = offsetof(page, values);
  memcpy(p->texts, "one\0two\0active_bytes\0hits\0misses", 33);
  p->parts[0] = (ladei_published_part){.kind = LADE_PART_DEVICE, .name = 0, .value_count = 1};
  p->parts[1] =
      (ladei_published_part){.kind = LADE_PART_PINNED, .device = -1, .name = 4, .first_value = 1, .value_count = 2};
  p->keys[0] = 8;
  p->keys[1] = 21;
  p->keys[2] = 26;
  for (int i = 0; i < KEYS; i++) p->values[i] = i * 1000;
}

/* Its writer stopped in the middle: that is waited for, and tested elsewhere. */
static bool is_sequence(size_t at) {
  size_t begin = offsetof(ladei_published_header, sequence);
  return at >= begin && at < begin + sizeof(uint64_t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_reader reader = {data, data + size};
  page whole;
  page_make(&whole);
  size_t bytes = fuzz_byte(&reader) % 4 != 0 ? sizeof whole : fuzz_size(&reader, sizeof whole);
  while (!fuzz_done(&reader)) {
    size_t at = fuzz_size(&reader, sizeof whole) - 1;
    uint8_t value = fuzz_byte(&reader);
    if (!is_sequence(at)) ((unsigned char *)&whole)[at] = value;
  }
  char *exact = malloc(bytes); /* so that a read behind it is seen */
  if (exact == NULL) return 0;
  memcpy(exact, &whole, bytes);
  lade_snapshot *snapshot = NULL;
  ladei_published_about about;
  lade_status status = ladei_published_copy(exact, bytes, PROCESS, &about, &snapshot);
  FUZZ_CHECK((status == LADE_OK) == (snapshot != NULL));
  if (snapshot != NULL) FUZZ_CHECK(memchr(about.control, '\0', sizeof about.control) != NULL);
  if (snapshot != NULL) FUZZ_CHECK(snapshot->counters.count <= whole.header.value_count * snapshot->parts.count);
  lade_snapshot_destroy(snapshot);
  free(exact);
  return 0;
}
