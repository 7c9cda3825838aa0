/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage: how bytes of files get into blocks and out of them.
 *
 *   ladei_pipe_storage        one per pipeline: choices, counters, and the engine, if there is one
 *   ladei_pipe_storage_file   one per file of a transfer: descriptors, alignment, its end
 *   ladei_pipe_storage_request  one read or write of a file's range, from or into one block
 *
 * A request goes one of two ways. ladei_pipe_storage_run() moves its bytes before it returns, by pread or pwrite.
 * ladei_pipe_storage_submit() hands it to the engine (io_uring), which returns it by ladei_pipe_storage_reap():
 *
 *   submit (any thread) --> queue --> kernel --> reap (one thread at a time)     wake: lets a reap return that waits
 *
 * Both ways split the request into system calls by the same rules (storage_request.c): those of O_DIRECT, and of the
 * rest of a short read or an interrupted call.
 *
 * A source with a URL is a file without a descriptor, whose `object` the client of sources/ reads, without requests of
 * this room (endpoints/gather.c).
 */
#ifndef LADE_PIPELINE_STORAGE_STORAGE_H
#define LADE_PIPELINE_STORAGE_STORAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "lade/pipeline.h"
#include "lade/status.h"
#include "pipeline/storage/open_files.h"
#include "sources/source.h"

typedef struct ladei_pipe_storage ladei_pipe_storage;
typedef struct ladei_save ladei_save;
struct ladei_pipe_cufile;
struct iovec;

/* The origin of a file: its path, its URL or the caller's descriptor. */
typedef struct ladei_pipe_storage_source {
  const char *name; /* for messages; the path, where lade opens it; the URL */
  bool by_path;
  bool by_url;
  int fd;                              /* the caller's descriptor; otherwise -1 */
  uint32_t flags;                      /* lade_file_flags */
  const ladei_source_version *version; /* by_url: the one to read; NULL: the first that is met */
} ladei_pipe_storage_source;

/* A file of one transfer. Constant once it is open, except atomic fields. */
typedef struct ladei_pipe_storage_file {
  ladei_pipe_storage *storage;
  struct ladei_pipe_storage_file *next; /* in the ticket's list */
  ladei_pipe_storage_source source;
  int fd; /* through the page cache; -1: could not be had, for a descriptor that came with O_DIRECT; or late_path */
  int direct_fd; /* with O_DIRECT; -1: not used */
  bool owns_fd;
  bool owns_direct_fd;
  unsigned counted; /* its descriptors, in descriptors_open */
  bool async;       /* goes through the engine */
  bool sync;        /* fsync at the end */
  bool write;
  bool drops;                        /* read: what came through the page cache leaves it */
  uint64_t begin, end;               /* write: of the ranges; the owner's */
  uint64_t range_bytes;              /* write: the sum of the ranges; the owner's */
  char *late_path;                   /* opened by each request, since too many files are open; NULL: `fd` is open */
  ladei_pipe_file_identity identity; /* of late_path's file */
  size_t align;                      /* of offsets and lengths with O_DIRECT, and so of a range's lead */
  size_t memory_align;               /* of addresses */
  int fixed_fd;                      /* index of direct_fd (or fd) in the engine's table of files; -1: not in it */
  ladei_save *save;                  /* the file under its temporary name, or NULL */
  ladei_source_object *object;       /* of a URL, or NULL; then nothing above counts except `source` */
  void *cufile_handle;               /* of direct_fd (or fd); NULL: cuFile does not move it */
  _Atomic(bool) direct_off;          /* O_DIRECT turned out not to work */
  _Atomic(bool) cancelled;           /* requests end after the call that is under way */
  bool in_turn;                      /* write: Note [Writes to a file in memory] */
  ladei_lock turn;                   /* held for the call, where that is set */
} ladei_pipe_storage_file;

/* The bytes that one system call has to move. */
typedef struct ladei_pipe_storage_call {
  int fd;
  bool direct;
  uint64_t at; /* in the file */
  char *memory;
  size_t bytes;
  size_t skip; /* bytes read before those asked for */
} ladei_pipe_storage_call;

