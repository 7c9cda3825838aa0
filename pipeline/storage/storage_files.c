/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage of a pipeline, and the files of its transfers: their descriptors, and the way of their bytes.
 *
 *   wanted    through the page cache     with O_DIRECT
 *   auto      pread                      engine, if there is one
 *   pread     pread                      pread
 *   uring     engine                     engine
 *   cufile    cuFile (files.c says when); otherwise as auto
 *
 * Note [Page cache and io_uring]
 * A processor copies bytes that lie in the page cache, in every way. With pread the reader that asks copies, and as
 * many copies run side by side as there are readers. io_uring copies in the call that submits, one after the other, or
 * hands the copy to a thread of the kernel, which costs a switch per request. It pays where nothing is copied: with
 * O_DIRECT many requests are under way without a thread waiting for each. (bench/staging_throughput --storage)
 *
 * I1  Descriptors opened for a file beside the caller's are closed with it.
 * I2  A file with `save` is under no name, or a temporary one, until ladei_pipe_storage_file_rename has renamed it.
 * I3  A failed close of a written file is an error of its transfer, and known before the rename.
 * Locks: none. Counters are atomic; files are constant except their atomic fields.
 */
#include "pipeline/storage/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/save.h"
#include "base/size.h"
#include "pipeline/storage/storage_cufile.h"
#include "pipeline/storage/storage_url.h"

enum { PREALLOCATE_LEAST = 4 << 20 }; /* less is one write or two */

/* Offsets of direct and of ordinary calls meet at whole pages only, so that no page is written both ways. */
static const size_t page_bytes = 4096;
/* Fewer requests than this do not pay for putting the file into the kernel's table. */
enum { FIXED_FILE_CHUNKS = 16 };

/* --- the storage of a pipeline ------------------------------------------------------------------------------------ */

static lade_status cufile_open(ladei_pipe_storage *storage, bool software_device) {
  if (software_device) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "no GPUDirect Storage: this device is software");
  return ladei_pipe_cufile_open(&storage->cufile);
}

static void refusal_note(ladei_pipe_storage *storage, const char *what) {
  ladei_error_save(&storage->refusal);
  ladei_log_later(LADE_LOG_WARN, "pipeline: %s is not used: %s", what, storage->refusal.text);
}

void ladei_pipe_storage_open(ladei_pipe_storage *storage, lade_storage wanted, bool software_device, unsigned requests,
                             unsigned blocks) {
  lade_error before;
  *storage = (ladei_pipe_storage){.wanted = wanted, .descriptors_most = ladei_pipe_open_files_most()};
  if (wanted == LADE_STORAGE_PREAD) return;
  ladei_error_save(&before);
  if (ladei_pipe_storage_uring.create(requests, blocks, &storage->engine_self) == LADE_OK)
    storage->engine = &ladei_pipe_storage_uring;
  else
    refusal_note(storage, "io_uring");
  if (wanted == LADE_STORAGE_CUFILE && cufile_open(storage, software_device) != LADE_OK)
    refusal_note(storage, "GPUDirect Storage");
  ladei_error_restore(&before);
}

void ladei_pipe_storage_close(ladei_pipe_storage *storage) {
  if (storage->engine != NULL) {
    storage->engine->destroy(storage->engine_self);
    storage->engine = NULL;
  }
  ladei_pipe_cufile_close(storage->cufile);
  storage->cufile = NULL;
  if (storage->sources != NULL) ladei_source_client_destroy(storage->sources);
  storage->sources = NULL;
}

