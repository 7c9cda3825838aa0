/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a tar shard (first byte even), or as the members of one, with wrong bytes in their headers at times (odd):
 * indexed or refused with a reason, and then nothing of it stays; what is indexed lies within the file without overlap,
 * and of members without wrong bytes it is the very member. What is read with the end mark obeyed is read the same with
 * zeros ignored.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lade/loader.h"
#include "tests/fuzz/fuzz.h"

enum { BLOCK = 512, MEMBERS_MAX = 20, SIZE_MOST = 1500, TAR_MAX = (MEMBERS_MAX * 6 + 4) * BLOCK };

/* Of a header. */
enum { AT_NAME = 0, AT_SIZE = 124, AT_SUM = 148, AT_TYPE = 156, AT_MAGIC = 257, SUM_BYTES = 8 };

static const char *const names[] = {
    "a.jpg",     "a.cls",       "b.jpg", "b.cls", "d/a.jpg",  "d/a.cls", "a.JPG",  "a.txt",
    "a.jpg.txt", "__m__/a.jpg", "a",     ".jpg",  "\xe4.jpg", "d/",      "/a.cls", "",
};

/* Folders, links, extensions of names and headers, sparse files; most members are files. */
static const char types[] = {'\0', '5', '1', '2', 'L', 'x', 'g', 'S', 'K', '7'};

typedef struct member {
  const char *name;
  size_t bytes;
  bool plain; /* a file, without wrong bytes */
} member;

typedef struct shard {
  uint8_t bytes[TAR_MAX];
  size_t length;
  member members[MEMBERS_MAX];
  size_t count;
  bool renames; /* a member may bear another name than its own header says */
} shard;

static uint8_t letter_of(size_t number) { return (uint8_t)('A' + number); }

static void sum_set(uint8_t *header) {
  unsigned sum = 0;
  memset(header + AT_SUM, ' ', SUM_BYTES);
  for (size_t i = 0; i < BLOCK; i++) sum += header[i];
  snprintf((char *)header + AT_SUM, SUM_BYTES, "%06o", sum);
}

/* A header, and the member's bytes: its letter. */
static void member_write(shard *s, fuzz_reader *reader) {
  size_t number = s->count++;
  member *m = &s->members[number];
  uint8_t *header = s->bytes + s->length;
  unsigned kind = fuzz_byte(reader);
  char type = kind < sizeof types ? types[kind] : '0';
  m->name = names[fuzz_below(reader, sizeof names / sizeof names[0])];
  m->bytes = fuzz_size(reader, SIZE_MOST) - 1;
  unsigned wrong = fuzz_byte(reader); /* 0: before the sum is made; 1: after it */
  m->plain = wrong > 1 && (type == '0' || type == '\0');
  s->renames = s->renames || wrong == 0 || strchr("LKxg", type == '\0' ? '0' : type) != NULL;
  memset(header, 0, BLOCK);
  memcpy(header + AT_NAME, m->name, strlen(m->name));
  snprintf((char *)header + AT_SIZE, 12, "%011o", (unsigned)m->bytes);
  header[AT_TYPE] = (uint8_t)type;
  memcpy(header + AT_MAGIC, "ustar\00000", 8);
  if (wrong == 0) header[fuzz_size(reader, BLOCK) - 1] = fuzz_byte(reader);
  sum_set(header);
  if (wrong == 1) header[fuzz_size(reader, BLOCK) - 1] = fuzz_byte(reader);
  size_t room = (m->bytes + BLOCK - 1) / BLOCK * BLOCK;
  memset(header + BLOCK, 0, room);
  memset(header + BLOCK, letter_of(number), m->bytes);
  s->length += BLOCK + room;
}

/* The end of an archive that another one may follow. */
static void zeros_write(shard *s, size_t blocks) {
  memset(s->bytes + s->length, 0, blocks * BLOCK);
  s->length += blocks * BLOCK;
}