typedef struct ladei_pipe_storage_request {
  /* Set by the caller; the rest is zero. */
  ladei_pipe_storage_file *file;
  uint64_t offset; /* in the file */
  char *buffer;
  size_t bytes;
  char *block;        /* holds the buffer: a read with O_DIRECT may write anywhere in it */
  size_t block_bytes; /* 0: only the buffer may be written */
  int block_index;    /* number of the block's slot, for registering it with the kernel; -1: never */
  void *user;

  size_t done; /* bytes moved */
  bool plain;  /* the next call goes through the page cache */
  int late_fd; /* of a late file, while the request runs */
  ladei_pipe_storage_call call;
  lade_status status;                           /* of the whole, once it comes out of reap */
  lade_error error;                             /* where status says so */
  bool in_kernel;                               /* guarded by the engine's lock; as the next three */
  bool cancel;                                  /* ask the kernel to give up the call under way */
  bool asked;                                   /* the kernel was asked to, since it has the call */
  bool punt;                                    /* the next call is for a thread of the kernel */
  TAILQ_ENTRY(ladei_pipe_storage_request) link; /* in one of the engine's lists */
} ladei_pipe_storage_request;

TAILQ_HEAD(ladei_pipe_storage_request_list, ladei_pipe_storage_request);

/* Moves requests without a thread of its own for each. Every function may be called by any thread, reap by one at a
 * time. */
typedef struct ladei_pipe_storage_engine {
  lade_storage kind;
  /* For at most `requests` requests at once and blocks numbered below `blocks`. Where it is not to be had: an error
   * whose text says why. */
  lade_status (*create)(unsigned requests, unsigned blocks, void **out);
  void (*destroy)(void *self);
  /* Of a file that many requests will name: puts the descriptor into the kernel's table. Returns its index or -1. */
  int (*file_add)(void *self, int fd);
  void (*file_remove)(void *self, int index);
  void (*submit)(void *self, ladei_pipe_storage_request *request);
  /* Requests that are over, at most `room`. Waits for the first one at most `wait_ns`, and less if a cancellation must
   * be repeated. 0: makes no system call except for a cancellation. */
  unsigned (*reap)(void *self, uint64_t wait_ns, ladei_pipe_storage_request **out, unsigned room);
  void (*wake)(void *self);
  /* Marks the file's requests; makes no system call. */
  void (*cancel)(void *self, const ladei_pipe_storage_file *file);
  /* Asks the kernel to give up marked requests. */
  void (*push)(void *self);
  /* The block of this number is given away: forgets its address. */
  void (*block_forget)(void *self, unsigned index);
  /* For reports: blocks registered now; why there are none, or "". */
  unsigned (*blocks_registered)(void *self, const char **why_not);
} ladei_pipe_storage_engine;

extern const ladei_pipe_storage_engine ladei_pipe_storage_uring;

struct ladei_pipe_storage {
  lade_storage wanted;
  const ladei_pipe_storage_engine *engine; /* NULL: there is none */
  struct ladei_pipe_cufile *cufile;        /* NULL: not asked for, or not to be had */
  void *engine_self;
  _Atomic(ladei_source_client *) sources; /* NULL: no URL was opened yet */
  ladei_source_options url_limits;        /* of `sources`; zero after the opening */
  lade_error refusal;                     /* why there is none though it was asked for; status LADE_OK: it was not */
  _Atomic(unsigned) in_flight;            /* requests submitted and not reaped */
  unsigned descriptors_most; /* of sources; those by path beyond are late, and have no second one for O_DIRECT */
  _Atomic(unsigned) descriptors_open;
  _Atomic(uint64_t) direct_files;
  _Atomic(uint64_t) direct_refused;
  _Atomic(uint64_t) cufile_refused; /* files that cuFile did not take */
  _Atomic(int) refused_code;        /* errno of the last refusal of O_DIRECT; 0: none */
  _Atomic(uint64_t) bytes_pread;    /* moved by pread and pwrite, ... */
  _Atomic(uint64_t) bytes_engine;   /* ... by the engine, ... */
  _Atomic(uint64_t) bytes_cufile;   /* ... by cuFile, ... */
  _Atomic(uint64_t) bytes_url;      /* ... from URLs; of the first two ... */
  _Atomic(uint64_t) bytes_direct;   /* ... those with O_DIRECT */
};

/* --- the storage of a pipeline ------------------------------------------------------------------------------------- */

/* Never fails: pread replaces an unavailable way, and the reports say why. `requests`, `blocks`: as create. */
void ladei_pipe_storage_open(ladei_pipe_storage *storage, lade_storage wanted, bool software_device, unsigned requests,
                             unsigned blocks);
/* No file is open any more. */
void ladei_pipe_storage_close(ladei_pipe_storage *storage);

/* Fills in the fields of the report that are about storage. */
void ladei_pipe_storage_info(ladei_pipe_storage *storage, lade_pipeline_info *info);

