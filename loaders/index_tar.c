/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexes of tar shards. libarchive reads the headers, with every dialect of tar; the members' bytes are skipped.
 *
 *   a/1.jpg  a/1.cls  a/2.jpg  a/2.cls ...       records: a/1 {jpg, cls}, a/2 {jpg, cls}, ...
 *
 *   | member | member | ... | zeros to the end of the file |                    an archive
 *   | member | ... | zeros | member | ... | zeros to the end |                  two, with options.ignore_zeros
 *
 * A member's bytes begin at libarchive's position when it has read the header, since no filter lies between it and the
 * file. The next one begins at its position when it has skipped the bytes; if that is not right after them, they do not
 * lie together.
 *
 * Note [End marks]
 *   libarchive stops at the first block of zeros, or where the file just ends, and looks no further: a header that was
 *   wiped and a second archive would end the shard silently, as they do for GNU tar and tarfile. So the bytes at and
 *   after that place are checked here. After zeros that are to be passed a new reader begins: a second archive is
 *   independent of the first.
 *
 * Note [Global headers]
 *   A global header of the pax dialect ('g') applies to all members after it. libarchive passes it; GNU tar and tarfile
 *   obey. Comments and times do not matter here; names of members and their lengths do: such an archive is refused. So
 *   are headers without "ustar" in them, and sizes in any notation: GNU tar and tarfile obey those, too.
 *
 * I1  The record in work has a range for each bit of `seen`.
 * I2  Each byte of the file is in a member, in its header or padding, or is zero. (libarchive checks headers.)
 * Locks: none.
 */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "base/size.h"
#include "loaders/index.h"
#include "loaders/tar_input.h"
#include "loaders/text.h"
#include "sources/url.h"

enum { TAR_BLOCK = 512, ZEROS_BYTES = 16 * 1024, GLOBAL_MOST = 16 * 1024 };
enum { AT_SIZE = 124, SIZE_BYTES = 12, AT_TYPE = 156 }; /* in a header */

/* Why a member whose name ends as a field's does is in no record. */
enum { LEFT_OUT_DOTTED, LEFT_OUT_PRIVATE, LEFT_OUT_TYPE, LEFT_OUT_KINDS };

typedef struct left_out {
  uint64_t count;
  char first[160]; /* its name, or as much as there is room for */
} left_out;

typedef struct tar_shard {
  lade_record_index *index;
  lade_tar_options options;
  ladei_libarchive lib;
  struct archive *archive;
  const char *path;
  ladei_loader_tar_input *input;
  uint64_t file;
  uint64_t base;        /* where libarchive began to read */
  uint64_t next_header; /* where it must begin */
  uint64_t member_at;   /* where the header of the member in work begins */
  char *key;            /* of the record in work; NULL: none */
  uint64_t seen;        /* its fields, by bit */
  lade_range fields[LADEI_LOADER_INDEX_MAX_FIELDS];
  left_out left_out[LEFT_OUT_KINDS];
} tar_shard;

static lade_status member_error(const tar_shard *s, const char *member, const char *what) {
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: byte %llu: %.160s: %s", ladei_loader_path_text(s->path),
                     (unsigned long long)s->member_at, member, what);
}

static lade_status place_error(const tar_shard *s, uint64_t at, const char *what) {
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: byte %llu: %s", ladei_loader_path_text(s->path), (unsigned long long)at,
                     what);
}

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "index: no memory"); }

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Puts the record in work into the index; one without any of the fields is none. */
static lade_status record_end(tar_shard *s) {
  lade_status status = LADE_OK;
  if (s->key == NULL || s->seen == 0) {
    free(s->key);
    s->key = NULL;
    return LADE_OK;
  }
  for (size_t i = 0; i < s->index->field_count && status == LADE_OK; i++) {
    if ((s->seen >> i & 1) == 0) {
      size_t name = 0;
      while (s->index->field_of[name] != i) name++;
      status = ladei_error(LADE_ERR_FORMAT, 0, "%s: byte %llu: record %.160s ends here and lacks the field \"%.80s\"",
                           ladei_loader_path_text(s->path), (unsigned long long)s->member_at, s->key,
                           s->index->alternatives[name]);
    }
  }
  assert(status != LADE_OK || s->seen >> (s->index->field_count - 1) == 1); /* I1: all fields, and no other */
  if (status == LADE_OK) status = lade_index_add(s->index, s->key, s->fields);
  free(s->key);
  s->key = NULL;
  return status;
}