/* "a" and field 0 of "a.jpg". */
static bool name_is(const char *name, const char *key, uint64_t field) {
  size_t length = strlen(key);
  return strncmp(name, key, length) == 0 && name[length] == '.' &&
         strcasecmp(name + length + 1, field == 0 ? "jpg" : "cls") == 0;
}

static void range_check(const shard *s, const char *key, uint64_t field, const lade_range *range) {
  FUZZ_CHECK(range->file == 0 && range->offset % BLOCK == 0);
  FUZZ_CHECK(range->bytes <= s->length && range->offset <= s->length - range->bytes);
  if (s->count == 0 || range->bytes == 0) return; /* any file; nothing to see */
  size_t number = (size_t)(s->bytes[range->offset] - letter_of(0));
  FUZZ_CHECK(s->renames || number < s->count);
  if (number >= s->count || !s->members[number].plain) return;
  const member *m = &s->members[number];
  FUZZ_CHECK(range->bytes == m->bytes && s->bytes[range->offset + range->bytes - 1] == letter_of(number));
  FUZZ_CHECK(s->renames || name_is(m->name, key, field));
}

static void index_check(const shard *s, const lade_record_index *index) {
  lade_index_info info;
  lade_index_info_init(&info);
  if (lade_index_info_get(index, &info) != LADE_OK) fuzz_fail("%s", lade_last_error()->text);
  uint64_t fields = info.fields, end = 0;
  for (uint64_t record = 0; record < lade_index_count(index); record++) {
    const char *key = lade_index_key(index, record);
    uint64_t last = end;
    FUZZ_CHECK(key != NULL && key[0] != '\0');
    for (uint64_t field = 0; field < fields; field++) {
      lade_range range = {0, 0, 0};
      FUZZ_CHECK(lade_index_range(index, record, field, &range) == LADE_OK);
      FUZZ_CHECK(range.offset >= end); /* behind all records before */
      range_check(s, key, field, &range);
      if (range.offset + range.bytes > last) last = range.offset + range.bytes;
    }
    end = last;
  }
}

/* NULL: refused. */
static lade_record_index *path_index(const char *path, const char *fields, uint32_t ignore_zeros) {
  lade_tar_options options;
  lade_record_index *index = NULL;
  lade_tar_options_init(&options);
  options.ignore_zeros = ignore_zeros;
  if (lade_index_create(fields, &index) != LADE_OK) return NULL;
  if (lade_index_add_tar(index, path, &options) == LADE_OK) return index;
  FUZZ_CHECK(lade_index_count(index) == 0 && lade_last_error()->text[0] != '\0');
  lade_index_destroy(index);
  return NULL;
}

static void shard_index(const shard *s, const char *fields, int fd) {
  char path[64];
  if (write(fd, s->bytes, s->length) != (ssize_t)s->length) return;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  lade_record_index *strict = path_index(path, fields, 0), *all = path_index(path, fields, 1);
  if (strict != NULL) index_check(s, strict);
  if (all != NULL) index_check(s, all);
  FUZZ_CHECK(strict == NULL || (all != NULL && lade_index_count(all) == lade_index_count(strict)));
  lade_index_destroy(strict);
  lade_index_destroy(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static shard s;
  fuzz_reader reader = {data, data + size};
  s.length = s.count = 0;
  s.renames = false;
  uint8_t first = fuzz_byte(&reader);
  if (first % 2 == 0) {
    s.length = (size_t)(reader.end - reader.at) < sizeof s.bytes ? (size_t)(reader.end - reader.at) : sizeof s.bytes;
    memcpy(s.bytes, reader.at, s.length);
  } else {
    size_t marks = fuzz_below(&reader, 4);
    while (!fuzz_done(&reader) && s.count < MEMBERS_MAX) {
      member_write(&s, &reader);
      if (first / 4 % 4 == 1 && fuzz_below(&reader, 4) == 0) zeros_write(&s, fuzz_below(&reader, 3));
    }
    zeros_write(&s, marks);
  }
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0) return 0;
  shard_index(&s, first % 4 < 2 ? "jpg,cls" : "jpg", fd);
  close(fd);
  return 0;
}