void ladei_pipe_storage_info(ladei_pipe_storage *storage, lade_pipeline_info *info) {
  const char *why_not = "";
  int code = storage->refused_code;
  char text[128];
  bool engine = storage->engine != NULL;
  info->storage_direct = engine ? (int32_t)storage->engine->kind : LADE_STORAGE_PREAD;
  info->storage_buffered = engine && storage->wanted == LADE_STORAGE_URING ? LADE_STORAGE_URING : LADE_STORAGE_PREAD;
  if (storage->cufile != NULL) {
    info->storage_direct = LADE_STORAGE_CUFILE;
    info->storage_buffered = LADE_STORAGE_CUFILE;
  }
  info->direct_files = storage->direct_files;
  info->direct_refused = storage->direct_refused;
  info->bytes_by_pread = storage->bytes_pread;
  info->bytes_by_uring = storage->bytes_engine;
  info->bytes_by_cufile = storage->bytes_cufile;
  info->bytes_direct = storage->bytes_direct;
  info->bytes_by_url = storage->bytes_url;
  if (storage->sources != NULL) info->url_retries = ladei_source_client_retries(storage->sources);
  if (engine) info->registered_buffers = storage->engine->blocks_registered(storage->engine_self, &why_not);
  if (storage->refusal.status != LADE_OK) {
    snprintf(info->storage_note, sizeof info->storage_note, "%.159s", storage->refusal.text);
  } else if (storage->cufile_refused > 0) {
    snprintf(info->storage_note, sizeof info->storage_note, "GPUDirect Storage did not take %llu files",
             (unsigned long long)storage->cufile_refused);
  } else if (code != 0) {
    snprintf(info->storage_note, sizeof info->storage_note, "O_DIRECT refused: %s",
             strerror_r(code, text, sizeof text));
  } else {
    snprintf(info->storage_note, sizeof info->storage_note, "%s", why_not);
  }
}

unsigned ladei_pipe_storage_reap(ladei_pipe_storage *storage, uint64_t wait_ns, ladei_pipe_storage_request **out,
                                 unsigned room) {
  ladei_lock_assert_none_held();
  unsigned count = storage->engine->reap(storage->engine_self, wait_ns, out, room);
  atomic_fetch_sub(&storage->in_flight, count);
  for (unsigned i = 0; i < count; i++)
    atomic_fetch_add_explicit(&storage->bytes_engine, out[i]->done, memory_order_relaxed);
  return count;
}

void ladei_pipe_storage_submit(ladei_pipe_storage_request *request) {
  ladei_lock_assert_none_held();
  ladei_pipe_storage *storage = request->file->storage;
  atomic_fetch_add(&storage->in_flight, 1);
  storage->engine->submit(storage->engine_self, request);
}

void ladei_pipe_storage_wake(ladei_pipe_storage *storage) {
  if (storage->engine != NULL) storage->engine->wake(storage->engine_self);
}

void ladei_pipe_storage_push(ladei_pipe_storage *storage) {
  ladei_lock_assert_none_held();
  if (storage->engine != NULL) storage->engine->push(storage->engine_self);
  ladei_source_client *sources = atomic_load(&storage->sources);
  if (sources != NULL) ladei_source_client_push(sources);
}

void ladei_pipe_storage_block_forget(ladei_pipe_storage *storage, unsigned index) {
  if (storage->engine != NULL) storage->engine->block_forget(storage->engine_self, index);
}

void ladei_pipe_storage_file_cancel(ladei_pipe_storage_file *file) {
  ladei_pipe_storage *storage = file->storage;
  atomic_store_explicit(&file->cancelled, true, memory_order_relaxed);
  if (file->object != NULL)
    ladei_source_object_cancel(file->object);
  else if (file->async)
    storage->engine->cancel(storage->engine_self, file);
}

/* --- files: opening ----------------------------------------------------------------------------------------------- */

static lade_status open_error(const char *path) {
  int code = errno;
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "opening %s: %s", path, strerror_r(code, text, sizeof text));
}

/* Opening a pipe would wait for the other end, so nothing is opened but in this way; -1 with errno. Without O_NONBLOCK
 * afterwards: io_uring gives requests of such files up instead of waiting for storage. */
static int open_at_once(const char *path, int flags) {
  int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC, 0666);
  int now = fd >= 0 ? fcntl(fd, F_GETFL) : -1;
  if (now >= 0) (void)fcntl(fd, F_SETFL, now & ~O_NONBLOCK);
  return fd;
}

/* The same file once more, with or without O_DIRECT. -1 with errno. */
static int file_reopen(const ladei_pipe_storage_file *file, int fd, int flag) {
  char self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  return open_at_once(self, (file->write ? O_WRONLY : O_RDONLY) | flag);
}