/* --- files ---------------------------------------------------------------------------------------------------------- */

/*
 * Opens a transfer's file. Name and descriptor of the source stay the caller's, and valid until the close. LADE_ERR_IO,
 * LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_INVALID_ARGUMENT: a descriptor to be written appends.
 */
lade_status ladei_pipe_storage_file_open(ladei_pipe_storage *storage, const ladei_pipe_storage_source *source,
                                         bool write, ladei_pipe_storage_file **out);

/* The file's ranges are not whole blocks: goes through the page cache. */
void ladei_pipe_storage_file_set_buffered(ladei_pipe_storage_file *file);

/* All of [begin, end) will be written: the file system sets room aside for its part after the end of the file, where
 * that costs little. The size stays as it is; unwritten room stays set aside until the file is truncated or removed. */
void ladei_pipe_storage_file_preallocate(ladei_pipe_storage_file *file, uint64_t begin, uint64_t end);

/* The file's own chunks: at most *chunk_bytes, which is lowered to a length that O_DIRECT can use. Returns the lead of
 * the first one (core.h). */
size_t ladei_pipe_storage_file_layout(ladei_pipe_storage_file *file, uint64_t offset, uint64_t bytes,
                                      size_t *chunk_bytes);

/*
 * The end of a file whose transfer has gone well, in three steps; after a failure the last step alone. With several
 * files each step is taken for all of them before the next.
 *
 * Finish: flushed as requested, and closed; an atomic file is complete except for its name. LADE_ERR_IO.
 */
lade_status ladei_pipe_storage_file_finish(ladei_pipe_storage_file *file);
/* An atomic file is under its name. LADE_ERR_IO: it is not. */
lade_status ladei_pipe_storage_file_rename(ladei_pipe_storage_file *file);
/* Everything is let go. An atomic file without its name is given up, and nothing of it is left; one that has it stays,
 * also where its folder cannot be flushed: LADE_ERR_IO. */
lade_status ladei_pipe_storage_file_close(ladei_pipe_storage_file *file);

/* Ends the file's requests early. Makes no system call: ladei_pipe_storage_push() does, for a file of the engine. */
void ladei_pipe_storage_file_cancel(ladei_pipe_storage_file *file);

/* --- requests ------------------------------------------------------------------------------------------------------- */

/* Moves the bytes, in the calling thread. LADE_ERR_IO, LADE_ERR_TRUNCATED, LADE_ERR_CANCELLED. */
lade_status ladei_pipe_storage_run(ladei_pipe_storage_request *request);

/* Reads a range of a file through the page cache into several places, by one call; `bytes` in all, `count` at most
 * IOV_MAX. False: not all of it, for any reason: the caller reads it again by requests. */
bool ladei_pipe_storage_read_vector(ladei_pipe_storage_file *file, uint64_t offset, const struct iovec *places,
                                    size_t count, size_t bytes);

/* Of a file with `async`: the request comes out of reap. */
void ladei_pipe_storage_submit(ladei_pipe_storage_request *request);

static inline unsigned ladei_pipe_storage_in_flight(const ladei_pipe_storage *storage) {
  return atomic_load_explicit(&storage->in_flight, memory_order_relaxed);
}

unsigned ladei_pipe_storage_reap(ladei_pipe_storage *storage, uint64_t wait_ns, ladei_pipe_storage_request **out,
                                 unsigned room);
void ladei_pipe_storage_wake(ladei_pipe_storage *storage);
void ladei_pipe_storage_push(ladei_pipe_storage *storage);
void ladei_pipe_storage_block_forget(ladei_pipe_storage *storage, unsigned index);

/* Counts a file that O_DIRECT is refused for, with the reason's errno. */
void ladei_pipe_storage_direct_refuse(ladei_pipe_storage_file *file, int code);

/* LADE_ERR_TRUNCATED: a read at byte `at` got nothing, with `left` bytes of its range left. Names the file's end. */
lade_status ladei_pipe_storage_truncated(const char *name, int fd, uint64_t at, uint64_t left);

/* Sets request->call to the request's next step. */
void ladei_pipe_storage_call_next(ladei_pipe_storage_request *request);
/* Notes its result: bytes moved, or a negative errno. LADE_NOT_READY: there is more to do. */
lade_status ladei_pipe_storage_call_done(ladei_pipe_storage_request *request, int64_t result);

#endif /* LADE_PIPELINE_STORAGE_STORAGE_H */
