/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a safetensors file (first byte even), or as words of such a header (odd): opened or refused with a reason;
 * what is opened lies within the file, without gap or overlap, and is written and read again as the same. A header is
 * what it is by way of JSON alone, whether it is plain or not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loaders/header_parse.h"
#include "tests/fuzz/fuzz.h"

enum { TEXT_MAX = 8192, DATA_BYTES_MAX = 64 };

static const char *const words[] = {
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"a\":",
    "\"b\":",
    "\"\\u00e4\":",
    "\"__metadata__\":{\"format\":\"pt\"}",
    "\"__metadata__\":",
    "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
    "{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}",
    "{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,0]}",
    "{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[8,8]}",
    "{\"dtype\":",
    "\"F6_E3M2\"",
    "\"BF16\"",
    ",\"shape\":[",
    "],\"data_offsets\":[",
    "]}",
    "0",
    "1",
    "8",
    "16",
    "1152921504606846976",
    "9223372036854775807",
    "18446744073709551616",
    "-1",
    "1e3",
    "\"\xff\"",
    "\"x\"",
    " ",
    "null",
    "\n",
    "\t",
    "\r",
};

static void header_check(const ladei_loader_header *header, uint64_t data_bytes) {
  uint64_t at = 0;
  for (size_t i = 0; i < header->entry_count; i++) {
    const ladei_loader_entry *entry = &header->entries[i];
    uint64_t bytes;
    FUZZ_CHECK(entry->begin == at && entry->end >= entry->begin && entry->end <= data_bytes);
    FUZZ_CHECK(ladei_loader_tensor_bytes(entry->dtype, entry->shape, entry->rank, &bytes) == NULL);
    FUZZ_CHECK(bytes == entry->end - entry->begin);
    at = entry->end;
  }
  FUZZ_CHECK(at == data_bytes);
}

static void again_check(const ladei_loader_header *header, uint64_t data_bytes) {
  char *text;
  size_t bytes;
  ladei_loader_header again;
  if (ladei_loader_header_write(header->entries, header->entry_count, header->metadata, header->metadata_count, &text,
                                &bytes) != LADE_OK)
    return;
  lade_status status = ladei_loader_header_parse(text + 8, bytes - 8, data_bytes, &again);
  FUZZ_CHECK(status == LADE_OK && bytes % 8 == 0);
  if (status == LADE_OK) {
    FUZZ_CHECK(again.entry_count == header->entry_count && again.metadata_count == header->metadata_count);
    for (size_t i = 0; i < again.entry_count && i < header->entry_count; i++)
      FUZZ_CHECK(strcmp(again.entries[i].name, header->entries[i].name) == 0);
    ladei_loader_header_dispose(&again);
  }
  free(text);
}

static bool texts_equal(const char *a, const char *b) { return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0; }

static void headers_compare(const ladei_loader_header *a, const ladei_loader_header *b) {
  FUZZ_CHECK(a->entry_count == b->entry_count && a->metadata_count == b->metadata_count);
  FUZZ_CHECK(texts_equal(a->save_id, b->save_id));
  for (size_t i = 0; i < a->entry_count && i < b->entry_count; i++) {
    const ladei_loader_entry *left = &a->entries[i], *right = &b->entries[i];
    FUZZ_CHECK(strcmp(left->name, right->name) == 0 && left->dtype == right->dtype && left->rank == right->rank);
    FUZZ_CHECK(left->begin == right->begin && left->end == right->end);
    for (uint64_t j = 0; j < left->rank && left->rank == right->rank; j++)
      FUZZ_CHECK(left->shape[j] == right->shape[j]);
  }
  for (size_t i = 0; i < a->metadata_count && i < b->metadata_count; i++) {
    FUZZ_CHECK(strcmp(a->metadata[i].key, b->metadata[i].key) == 0);
    FUZZ_CHECK(strcmp(a->metadata[i].value, b->metadata[i].value) == 0);
  }
}

/* The header as it is read, and by way of JSON alone: the same, or refused with the same words. True: *out is it. */
static bool header_read_twice(const char *text, size_t length, uint64_t data_bytes, ladei_loader_header *out) {
  ladei_loader_header by_json;
  lade_status status = ladei_loader_header_parse(text, length, data_bytes, out);
  char *told = status != LADE_OK ? strdup(lade_last_error()->text) : NULL;
  lade_status status_by_json = ladei_loader_header_parse_json(text, length, data_bytes, &by_json);
  FUZZ_CHECK(status == status_by_json);
  if (status == LADE_OK && status_by_json == LADE_OK) headers_compare(out, &by_json);
  if (told != NULL) FUZZ_CHECK(strcmp(told, lade_last_error()->text) == 0);
  free(told);
  if (status_by_json == LADE_OK) ladei_loader_header_dispose(&by_json);
  return status == LADE_OK;
}

static void words_run(const uint8_t *data, size_t size) {
  static char text[TEXT_MAX];
  ladei_loader_header header;
  fuzz_reader reader = {data, data + size};
  uint64_t data_bytes = fuzz_below(&reader, DATA_BYTES_MAX);
  size_t length = (size_t)sprintf(text, "{");
  while (!fuzz_done(&reader) && length + 100 < TEXT_MAX)
    length += (size_t)sprintf(text + length, "%s", words[fuzz_below(&reader, sizeof words / sizeof words[0])]);
  if (header_read_twice(text, length, data_bytes, &header)) {
    header_check(&header, data_bytes);
    again_check(&header, data_bytes);
    ladei_loader_header_dispose(&header);
  }
}

static void tensors_check(const lade_safetensors *file, size_t size) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    lade_tensor_info info;
    uint64_t found = UINT64_MAX;
    lade_tensor_info_init(&info);
    FUZZ_CHECK(lade_safetensors_tensor(file, i, &info) == LADE_OK);
    FUZZ_CHECK(info.offset >= at && info.offset + info.bytes <= size);
    FUZZ_CHECK(lade_safetensors_find(file, info.name, &found) == LADE_OK && found == i);
    at = info.offset + info.bytes;
  }
}

static void file_run(const uint8_t *data, size_t size) {
  char path[64];
  lade_safetensors *file = NULL;
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd >= 0 && write(fd, data, size) == (ssize_t)size) {
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (lade_safetensors_open(path, &file) == LADE_OK) {
      tensors_check(file, size);
      lade_safetensors_close(file);
    } else {
      FUZZ_CHECK(file == NULL && lade_last_error()->text[0] != '\0');
    }
  }
  if (fd >= 0) close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 1)
    words_run(data + 1, size - 1);
  else
    file_run(data + 1, size - 1);
  return 0;
}
