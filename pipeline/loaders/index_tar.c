/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexes of tar shards. libarchive reads the headers, with every dialect of tar; the members' bytes are skipped.
 *
 *   a/1.jpg  a/1.cls  a/2.jpg  a/2.cls ...       records: a/1 {jpg, cls}, a/2 {jpg, cls}, ...
 *
 * Where a member's bytes begin is where libarchive stands when it has read the header, since no filter lies between it
 * and the file. That they end where the next header begins is checked.
 *
 * I1  The record in work has a range for each bit of `seen`.
 * Locks: none.
 */
#include <archive.h>
#include <archive_entry.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "pipeline/loaders/index.h"
#include "pipeline/loaders/text.h"

enum { TAR_BLOCK = 512, READ_BYTES = 16 * 1024 };

typedef struct shard {
  lade_record_index *index;
  struct archive *archive;
  const char *path;
  uint64_t file;
  uint64_t next_header; /* where it must begin */
  char *key;            /* of the record in work; NULL: none */
  uint64_t seen;        /* its fields, by bit */
  lade_range fields[LADEI_INDEX_MAX_FIELDS];
} shard;

static lade_status member_error(const shard *s, const char *member, const char *what) {
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: %.160s: %s", ladei_path_text(s->path), member, what);
}

static lade_status memory_error(void) { return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "index: no memory"); }

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Puts the record in work into the index; one without any of the fields is none. */
static lade_status record_end(shard *s) {
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
      status = ladei_error(LADE_ERR_FORMAT, 0, "%s: record %.160s lacks the field \"%.80s\"", ladei_path_text(s->path),
                           s->key, s->index->alternatives[name]);
    }
  }
  if (status == LADE_OK) {
    status = lade_index_add(s->index, s->key, s->fields);
  }
  free(s->key);
  s->key = NULL;
  return status;
}

/* Goes on with the record of this key: the one in work, or a new one. */
static lade_status record_continue(shard *s, const char *member, size_t key_length) {
  if (s->key != NULL && strlen(s->key) == key_length && memcmp(s->key, member, key_length) == 0) {
    return LADE_OK;
  }
  lade_status status = record_end(s);
  if (status != LADE_OK) {
    return status;
  }
  s->key = strndup(member, key_length);
  s->seen = 0;
  return s->key != NULL ? LADE_OK : memory_error();
}

/* A part of the path such as "__meta__". */
static bool path_is_private(const char *path) {
  for (const char *at = path; *at != '\0';) {
    size_t length = strcspn(at, "/");
    if (length >= 4 && strncmp(at, "__", 2) == 0 && strncmp(at + length - 2, "__", 2) == 0) {
      return true;
    }
    at += length + (at[length] == '/');
  }
  return false;
}

/* `range` NULL: the member's bytes do not lie together in the archive. */
static lade_status field_add(shard *s, const char *member, const char *dot, const lade_range *range) {
  char extension[80];
  size_t length = 0;
  for (const char *c = dot + 1; *c != '\0' && length + 1 < sizeof extension; c++) {
    extension[length++] = (char)tolower((unsigned char)*c);
  }
  extension[length] = '\0';
  size_t field = ladei_index_field_of(s->index, extension);
  if (field == s->index->field_count) {
    return LADE_OK;
  }
  if (range == NULL) {
    return member_error(s, member, "it is a link or sparse: its bytes do not lie together");
  }
  if (s->seen >> field & 1) {
    return member_error(s, member, "its record has that field already");
  }
  s->fields[field] = *range;
  s->seen |= UINT64_C(1) << field;
  return LADE_OK;
}

static lade_status file_add(shard *s, const char *member, const lade_range *range) {
  const char *slash = strrchr(member, '/'), *base = slash != NULL ? slash + 1 : member;
  const char *dot = strchr(base, '.');
  if (dot == NULL || dot == base || path_is_private(member)) {
    return LADE_OK;
  }
  lade_status status = record_continue(s, member, (size_t)(dot - member));
  return status == LADE_OK ? field_add(s, member, dot, range) : status;
}