/* Goes on with the record of this key: the one in work, or a new one. */
static lade_status record_continue(tar_shard *s, const char *member, size_t key_length) {
  if (s->key != NULL && strlen(s->key) == key_length && memcmp(s->key, member, key_length) == 0) return LADE_OK;
  LADEI_TRY(record_end(s));
  s->key = strndup(member, key_length);
  s->seen = 0;
  return s->key != NULL ? LADE_OK : memory_error();
}

/* Whether a component of the path is like "__meta__". */
static bool path_is_private(const char *path) {
  for (const char *at = path; *at != '\0';) {
    size_t length = strcspn(at, "/");
    if (length >= 4 && strncmp(at, "__", 2) == 0 && strncmp(at + length - 2, "__", 2) == 0) return true;
    at += length + (at[length] == '/');
  }
  return false;
}

/* Whether the name is the extension in lower case. */
static bool is_lower_case_of(const char *name, const char *extension) {
  while (*name != '\0' && *name == tolower((unsigned char)*extension)) name++, extension++;
  return *name == '\0' && *extension == '\0';
}

/* The number of the field that an extension names; field_count: none. */
static size_t field_find(const tar_shard *s, const char *extension) {
  const lade_record_index *index = s->index;
  for (size_t i = 0; i < index->alternative_count; i++)
    if (is_lower_case_of(index->alternatives[i], extension)) return index->field_of[i];
  return index->field_count;
}

/* Counts a member that is left out, if a field follows one of the dots from `dot` on. */
static void leave_out(tar_shard *s, int kind, const char *member, const char *dot) {
  left_out *of = &s->left_out[kind];
  while (dot != NULL && field_find(s, dot + 1) == s->index->field_count) dot = strchr(dot + 1, '.');
  if (dot != NULL && of->count++ == 0) (void)snprintf(of->first, sizeof of->first, "%s", member);
}

/* `scattered`: why the member's bytes do not lie together in the archive, or NULL. */
static lade_status field_add(tar_shard *s, const char *member, const char *dot, const lade_range *range,
                             const char *scattered) {
  size_t field = field_find(s, dot + 1);
  if (field == s->index->field_count) {
    leave_out(s, LEFT_OUT_DOTTED, member, dot);
    return LADE_OK;
  }
  if (scattered != NULL) return member_error(s, member, scattered);
  if (s->seen >> field & 1) return member_error(s, member, "its record has that field already");
  s->fields[field] = *range;
  s->seen |= UINT64_C(1) << field;
  return LADE_OK;
}

/* The dot before a member's extension; NULL where it has none. */
static const char *extension_dot(const char *member) {
  const char *slash = strrchr(member, '/'), *base = slash != NULL ? slash + 1 : member;
  const char *dot = strchr(base, '.');
  return dot != base ? dot : NULL;
}

static lade_status file_add(tar_shard *s, const char *member, const lade_range *range, const char *scattered) {
  const char *dot = extension_dot(member);
  if (dot == NULL) return LADE_OK;
  if (path_is_private(member)) {
    leave_out(s, LEFT_OUT_PRIVATE, member, dot);
    return LADE_OK;
  }
  lade_status status = record_continue(s, member, (size_t)(dot - member));
  return status == LADE_OK ? field_add(s, member, dot, range, scattered) : status;
}

/* --- bytes and headers -------------------------------------------------------------------------------------------- */

/* Reads up to `bytes` at `at`; the number read, -1 on an error. */
static ssize_t bytes_read(const tar_shard *s, uint64_t at, void *out, size_t bytes) {
  return ladei_loader_tar_input_read(s->input, at, out, bytes);
}

/* After a failed read near `at`. Errors of objects name them. */
static lade_status read_error(const tar_shard *s, uint64_t at) {
  ladei_error_restore(&s->input->error);
  if (s->input->remote != NULL) return s->input->error.status;
  return ladei_error_prefix(s->input->error.status, "%s: byte %llu: ", ladei_loader_path_text(s->path),
                            (unsigned long long)at);
}

/* Bytes that follow a header, in whole blocks. A size is octal digits, with blanks around them, or, after a byte 0x80,
 * a number of eleven bytes (base 256). */