/* The alignment that O_DIRECT needs. False: this file does not have it. */
static bool direct_alignment(ladei_pipe_storage_file *file) {
  file->align = page_bytes;
  file->memory_align = page_bytes;
#ifdef STATX_DIOALIGN
  struct statx status;
  if (statx(file->direct_fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 &&
      (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0 || status.stx_dio_mem_align == 0) return false;
    file->align = ladei_size_max(status.stx_dio_offset_align, page_bytes);
    file->memory_align = status.stx_dio_mem_align;
  }
#endif
  /* Block devices and file systems use powers of two; other alignments are refused. */
  return ladei_is_power_of_two(file->align) && ladei_is_power_of_two(file->memory_align);
}

/* errno of closing it, 0: none. After an interruption it is closed all the same. */
static int fd_close(int fd) { return close(fd) == 0 || errno == EINTR ? 0 : errno; }

static int direct_drop(ladei_pipe_storage_file *file) {
  int code = file->owns_direct_fd ? fd_close(file->direct_fd) : 0;
  file->direct_fd = -1;
  file->owns_direct_fd = false;
  return code;
}

/* The second descriptor: with O_DIRECT if that is wanted, or without it for unaligned bytes. */
static void direct_open(ladei_pipe_storage_file *file, bool wanted) {
  int flags = fcntl(file->fd, F_GETFL);
  if (flags >= 0 && (flags & O_DIRECT) != 0) {
    file->direct_fd = file->fd;
    file->owns_direct_fd = file->owns_fd;
    file->fd = file_reopen(file, file->direct_fd, 0);
    file->owns_fd = file->fd >= 0;
  } else if (wanted) {
    file->direct_fd = file_reopen(file, file->fd, O_DIRECT);
    file->owns_direct_fd = file->direct_fd >= 0;
    if (file->direct_fd < 0) ladei_pipe_storage_direct_refuse(file, errno);
  }
  if (file->direct_fd >= 0 && !direct_alignment(file) && file->fd >= 0) {
    ladei_pipe_storage_direct_refuse(file, EINVAL);
    (void)direct_drop(file);
  }
}

/* Lets cuFile move the file, if it takes it. It wants O_DIRECT, or at least does better with it. */
static void cufile_register(ladei_pipe_storage_file *file) {
  lade_error before;
  ladei_pipe_storage *storage = file->storage;
  if (storage->cufile == NULL) return;
  ladei_error_save(&before);
  if (ladei_pipe_cufile_file_add(storage->cufile, file->direct_fd >= 0 ? file->direct_fd : file->fd,
                                 &file->cufile_handle) != LADE_OK) {
    file->cufile_handle = NULL;
    storage->cufile_refused++;
  }
  ladei_error_restore(&before);
}

/* Also of a pipe without a reader, which cannot be opened for writing. */
static bool is_pipe(int fd, const char *path) {
  struct stat facts;
  return (fd >= 0 ? fstat(fd, &facts) : stat(path, &facts)) == 0 && S_ISFIFO(facts.st_mode);
}

static lade_status path_open(ladei_pipe_storage_file *file, const ladei_pipe_storage_source *source) {
  if (file->write && (source->flags & LADE_FILE_ATOMIC) != 0) {
    lade_status status = ladei_save_begin(source->name, &file->save);
    if (status == LADE_OK) file->fd = ladei_save_fd(file->save);
    return status;
  }
  int fd = open_at_once(source->name, file->write ? O_WRONLY | O_CREAT : O_RDONLY);
  int code = errno;
  if (is_pipe(fd, source->name)) {
    if (fd >= 0) close(fd);
    return ladei_error(LADE_ERR_IO, ESPIPE, "opening %s: it is a pipe; a path must name what has offsets",
                       source->name);
  }
  errno = code;
  file->fd = fd;
  file->owns_fd = fd >= 0;
  return fd >= 0 ? LADE_OK : open_error(source->name);
}

/* Refuses O_APPEND: such a descriptor writes all bytes to the end of the file, wherever they belong. */
static lade_status descriptor_check(const ladei_pipe_storage_file *file) {
  int flags = file->write ? fcntl(file->fd, F_GETFL) : 0;
  if (flags < 0 || (flags & O_APPEND) == 0) return LADE_OK;
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "writing %s: its descriptor has O_APPEND; expected one without",
                     file->source.name);
}

/* Whether the file may hold `count` descriptors. Only sources by path have a limit: see Note [Open files]. */
static bool descriptors_fit(const ladei_pipe_storage_file *file, unsigned count) {
  const ladei_pipe_storage *storage = file->storage;
  return file->write || !file->source.by_path ||
         atomic_load(&storage->descriptors_open) + count <= storage->descriptors_most;
}