/* --- members ------------------------------------------------------------------------------------------------------ */

static lade_status entry_add(shard *s, struct archive_entry *entry) {
  const char *member = archive_entry_pathname(entry);
  size_t end;
  if (member == NULL) {
    member = archive_entry_pathname_utf8(entry); /* a name that the program's locale has no letters for */
  }
  if (member == NULL) {
    return member_error(s, "a member", "its name cannot be read");
  }
  if ((uint64_t)archive_read_header_position(s->archive) != s->next_header) {
    return member_error(s, member, "it does not begin where the member before it ends");
  }
  const lade_range range = {s->file, (uint64_t)archive_filter_bytes(s->archive, 0),
                            (uint64_t)archive_entry_size(entry)};
  bool is_link = archive_entry_hardlink(entry) != NULL || archive_entry_symlink(entry) != NULL;
  bool is_file = archive_entry_filetype(entry) == AE_IFREG && archive_entry_sparse_count(entry) == 0 && !is_link;
  if (!ladei_size_add(range.offset, range.bytes, &end) || end > s->index->files[s->file].bytes ||
      !ladei_size_round_up(end, TAR_BLOCK, &s->next_header)) {
    return member_error(s, member, "it goes beyond the end of the archive");
  }
  bool is_other = !is_link && archive_entry_filetype(entry) != AE_IFREG; /* a folder, a device */
  return is_other ? LADE_OK : file_add(s, member, is_file ? &range : NULL);
}

static lade_status archive_failed(const shard *s) {
  const char *reason = archive_error_string(s->archive);
  return ladei_error(LADE_ERR_FORMAT, 0, "%s: byte %llu: %s", ladei_path_text(s->path),
                     (unsigned long long)s->next_header, reason != NULL ? reason : "no tar archive");
}

static lade_status members_read(shard *s) {
  for (;;) {
    struct archive_entry *entry;
    int result = archive_read_next_header(s->archive, &entry);
    if (result == ARCHIVE_EOF) break;
    /* A warning is about a name or a time that cannot be told exactly; the member's place is sure. */
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) {
      return archive_failed(s);
    }
    lade_status status = entry_add(s, entry);
    if (status != LADE_OK) {
      return status;
    }
  }
  /* The mark is a block of zeros, which libarchive has read; it takes an archive that just ends, too. */
  if ((uint64_t)archive_filter_bytes(s->archive, 0) < s->next_header + TAR_BLOCK) {
    return ladei_error(LADE_ERR_FORMAT, 0, "%s: it ends without an end mark: cut off?", ladei_path_text(s->path));
  }
  return record_end(s);
}

static lade_status archive_read(shard *s, int fd) {
  s->archive = archive_read_new();
  if (s->archive == NULL) {
    return memory_error();
  }
  lade_status status;
  if (archive_read_support_format_tar(s->archive) != ARCHIVE_OK ||
      archive_read_open_fd(s->archive, fd, READ_BYTES) != ARCHIVE_OK) {
    status = archive_failed(s);
  } else {
    status = members_read(s);
  }
  archive_read_free(s->archive);
  free(s->key);
  return status;
}

static lade_status shard_read(shard *s) {
  const ladei_index_file *file = &s->index->files[s->file];
  int own;
  if (file->fd >= 0) {
    return archive_read(s, file->fd);
  }
  lade_status status = ladei_file_reopen(file->path, &file->identity, &own);
  if (status == LADE_OK) {
    status = archive_read(s, own);
    close(own);
  }
  return status;
}

lade_status lade_index_add_tar(lade_record_index *index, const char *path) {
  if (index == NULL || index->alternative_count == 0) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "lade_index_add_tar: %s",
                       index == NULL ? "NULL" : "the index has no named fields");
  }
  ladei_index_mark mark = ladei_index_mark_get(index);
  shard s = {.index = index, .path = path};
  lade_status status = lade_index_add_file(index, path, &s.file);
  if (status == LADE_OK) {
    status = shard_read(&s);
  }
  if (status != LADE_OK) {
    ladei_index_rewind(index, mark);
  }
  return status;
}