static lade_status header_padded_bytes(const tar_shard *s, uint64_t at, const char header[TAR_BLOCK], uint64_t *out) {
  const unsigned char *field = (const unsigned char *)header + AT_SIZE;
  char digits[SIZE_BYTES + 1] = {0};
  size_t padded;
  bool good = field[0] <= 0x80;
  uint64_t bytes = 0;
  for (size_t i = 1; i < SIZE_BYTES && field[0] == 0x80 && good; i++) {
    good = bytes >> 56 == 0;
    bytes = bytes << 8 | field[i];
  }
  if (field[0] < 0x80) bytes = strtoull(memcpy(digits, field, SIZE_BYTES), NULL, 8);
  if (!good || strchr(digits, '-') != NULL || !ladei_size_round_up(bytes, TAR_BLOCK, &padded))
    return place_error(s, at, "a header whose size is none");
  *out = padded;
  return LADE_OK;
}

/* --- global headers: Note [Global headers] ------------------------------------------------------------------------ */

/* Keys that a global header must not set for all members: those of a member's bytes or name. */
static bool key_is_of_members(const char *key, size_t length) {
  static const char *const keys[] = {"path", "size", "linkpath"};
  bool found = length >= 11 && memcmp(key, "GNU.sparse.", 11) == 0;
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
    found = found || (strlen(keys[i]) == length && memcmp(key, keys[i], length) == 0);
  return found;
}

/* Records "LENGTH KEY=VALUE\n", the length that of the whole, up to zeros; `text` ends with a zero. */
static lade_status global_records_check(const tar_shard *s, uint64_t at, const char *text, size_t bytes) {
  while (bytes > 0 && text[0] != '\0') {
    char *key;
    uint64_t length = strtoull(text, &key, 10);
    const char *equals = key[0] == ' ' ? strchr(key, '=') : NULL;
    if (equals == NULL || length > bytes || (uint64_t)(equals - text) >= length)
      return place_error(s, at, "a global header that cannot be read");
    if (key_is_of_members(key + 1, (size_t)(equals - key) - 1)) {
      return ladei_error(LADE_ERR_FORMAT, 0,
                         "%s: byte %llu: a global header gives all members behind it one \"%.*s\": write it without",
                         ladei_loader_path_text(s->path), (unsigned long long)at, (int)(equals - key) - 1, key + 1);
    }
    text += length;
    bytes -= length;
  }
  return LADE_OK;
}

static lade_status global_check(const tar_shard *s, uint64_t at, uint64_t padded_bytes) {
  char text[GLOBAL_MOST + 1] = {0};
  if (padded_bytes > GLOBAL_MOST) return place_error(s, at, "a global header of more than 16 KiB");
  ssize_t count = bytes_read(s, at + TAR_BLOCK, text, padded_bytes);
  return count < 0 ? read_error(s, at) : global_records_check(s, at, text, (size_t)count);
}

