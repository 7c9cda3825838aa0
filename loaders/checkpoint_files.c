/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a checkpoint: opened, and their headers and the index read.
 *
 * Locks: none.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "loaders/checkpoint.h"
#include "loaders/header_parse.h"
#include "loaders/text.h"

static lade_status memory_error(const char *what) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %s", what);
}

/* A file or an object that is open, and its size. */
typedef struct input {
  int fd;
  const ladei_loader_remote *remote; /* NULL: a file */
  uint64_t bytes;
} input;

static input input_of(int fd, const struct stat *facts) { return (input){.fd = fd, .bytes = (uint64_t)facts->st_size}; }

static input input_of_remote(const ladei_loader_remote *remote) {
  return (input){.fd = -1, .remote = remote, .bytes = ladei_loader_remote_version(remote)->total};
}

/* Bytes [offset, offset + bytes) of an input whose size covers them. */
static lade_status input_read(const input *in, uint64_t offset, void *out, size_t bytes) {
  if (in->remote != NULL) return ladei_loader_remote_read(in->remote, offset, out, bytes);
  for (size_t done = 0; done < bytes;) {
    ssize_t got = pread(in->fd, (char *)out + done, bytes - done, (off_t)(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ladei_error(LADE_ERR_IO, errno, "reading at byte %llu: %s", (unsigned long long)(offset + done),
                         strerror(errno));
    }
    if (got == 0) {
      return ladei_error(LADE_ERR_TRUNCATED, 0, "the file ended at byte %llu while it was read",
                         (unsigned long long)(offset + done));
    }
    done += (size_t)got;
  }
  return LADE_OK;
}

/* *out_absent: there is no such file. */
static lade_status file_open(int folder, const char *path, int *out_fd, struct stat *out_facts, bool *out_absent) {
  int fd = openat(folder, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
  if (fd < 0 || fstat(fd, out_facts) != 0) {
    int reason = errno;
    *out_absent = fd < 0 && reason == ENOENT;
    if (fd >= 0) close(fd);
    return ladei_error(LADE_ERR_IO, reason, "cannot open: %s", strerror(reason));
  }
  if (!S_ISREG(out_facts->st_mode)) {
    close(fd);
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "no regular file");
  }
  *out_fd = fd;
  return LADE_OK;
}

/* How an archive begins: with a file, with none, or as one of several parts. torch.save() writes them. */
static bool is_zip(const unsigned char prefix[LADEI_LOADER_HEADER_PREFIX_BYTES]) {
  return memcmp(prefix, "PK\3\4", 4) == 0 || memcmp(prefix, "PK\5\6", 4) == 0 || memcmp(prefix, "PK\7\10", 4) == 0;
}

/* The header's text; the caller frees it. */
static lade_status header_read(const input *in, char **out_text, uint64_t *out_bytes) {
  unsigned char prefix[LADEI_LOADER_HEADER_PREFIX_BYTES];
  uint64_t bytes = 0;
  if (in->bytes < sizeof prefix)
    return ladei_error(LADE_ERR_FORMAT, 0, "%llu bytes are too few for a header", (unsigned long long)in->bytes);
  LADEI_TRY(input_read(in, 0, prefix, sizeof prefix));
  for (unsigned i = 0; i < sizeof prefix; i++) bytes |= (uint64_t)prefix[i] << (8 * i);
  if (bytes > LADEI_LOADER_HEADER_MAX_BYTES && is_zip(prefix))
    return ladei_error(LADE_ERR_FORMAT, 0, "it is a zip archive, as torch.save() writes; expected a safetensors file");
  if (bytes > LADEI_LOADER_HEADER_MAX_BYTES || bytes > in->bytes - sizeof prefix) {
    return ladei_error(LADE_ERR_FORMAT, 0, "a header of %llu bytes: %s", (unsigned long long)bytes,
                       bytes > LADEI_LOADER_HEADER_MAX_BYTES ? "the format allows 100000000"
                                                             : "the file ends before it does");
  }
  char *text = malloc(bytes + 1);
  if (text == NULL) return memory_error("the header");
  lade_status status = input_read(in, sizeof prefix, text, bytes);
  if (status != LADE_OK) {
    free(text);
    return status;
  }
  *out_text = text;
  *out_bytes = bytes;
  return LADE_OK;
}

static lade_status header_parse(const input *in, ladei_loader_checkpoint_file *file) {
  uint64_t text_bytes = 0;
  char *text = NULL;
  LADEI_TRY(header_read(in, &text, &text_bytes));
  file->data_offset = LADEI_LOADER_HEADER_PREFIX_BYTES + text_bytes;
  lade_status status = ladei_loader_header_parse(text, text_bytes, in->bytes - file->data_offset, &file->header);
  free(text);
  return status;
}

lade_status ladei_loader_checkpoint_file_read(int folder, const char *name, ladei_loader_checkpoint_file *file) {
  bool absent;
  struct stat facts = {0};
  *file = (ladei_loader_checkpoint_file){.path = file->path, .name = file->name, .fd = -1};
  lade_status status = file_open(folder, name, &file->fd, &facts, &absent);
  if (status == LADE_OK) {
    const input in = input_of(file->fd, &facts);
    file->identity = ladei_pipe_file_identity_of(&facts);
    file->stamp = ladei_pipe_file_stamp_of(&facts);
    status = header_parse(&in, file);
  }
  return status == LADE_OK ? LADE_OK : ladei_error_prefix(status, "%s: ", ladei_loader_path_text(name));
}

/* Errors of reading name the URL. */
static lade_status remote_prefix(lade_status status, const char *path) {
  return status == LADE_ERR_FORMAT ? ladei_error_prefix(status, "%s: ", ladei_loader_path_text(path)) : status;
}

lade_status ladei_loader_checkpoint_file_read_remote(const ladei_loader_remote *remote, char *url,
                                                     ladei_loader_checkpoint_file *file) {
  const input in = input_of_remote(remote);
  *file = (ladei_loader_checkpoint_file){.path = strdup(ladei_source_object_shown(remote->object)),
                                         .name = file->name,
                                         .url = url,
                                         .version = *ladei_loader_remote_version(remote),
                                         .fd = -1,
                                         .stamp = {.bytes = in.bytes}};
  if (file->path == NULL || url == NULL) return memory_error("a URL");
  return remote_prefix(header_parse(&in, file), file->path);
}

lade_status ladei_loader_checkpoint_file_recheck(const ladei_loader_checkpoint_file *file) {
  struct stat facts;
  const char *what = NULL;
  if (file->url != NULL) return LADE_OK; /* each answer was of its version */
  if ((file->fd >= 0 ? fstat(file->fd, &facts) : stat(file->late_path, &facts)) != 0) {
    what = strerror(errno);
  } else {
    ladei_pipe_file_identity identity = ladei_pipe_file_identity_of(&facts);
    ladei_pipe_file_stamp stamp = ladei_pipe_file_stamp_of(&facts);
    what = identity.device != file->identity.device || identity.inode != file->identity.inode ? "it was replaced"
           : stamp.bytes != file->stamp.bytes                                                 ? "its size is another"
           : stamp.modified_ns != file->stamp.modified_ns                                     ? "it was written to"
                                                                                              : NULL;
  }
  return what == NULL ? LADE_OK
                      : ladei_error(LADE_ERR_IO, ESTALE, "%s: the checkpoint has changed since it was opened: %s",
                                    ladei_loader_path_text(file->path), what);
}

void ladei_loader_checkpoint_file_dispose(ladei_loader_checkpoint_file *file) {
  ladei_loader_header_dispose(&file->header);
  free(file->path);
  free(file->url);
  free(file->late_path);
  if (file->fd >= 0) close(file->fd);
  *file = (ladei_loader_checkpoint_file){.fd = -1};
}

/* --- the index of a sharded checkpoint ---------------------------------------------------------------------------- */

static lade_status index_parse(const input *in, json_t **out) {
  if (in->bytes > LADEI_LOADER_HEADER_MAX_BYTES)
    return ladei_error(LADE_ERR_FORMAT, 0, "an index of %llu bytes is too long", (unsigned long long)in->bytes);
  char *text = malloc(in->bytes + 1);
  if (text == NULL) return memory_error("the index");
  lade_status status = input_read(in, 0, text, in->bytes);
  if (status == LADE_OK) status = ladei_loader_json_read(text, in->bytes, "the index", out);
  free(text);
  return status;
}

lade_status ladei_loader_index_read(int folder, const char *name, json_t **out, bool *out_absent) {
  struct stat facts = {0};
  int fd = -1;
  *out_absent = false;
  LADEI_TRY(file_open(folder, name, &fd, &facts, out_absent));
  const input in = input_of(fd, &facts);
  lade_status status = index_parse(&in, out);
  close(fd);
  return status;
}

lade_status ladei_loader_index_read_remote(const ladei_loader_remote *remote, json_t **out) {
  const input in = input_of_remote(remote);
  return index_parse(&in, out);
}

const char *ladei_loader_index_save_id(const json_t *index) {
  return json_string_value(json_object_get(json_object_get(index, "metadata"), LADEI_LOADER_SAVE_ID_KEY));
}