/* O_DIRECT and cuFile, where they are wanted. Both need a second descriptor, and a late file has neither. */
static void direct_find(ladei_pipe_storage_file *file) {
  ladei_pipe_storage *storage = file->storage;
  bool direct = (file->source.flags & LADE_FILE_DIRECT) != 0;
  bool wanted = direct || storage->cufile != NULL;
  if (wanted && !descriptors_fit(file, 2)) {
    if (direct) ladei_pipe_storage_direct_refuse(file, EMFILE);
    if (storage->cufile != NULL) storage->cufile_refused++;
    return;
  }
  direct_open(file, wanted);
  cufile_register(file);
  if (file->owns_direct_fd && !direct && file->cufile_handle == NULL)
    (void)direct_drop(file); /* it was for cuFile alone */
}

/* Closes a source by path for the time being where too many are open. See Note [Open files]. */
static lade_status file_make_late(ladei_pipe_storage_file *file) {
  struct stat facts;
  bool only_fd = file->owns_fd && file->direct_fd < 0 && file->cufile_handle == NULL;
  if (!only_fd || descriptors_fit(file, 1)) return LADE_OK;
  file->late_path = realpath(file->source.name, NULL); /* a later open must not depend on the working directory */
  if (file->late_path == NULL || fstat(file->fd, &facts) != 0) return open_error(file->source.name);
  file->identity = ladei_pipe_file_identity_of(&facts);
  file->owns_fd = false;
  close(file->fd);
  file->fd = -1;
  return LADE_OK;
}

static void descriptors_count(ladei_pipe_storage_file *file) {
  if (file->write) return;
  file->counted = (file->owns_fd ? 1u : 0u) + (file->owns_direct_fd ? 1u : 0u);
  atomic_fetch_add(&file->storage->descriptors_open, file->counted);
}

/* All descriptors except a save's. errno of the first one whose close failed, 0: none. */
static int file_close(ladei_pipe_storage_file *file) {
  atomic_fetch_sub(&file->storage->descriptors_open, file->counted);
  if (file->fixed_fd >= 0) file->storage->engine->file_remove(file->storage->engine_self, file->fixed_fd);
  if (file->cufile_handle != NULL) ladei_pipe_cufile_file_remove(file->storage->cufile, file->cufile_handle);
  int of_direct = direct_drop(file);
  int of_other = file->owns_fd ? fd_close(file->fd) : 0;
  file->owns_fd = false;
  file->counted = 0;
  file->fixed_fd = -1;
  file->cufile_handle = NULL;
  return of_direct != 0 ? of_direct : of_other;
}

static void file_free(ladei_pipe_storage_file *file) {
  if (file->object != NULL) ladei_source_object_close(file->object);
  ladei_lock_destroy(&file->turn);
  free(file->late_path);
  free(file);
}

lade_status ladei_pipe_storage_file_open(ladei_pipe_storage *storage, const ladei_pipe_storage_source *source,
                                         bool write, ladei_pipe_storage_file **out) {
  ladei_pipe_storage_file *file = calloc(1, sizeof *file);
  if (file == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "submit: no memory for a file");
  ladei_lock_init(&file->turn, LADEI_RANK_LEAF);
  file->storage = storage;
  file->source = *source;
  file->fd = source->fd;
  file->direct_fd = -1;
  file->fixed_fd = -1;
  file->align = 1;
  file->memory_align = 1;
  file->write = write;
  file->sync = file->write && (source->flags & LADE_FILE_SYNC) != 0;
  lade_status status = source->by_url    ? ladei_pipe_storage_url_open(file)
                       : source->by_path ? path_open(file, source)
                                         : descriptor_check(file);
  if (status != LADE_OK || source->by_url) {
    if (status != LADE_OK)
      free(file);
    else
      *out = file;
    return status;
  }
  file->in_turn = write && ladei_file_is_in_memory(file->fd);
  direct_find(file);
  status = file_make_late(file);
  if (status != LADE_OK) {
    (void)file_close(file);
    file_free(file);
    return status;
  }
  descriptors_count(file);
  storage->direct_files += file->direct_fd >= 0 ? 1 : 0;
  file->async = storage->engine != NULL && file->late_path == NULL &&
                (file->direct_fd >= 0 || storage->wanted == LADE_STORAGE_URING);
  *out = file;
  return LADE_OK;
}