/* Those before the header of the member in work, whose bytes begin at `end`. */
static lade_status globals_check(const tar_shard *s, uint64_t end) {
  lade_status status = LADE_OK;
  for (uint64_t at = s->member_at; at + TAR_BLOCK < end && status == LADE_OK;) {
    char header[TAR_BLOCK];
    ssize_t count = bytes_read(s, at, header, sizeof header);
    if (count < TAR_BLOCK) return count < 0 ? read_error(s, at) : LADE_OK; /* cut off, as the member's size tells */
    uint64_t padded = 0;
    status = header_padded_bytes(s, at, header, &padded);
    if (status == LADE_OK && header[AT_TYPE] == 'g') status = global_check(s, at, padded);
    at += TAR_BLOCK + padded;
  }
  return status;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

/* libarchive's position. */
static uint64_t place_now(const tar_shard *s) { return s->base + (uint64_t)s->lib.filter_bytes(s->archive, 0); }

static const char *entry_name(const tar_shard *s, struct archive_entry *entry) {
  const char *member = s->lib.entry_pathname(entry);
  return member != NULL ? member : s->lib.entry_pathname_utf8(entry); /* the program's locale may lack its letters */
}

/* Folders and devices; a type that no system has is a file to come. */
static bool entry_is_other(const tar_shard *s, struct archive_entry *entry) {
  switch (s->lib.entry_filetype(entry)) {
  case AE_IFDIR:
  case AE_IFCHR:
  case AE_IFBLK:
  case AE_IFIFO:
  case AE_IFSOCK: return true;
  default: return false;
  }
}

/* Why the member's bytes are not `bytes` side by side, with the next header right after them; NULL: they are. */
static const char *entry_scattered(const tar_shard *s, struct archive_entry *entry, bool followed) {
  if (s->lib.entry_hardlink(entry) != NULL || s->lib.entry_symlink(entry) != NULL)
    return "it is a link: its bytes are not here (write it with --dereference --hard-dereference)";
  if (s->lib.entry_filetype(entry) != AE_IFREG) return "it is no whole file: a part of one in several volumes?";
  return s->lib.entry_sparse_count(entry) != 0 || !followed
             ? "it is sparse: its bytes do not lie together (write it without --sparse)"
             : NULL;
}

static lade_status entry_add(tar_shard *s, struct archive_entry *entry) {
  const char *member = entry_name(s, entry);
  size_t end = 0;
  s->member_at = s->base + (uint64_t)s->lib.read_header_position(s->archive);
  if (member == NULL) return member_error(s, "a member", "its name cannot be read");
  if (s->member_at != s->next_header)
    return member_error(s, member, "it does not begin where the member before it ends");
  const lade_range range = {s->file, place_now(s), (uint64_t)s->lib.entry_size(entry)};
  const uint64_t file_bytes = s->index->files[s->file].bytes;
  int skipped = s->lib.read_data_skip(s->archive);
  s->next_header = place_now(s);
  bool fits = ladei_size_add(range.offset, range.bytes, &end) && ladei_size_round_up(end, TAR_BLOCK, &end);
  const char *scattered = entry_scattered(s, entry, fits && s->next_header == end);
  bool beyond = scattered == NULL && (range.bytes > file_bytes || range.offset > file_bytes - range.bytes);
  if (skipped != ARCHIVE_OK || s->next_header > file_bytes || beyond)
    return member_error(s, member, "it goes beyond the end of the archive: cut off?");
  lade_status status = globals_check(s, range.offset);
  if (status != LADE_OK || !entry_is_other(s, entry))
    return status == LADE_OK ? file_add(s, member, &range, scattered) : status;
  if (s->lib.entry_filetype(entry) != AE_IFDIR) leave_out(s, LEFT_OUT_TYPE, member, extension_dot(member));
  return LADE_OK;
}

/* --- archives ----------------------------------------------------------------------------------------------------- */

/* Bytes that a compressed file begins with. */
static const struct {
  const char *bytes;
  size_t count;
  const char *name, *program;
} compressions[] = {
    {"\x1f\x8b", 2, "gzip", "gzip -d"},
    {"BZh", 3, "bzip2", "bzip2 -d"},
    {"\xfd\x37zXZ\0", 6, "xz", "xz -d"},
    {"\x28\xb5\x2f\xfd", 4, "zstd", "zstd -d"},
    {"\x04\x22\x4d\x18", 4, "lz4", "lz4 -d"},
    {"\x02\x21\x4c\x18", 4, "lz4", "lz4 -d"},
    {"\x5d\0\0", 3, "lzma", "xz -d"},
    {"LZIP", 4, "lzip", "lzip -d"},
    {"\x1f\x9d", 2, "compress", "gzip -d"},
    {"PK\x03\x04", 4, "zip", "unzip, then tar"},
    {"7z\xbc\xaf\x27\x1c", 6, "7-Zip", "7z, then tar"},
};

/* At a place where libarchive found no header. */
static lade_status header_error(const tar_shard *s, const char *reason) {
  char begin[8] = {0};
  ssize_t count = bytes_read(s, s->next_header, begin, sizeof begin);
  for (size_t i = 0; i < sizeof compressions / sizeof compressions[0] && s->next_header == 0; i++) {
    if (count >= (ssize_t)compressions[i].count && memcmp(begin, compressions[i].bytes, compressions[i].count) == 0) {
      return ladei_error(
          LADE_ERR_FORMAT, 0,
          "%s: byte 0: it is compressed (%s), and members are read where they lie: decompress it first (%s)",
          ladei_loader_path_text(s->path), compressions[i].name, compressions[i].program);
    }
  }
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: byte %llu: no header of a member, nor an end mark: %s",
                     ladei_loader_path_text(s->path), (unsigned long long)s->next_header,
                     reason != NULL ? reason : "no tar archive");
}

static lade_status archive_failed(const tar_shard *s) {
  const char *reason = s->lib.error_string(s->archive);
  if (s->input->error.status != LADE_OK) return read_error(s, s->next_header);
  if (reason != NULL && strncmp(reason, "Error reading", 13) == 0) { /* libarchive's words for a failed read() */
    int code = s->lib.error_number(s->archive);
    return ladei_error(LADE_ERR_IO, code, "%s: byte %llu: cannot read: %s", ladei_loader_path_text(s->path),
                       (unsigned long long)s->next_header, strerror(code));
  }
  return header_error(s, reason);
}

/* A warning about letters or rights leaves name, size and place sure. About anything else it means damage. */
static lade_status warning_check(const tar_shard *s) {
  static const char *const harmless[] = {"can't be converted", "ACL", "acl", "xattr"};
  const char *reason = s->lib.error_string(s->archive);
  for (size_t i = 0; i < sizeof harmless / sizeof harmless[0] && reason != NULL; i++)
    if (strstr(reason, harmless[i]) != NULL) return LADE_OK;
  return header_error(s, reason);
}

/* Members until libarchive sees no more. */
static lade_status members_read(tar_shard *s) {
  for (;;) {
    struct archive_entry *entry;
    int result = s->lib.read_next_header(s->archive, &entry);
    if (result == ARCHIVE_EOF) return LADE_OK;
    LADEI_TRY(result == ARCHIVE_OK ? LADE_OK : result == ARCHIVE_WARN ? warning_check(s) : archive_failed(s));
    LADEI_TRY(entry_add(s, entry));
  }
}

/* One archive from next_header on, with a reader of its own. */
static lade_status archive_read(tar_shard *s) {
  s->base = s->next_header;
  s->archive = s->lib.read_new();
  if (s->archive == NULL) return memory_error();
  bool opened = s->lib.read_support_format_tar(s->archive) == ARCHIVE_OK &&
                ladei_loader_tar_input_open(s->input, &s->lib, s->archive, s->base) == ARCHIVE_OK;
  lade_status status = opened ? members_read(s) : archive_failed(s);
  s->lib.read_free(s->archive);
  s->archive = NULL;
  return status;
}

/* --- ends: Note [End marks] --------------------------------------------------------------------------------------- */

/* Finds the first byte from `at` on that is not zero; the end of the file if there is none. */
static lade_status zeros_pass(const tar_shard *s, uint64_t at, uint64_t *out) {
  unsigned char bytes[ZEROS_BYTES];
  for (;;) {
    ssize_t count = bytes_read(s, at, bytes, sizeof bytes);
    if (count < 0) return read_error(s, at);
    size_t i = 0;
    while (i < (size_t)count && bytes[i] == 0) i++;
    *out = at + i;
    if (i < (size_t)count || count < (ssize_t)sizeof bytes) return LADE_OK;
    at += i;
  }
}

/* A global header of the pax dialect with no member after it, as git writes of nothing: libarchive passes it. With
 * another archive after it, it applies to that one's members. */
static lade_status global_headers_pass(tar_shard *s) {
  for (;;) {
    char header[TAR_BLOCK];
    uint64_t padded;
    ssize_t count = bytes_read(s, s->next_header, header, sizeof header);
    if (count < 0) return read_error(s, s->next_header);
    if (count < TAR_BLOCK || header[AT_TYPE] != 'g') return LADE_OK;
    LADEI_TRY(header_padded_bytes(s, s->next_header, header, &padded));
    LADEI_TRY(global_check(s, s->next_header, padded));
    s->next_header += TAR_BLOCK + padded;
  }
}

/* libarchive saw the end at next_header. `*out_over` false: another archive begins at next_header now. */
static lade_status end_check(tar_shard *s, bool *out_over) {
  uint64_t content = 0, file_bytes = s->index->files[s->file].bytes;
  LADEI_TRY(global_headers_pass(s));
  LADEI_TRY(zeros_pass(s, s->next_header, &content));
  if (content < s->next_header + TAR_BLOCK) {
    return place_error(s, s->next_header,
                       content < file_bytes ? "no header of a member, nor an end mark"
                                            : "it ends without an end mark: cut off?");
  }
  *out_over = content == file_bytes;
  if (!*out_over && !s->options.ignore_zeros) {
    return ladei_error(LADE_ERR_FORMAT, 0,
                       "%s: byte %llu: not zero, behind the end mark at byte %llu: is that a header that was wiped? Of "
                       "archives one behind the other ignore_zeros reads all",
                       ladei_loader_path_text(s->path), (unsigned long long)content,
                       (unsigned long long)s->next_header);
  }
  s->next_header = content - content % TAR_BLOCK;
  return LADE_OK;
}

static lade_status archives_read(tar_shard *s, ladei_loader_tar_input *input) {
  bool over = false;
  lade_status status = LADE_OK;
  s->input = input;
  while (status == LADE_OK && !over) {
    status = archive_read(s);
    if (status == LADE_OK) status = end_check(s, &over);
  }
  s->member_at = s->next_header;
  if (status == LADE_OK) status = record_end(s);
  free(s->key);
  ladei_loader_tar_input_dispose(input);
  return status;
}