void ladei_pipe_storage_file_set_buffered(ladei_pipe_storage_file *file) {
  if (file->direct_fd >= 0 && file->fd >= 0 && !file->direct_off) {
    file->direct_off = true;
    ladei_pipe_storage_direct_refuse(file, EINVAL);
  }
}

/*
 * Note [Room for what is written]
 * With room set aside at once a file lies in few pieces, and writes find their blocks. The size stays: it says how far
 * was written, also after a failure, and when several transfers write one file. After a refusal or with too little room nothing is asked again: the writes
 * will tell. Only the transfer's bytes get room: those between the file's end and the first range are a hole.
 */
void ladei_pipe_storage_file_preallocate(ladei_pipe_storage_file *file, uint64_t begin, uint64_t end) {
  struct stat facts;
  int fd = file->fd >= 0 ? file->fd : file->direct_fd;
  if (!file->write || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) return;
  begin = ladei_size_max(begin, (uint64_t)facts.st_size);
  if (begin >= end || end - begin < PREALLOCATE_LEAST || end > INT64_MAX) return;
  (void)ladei_file_reserve(fd, FALLOC_FL_KEEP_SIZE, begin, end);
}

/* O_DIRECT needs chunks of whole blocks. */
static size_t direct_layout(ladei_pipe_storage_file *file, uint64_t offset, size_t *chunk_bytes) {
  if (*chunk_bytes >= file->align) {
    *chunk_bytes -= *chunk_bytes % file->align;
    return (size_t)(offset % file->align);
  }
  ladei_pipe_storage_file_set_buffered(file);
  return 0;
}

size_t ladei_pipe_storage_file_layout(ladei_pipe_storage_file *file, uint64_t offset, uint64_t bytes,
                                      size_t *chunk_bytes) {
  const ladei_pipe_storage *storage = file->storage;
  size_t lead_bytes = file->direct_fd >= 0 ? direct_layout(file, offset, chunk_bytes) : 0;
  if (file->async && bytes / *chunk_bytes >= FIXED_FILE_CHUNKS)
    file->fixed_fd = storage->engine->file_add(storage->engine_self, file->direct_fd >= 0 ? file->direct_fd : file->fd);
  return lead_bytes;
}

/* --- files: the end ----------------------------------------------------------------------------------------------- */

static lade_status end_error(const char *doing, const ladei_pipe_storage_file *file, int code) {
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s: %s", doing, file->source.name, strerror_r(code, text, sizeof text));
}

static lade_status file_flush(const ladei_pipe_storage_file *file) {
  return fsync(file->fd >= 0 ? file->fd : file->direct_fd) == 0 ? LADE_OK : end_error("flushing", file, errno);
}

/* Writes end where the last range with bytes does; a new file is as long as its ranges say. */
static lade_status save_extend(const ladei_pipe_storage_file *file) {
  struct stat facts;
  if (fstat(file->fd, &facts) != 0) return end_error("asking for the size of", file, errno);
  return (uint64_t)facts.st_size >= file->end || ftruncate(file->fd, (off_t)file->end) == 0
             ? LADE_OK
             : end_error("extending", file, errno);
}

lade_status ladei_pipe_storage_file_finish(ladei_pipe_storage_file *file) {
  lade_status status = file->save != NULL ? save_extend(file) : LADE_OK;
  if (status == LADE_OK && file->sync && file->save == NULL) status = file_flush(file);
  int code = file_close(file);
  if (status == LADE_OK && code != 0 && file->write) status = end_error("closing", file, code);
  return status == LADE_OK && file->save != NULL ? ladei_save_prepare(file->save, file->sync) : status;
}

lade_status ladei_pipe_storage_file_rename(ladei_pipe_storage_file *file) {
  return file->save != NULL ? ladei_save_name(file->save) : LADE_OK;
}

lade_status ladei_pipe_storage_file_close(ladei_pipe_storage_file *file) {
  (void)file_close(file);
  lade_status status = ladei_save_end(file->save, file->sync);
  file_free(file);
  return status;
}