static lade_status shard_read(tar_shard *s) {
  const ladei_loader_index_file *file = &s->index->files[s->file];
  ladei_loader_tar_input input = {.fd = file->fd};
  if (file->fd >= 0) return archives_read(s, &input);
  LADEI_TRY(ladei_pipe_file_reopen(file->path, &file->identity, &input.fd));
  lade_status status = archives_read(s, &input);
  close(input.fd);
  return status;
}

static bool name_is_found(const char *name) {
  while (*name != '\0' && *name != '/' && !(*name >= 'A' && *name <= 'Z')) name++;
  return *name == '\0';
}

/* Extensions are compared in lower case, and are of the last component. A field without such a name would never be
 * found: records would lack it, or be left out. */
static lade_status names_check(const lade_record_index *index) {
  uint64_t found = 0; /* bit i: field i can be */
  for (size_t i = 0; i < index->alternative_count; i++)
    if (name_is_found(index->alternatives[i])) found |= UINT64_C(1) << index->field_of[i];
  for (size_t i = 0; i < index->alternative_count; i++)
    if (!(found >> index->field_of[i] & 1))
      return ladei_error_argument("lade_index_add_tar", "a field of the index",
                                  "a name in lower case and without '/', for tar shards", "\"%s\"",
                                  ladei_loader_path_text(index->alternatives[i]));
  return LADE_OK;
}

static lade_status options_check(const lade_record_index *index, const lade_tar_options *options) {
  if (index == NULL) return ladei_error_null("lade_index_add_tar", "index");
  if (index->alternative_count == 0)
    return ladei_error_argument("lade_index_add_tar", "index", "an index with named fields", "one without");
  LADEI_TRY(names_check(index));
  if (options->ignore_zeros > 1)
    return ladei_error_argument("lade_index_add_tar", "options.ignore_zeros", "0 or 1", "%u", options->ignore_zeros);
  return ladei_options_reserved("lade_index_add_tar", "options.reserved", options->reserved);
}

/* Adds a shard's left-out members to the index's counts, and names the first of each kind. */
static void left_out_tell(tar_shard *s) {
  lade_index_info *sums = &s->index->info;
  const struct {
    uint64_t *sum;
    const char *why;
  } kinds[LEFT_OUT_KINDS] = {
      [LEFT_OUT_DOTTED] = {&sums->dotted,
                           "what follows the first dot of its name is no field, what follows a later one is"},
      [LEFT_OUT_PRIVATE] = {&sums->private_folders, "it is in a folder named __x__"},
      [LEFT_OUT_TYPE] = {&sums->other_types, "it is no file"}};
  for (int kind = 0; kind < LEFT_OUT_KINDS; kind++) {
    const left_out *of = &s->left_out[kind];
    if (of->count > 0 && *kinds[kind].sum == 0)
      ladei_log(LADE_LOG_WARN, "index: %s: %s is left out: %s; others are counted", ladei_loader_path_text(s->path),
                of->first, kinds[kind].why);
    *kinds[kind].sum += of->count;
  }
}

static lade_status shard_add(tar_shard *s) {
  ladei_loader_index_mark mark = ladei_loader_index_mark_get(s->index);
  ladei_loader_lone lone = {.client = NULL};
  bool remote = ladei_source_url_is(s->path);
  lade_status status = remote ? ladei_loader_index_add_remote(s->index, s->path, &s->file, &lone)
                              : lade_index_add_file(s->index, s->path, &s->file);
  if (status != LADE_OK) return status;
  if (remote) {
    ladei_loader_tar_input input = {.fd = -1, .remote = &lone.remote};
    s->path = s->index->files[s->file].path; /* without its query */
    status = archives_read(s, &input);
    ladei_loader_lone_close(&lone);
  } else {
    status = shard_read(s);
  }
  if (status == LADE_OK)
    left_out_tell(s);
  else
    ladei_loader_index_rewind(s->index, mark);
  return status;
}

lade_status lade_index_add_tar(lade_record_index *index, const char *path, const lade_tar_options *options) {
  tar_shard s = {.index = index, .path = path};
  lade_status status = ladei_options_read("lade_tar_options", options, &s.options, sizeof s.options);
  if (status == LADE_OK) status = options_check(index, &s.options);
  int cancellation = ladei_cancellation_hold();
  if (status == LADE_OK) status = ladei_libarchive_open(&s.lib);
  if (status == LADE_OK) status = shard_add(&s);
  ladei_cancellation_resume(cancellation);
  return status;
}
