/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage engine on io_uring: one ring, used by all threads of a pipeline.
 *
 *   submit --> queue --> the submitter: entries of the ring, io_uring_enter --> kernel --> completions --> the reaper
 *                ^                                                                            |
 *                +---- the rest of a short read, interrupted requests ------------------------+
 *
 * The submission side of the ring belongs to the *submitter*: the thread that found no other submitter when it queued a
 * request. It goes on until the queue is empty, so others only add to the queue, and no lock is held in a system call.
 * The completion side belongs to the *reaper*, the one thread in reap.
 *
 * Note [Page cache]
 *   A processor copies bytes in the page cache. The kernel does that inside io_uring_enter, request by request: one
 *   thread, the submitter, copies for all (5 GB/s on a machine where readers with pread bring 60). So such requests go
 *   to threads of the kernel from the start: as many reads run as processors are free; writes of one file run one after
 *   the other, as its lock requires anyway.
 *
 * Note [Cancellations that miss]
 *   The kernel may take a cancellation and leave the request. The kernel's thread that has it tries it without waiting,
 *   then leaves it with the pipe: a cancellation in between is answered with -EALREADY, and the request stays for ever
 *   (1 of 100 that come within 20 us of the submit, Linux 6.18). Between two places it is not found: -ENOENT. So no
 *   answer counts, only the request's return. Until then the reaper cancels it again, after 1 ms, 2 ms ... 128 ms:
 *   requests come back through the reaper alone, so while no thread reaps, none waits for them either.
 *   A cancellation names the request by its address. When the kernel looks, another request may be there: its call is
 *   ended, and it goes on where it stopped, since its file is not cancelled (request_failed).
 *
 * I1  A request is in exactly one place: queue, kernel (in_kernel), `done`, or out of reap.
 * I2  At most `requests` are in the kernel, and a cancellation for each: neither side of the ring can overflow.
 * I3  When the kernel refuses io_uring_enter for good, the ring is `broken`: requests not in the kernel are moved by
 *     pread and pwrite, by the thread that submits them. Those in the kernel still complete.
 * I4  A block is registered under its number from its second request on, until block_forget. Registering pins its pages
 *     once instead of at each request; if that is refused, requests go on without.
 * I5  A request of a cancelled file is marked (`cancel`) while it is in the kernel: by the cancel if it is there
 *     already, and otherwise when it comes there. The submitter goes on until no mark is left.
 * I6  While a cancelled request is in the kernel (`asked`), `again_ns` is the time at which it is marked once more. A
 *     reap waits until then at most, and marks when all cancellations are answered. So no request waits for storage
 *     that never answers, unless the ring is broken.
 * Locks: `lock` guards the lists, `submitting`, the fields of cancellations, and the requests' marks; no system call is
 * made under it. `blocks[i]` belongs to the thread that has slot i.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "pipeline/storage/storage.h"

/* Kernels that know all operations used here, and can say so, have these (5.11). */
static const unsigned features_needed = IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS | IORING_FEAT_EXT_ARG;

enum { FIXED_FILES = 64, RING_MOST = 4096, REGISTER_AT_USE = 2 };

/* Pauses between cancellations of a request, each twice the one before. See Note [Cancellations that miss]. */
static const uint64_t pause_least_ns = 1000000, pause_most_ns = 128000000;

typedef struct uring_block {
  const char *address; /* of the last request's block; NULL: none since it was forgotten */
  unsigned uses;
  bool registered;
} uring_block;

typedef struct uring {
  struct io_uring ring;
  int event; /* wakes the reaper */
  ladei_lock lock;
  struct ladei_pipe_storage_request_list queue;  /* to be given to the kernel */
  struct ladei_pipe_storage_request_list kernel; /* in the kernel */
  struct ladei_pipe_storage_request_list done;   /* over without the kernel */
  bool submitting;                               /* there is a submitter */
  bool cancels;                                  /* some request in the kernel is marked */
  unsigned unanswered;                           /* cancellations whose answers are not reaped */
  uint64_t pause_ns;                             /* until the next cancellations are repeated */
  _Atomic(uint64_t) again_ns;                    /* 0: no request in the kernel is `asked`; read without the lock */
  bool file_used[FIXED_FILES];
  bool files;                            /* there is a table of files */
  bool broken;                           /* the submitter's alone, as the next one */
  ladei_pipe_storage_request **prepared; /* whose entries are not given to the kernel yet; NULL: a cancellation's */
  unsigned block_count;
  uring_block *blocks;
  _Atomic(bool) buffers;     /* there is a table of blocks, and it may be used */
  _Atomic(int) buffers_code; /* why not */
  _Atomic(unsigned) registered;
} uring;

/* --- registered blocks -------------------------------------------------------------------------------------------- */

static int block_update(uring *self, unsigned index, const void *address, size_t bytes) {
  struct iovec range = {(void *)(uintptr_t)address, bytes};
  return io_uring_register_buffers_update_tag(&self->ring, index, &range, NULL, 1);
}

static void buffers_give_up(uring *self, int code) {
  self->buffers_code = code;
  self->buffers = false;
}

/* Whether the request's block is registered, registering it if it is time. */
static bool block_is_fixed(uring *self, const ladei_pipe_storage_request *request) {
  if (request->block_index < 0 || request->block_bytes == 0 || !self->buffers) return false;
  uring_block *block = &self->blocks[request->block_index];
  if (block->address != request->block) *block = (uring_block){.address = request->block};
  if (!block->registered && ++block->uses == REGISTER_AT_USE) {
    int code = block_update(self, (unsigned)request->block_index, request->block, request->block_bytes);
    if (code < 0) {
      buffers_give_up(self, -code);
      return false;
    }
    block->registered = true;
    self->registered++;
  }
  return block->registered;
}

static void uring_block_forget(void *user, unsigned index) {
  uring *self = user;
  uring_block *block = &self->blocks[index];
  if (block->registered) {
    (void)block_update(self, index, NULL, 0);
    self->registered--;
  }
  *block = (uring_block){.address = NULL};
}

static unsigned uring_blocks_registered(void *user, const char **why_not) {
  uring *self = user;
  int code = self->buffers_code;
  switch (code) {
  case 0: *why_not = ""; break;
  case ENOMEM: *why_not = "io_uring without registered buffers: over the limit of locked memory"; break;
  default: *why_not = "io_uring without registered buffers: the kernel does not take them"; break;
  }
  return self->registered;
}

/* --- registered files --------------------------------------------------------------------------------------------- */

static int uring_file_add(void *user, int fd) {
  uring *self = user;
  int index = -1;
  ladei_lock_acquire(&self->lock);
  for (int i = 0; self->files && i < FIXED_FILES && index < 0; i++) {
    if (!self->file_used[i]) {
      self->file_used[i] = true;
      index = i;
    }
  }
  ladei_lock_release(&self->lock);
  if (index >= 0 && io_uring_register_files_update(&self->ring, (unsigned)index, &fd, 1) < 0) {
    ladei_lock_acquire(&self->lock);
    self->file_used[index] = false;
    ladei_lock_release(&self->lock);
    return -1;
  }
  return index;
}

static void uring_file_remove(void *user, int index) {
  uring *self = user;
  int none = -1;
  (void)io_uring_register_files_update(&self->ring, (unsigned)index, &none, 1);
  ladei_lock_acquire(&self->lock);
  self->file_used[index] = false;
  ladei_lock_release(&self->lock);
}

/* --- submitting --------------------------------------------------------------------------------------------------- */

static void call_prepare(uring *self, ladei_pipe_storage_request *request, struct io_uring_sqe *sqe) {
  const ladei_pipe_storage_file *file = request->file;
  ladei_pipe_storage_call_next(request);
  const ladei_pipe_storage_call *call = &request->call;
  bool fixed_file = file->fixed_fd >= 0 && call->fd == (file->direct_fd >= 0 ? file->direct_fd : file->fd);
  int fd = fixed_file ? file->fixed_fd : call->fd;
  if (call->direct && block_is_fixed(self, request))
    if (file->write)
      io_uring_prep_write_fixed(sqe, fd, call->memory, (unsigned)call->bytes, call->at, request->block_index);
    else
      io_uring_prep_read_fixed(sqe, fd, call->memory, (unsigned)call->bytes, call->at, request->block_index);
  else if (file->write)
    io_uring_prep_write(sqe, fd, call->memory, (unsigned)call->bytes, call->at);
  else
    io_uring_prep_read(sqe, fd, call->memory, (unsigned)call->bytes, call->at);
  bool by_thread = request->punt || !call->direct; /* Note [Page cache] */
  sqe->flags = (unsigned char)(sqe->flags | (fixed_file ? IOSQE_FIXED_FILE : 0u) | (by_thread ? IOSQE_ASYNC : 0u));
  io_uring_sqe_set_data(sqe, request);
}

/* Moves the request here and now, for want of a ring. */
static void request_run(uring *self, ladei_pipe_storage_request *request) {
  request->status = ladei_pipe_storage_run(request);
  if (request->status != LADE_OK) ladei_error_save(&request->error);
  ladei_lock_acquire(&self->lock);
  TAILQ_INSERT_TAIL(&self->done, request, link);
  ladei_lock_release(&self->lock);
}

static void kernel_remove(uring *self, ladei_pipe_storage_request *request) {
  ladei_lock_assert_held(&self->lock);
  TAILQ_REMOVE(&self->kernel, request, link);
  request->in_kernel = false;
  request->cancel = false;
  request->asked = false;
}

/* Gives the ring up, and runs the requests that it did not take. */
static void ring_break(uring *self, unsigned taken, unsigned count) {
  self->broken = true;
  for (unsigned i = taken; i < count; i++) {
    ladei_pipe_storage_request *request = self->prepared[i];
    ladei_lock_acquire(&self->lock);
    if (request != NULL)
      kernel_remove(self, request);
    else
      self->unanswered--;
    ladei_lock_release(&self->lock);
    if (request != NULL) request_run(self, request);
  }
}

/* Gives `count` prepared entries to the kernel. Returns how many it took: all, unless it refuses for good. */
static unsigned entries_enter(uring *self, unsigned count) {
  const struct timespec pause = {0, 100000};
  unsigned taken = 0;
  while (taken < count) {
    int result = io_uring_submit(&self->ring);
    if (result > 0)
      taken += (unsigned)result;
    else if (result == 0 || result == -EAGAIN || result == -EBUSY)
      nanosleep(&pause, NULL); /* it is out of memory for the moment */
    else if (result != -EINTR)
      break;
  }
  return taken;
}

/* Marks a request for its first cancellation since it is in the kernel. */
static void request_mark(uring *self, ladei_pipe_storage_request *request) {
  ladei_lock_assert_held(&self->lock);
  request->cancel = true;
  self->cancels = true;
  self->pause_ns = pause_least_ns;
}

/* Cancellations go to the kernel: says when they are repeated. */
static void again_set(uring *self) {
  ladei_lock_assert_held(&self->lock);
  uint64_t next_ns = ladei_clock_ns(CLOCK_MONOTONIC) + self->pause_ns;
  if (self->again_ns == 0 || next_ns < self->again_ns) self->again_ns = next_ns;
}

/* Called with the lock: an entry for each request that is marked, as long as there are entries. */
static unsigned cancels_prepare(uring *self) {
  ladei_lock_assert_held(&self->lock);
  unsigned count = 0;
  ladei_pipe_storage_request *request;
  struct io_uring_sqe *sqe;
  self->cancels = false;
  TAILQ_FOREACH (request, &self->kernel, link) {
    if (!request->cancel) continue;
    if (self->broken || (sqe = io_uring_get_sqe(&self->ring)) == NULL) {
      self->cancels = !self->broken;
      break;
    }
    /* The address is a name here: by the time the kernel looks, the request may be over or another one. */
    io_uring_prep_cancel64(sqe, (uint64_t)(uintptr_t)request, 0);
    io_uring_sqe_set_data(sqe, NULL);
    request->cancel = false;
    request->asked = true;
    self->unanswered++;
    self->prepared[count++] = NULL;
  }
  if (count > 0) again_set(self);
  return count;
}

/*
 * An entry for each request of the list, as long as there are entries. The kernel may complete a request as soon as it
 * has it, and the reaper then looks for it in the list of the kernel: so the list has it before. A file that was
 * cancelled while the request was on its way here has marked those found in that list: this one marks itself (I5).
 */
static unsigned requests_prepare(uring *self, struct ladei_pipe_storage_request_list *list, unsigned count) {
  ladei_pipe_storage_request *request;
  struct io_uring_sqe *sqe;
  while ((request = TAILQ_FIRST(list)) != NULL && (sqe = io_uring_get_sqe(&self->ring)) != NULL) {
    TAILQ_REMOVE(list, request, link);
    call_prepare(self, request, sqe);
    self->prepared[count++] = request;
    ladei_lock_acquire(&self->lock);
    TAILQ_INSERT_TAIL(&self->kernel, request, link);
    request->in_kernel = true;
    if (atomic_load_explicit(&request->file->cancelled, memory_order_relaxed)) request_mark(self, request);
    ladei_lock_release(&self->lock);
  }
  return count;
}

static void requests_run(uring *self, struct ladei_pipe_storage_request_list *list) {
  ladei_pipe_storage_request *request;
  while ((request = TAILQ_FIRST(list)) != NULL) {
    TAILQ_REMOVE(list, request, link);
    request_run(self, request);
  }
  eventfd_write(self->event, 1);
}

/* Everything that is queued. Called by the submitter with the lock, which is released meanwhile. */
static void queue_submit(uring *self) {
  ladei_lock_assert_held(&self->lock);
  struct ladei_pipe_storage_request_list list = TAILQ_HEAD_INITIALIZER(list);
  TAILQ_CONCAT(&list, &self->queue, link);
  unsigned count = cancels_prepare(self);
  ladei_lock_release(&self->lock);
  do {
    count = self->broken ? count : requests_prepare(self, &list, count);
    unsigned taken = entries_enter(self, count);
    if (taken < count) ring_break(self, taken, count);
    if (self->broken) requests_run(self, &list);
    count = 0;
  } while (!TAILQ_EMPTY(&list));
  ladei_lock_acquire(&self->lock);
}

/* Called with the lock, which is released: this thread becomes the submitter if there is none and something to do. */
static void work_submit_unlock(uring *self) {
  ladei_lock_assert_held(&self->lock);
  if (!self->submitting) {
    self->submitting = true;
    while (!TAILQ_EMPTY(&self->queue) || self->cancels) queue_submit(self);
    self->submitting = false;
  }
  ladei_lock_release(&self->lock);
}

static void uring_submit(void *user, ladei_pipe_storage_request *request) {
  uring *self = user;
  ladei_lock_acquire(&self->lock);
  TAILQ_INSERT_TAIL(&self->queue, request, link);
  work_submit_unlock(self);
}

static void uring_cancel(void *user, const ladei_pipe_storage_file *file) {
  uring *self = user;
  ladei_pipe_storage_request *request;
  ladei_lock_acquire(&self->lock);
  TAILQ_FOREACH (request, &self->kernel, link)
    if (request->file == file && !request->asked) request_mark(self, request);
  ladei_lock_release(&self->lock);
}

static void uring_push(void *user) {
  uring *self = user;
  ladei_lock_acquire(&self->lock);
  work_submit_unlock(self);
}

/* --- cancelling again --------------------------------------------------------------------------------------------- */

/* Marks cancelled requests that are still in the kernel. */
static void asked_mark(uring *self) {
  ladei_lock_assert_held(&self->lock);
  ladei_pipe_storage_request *request;
  TAILQ_FOREACH (request, &self->kernel, link) {
    if (!request->asked) continue;
    request->cancel = true;
    self->cancels = true;
  }
  self->again_ns = 0; /* until they go to the kernel */
  if (self->pause_ns < pause_most_ns) self->pause_ns *= 2;
}

/* The reaper repeats the cancellations that are due (I6). */
static void cancels_repeat(uring *self) {
  uint64_t again_ns = self->again_ns;
  if (again_ns == 0 || ladei_clock_ns(CLOCK_MONOTONIC) < again_ns) return;
  ladei_lock_acquire(&self->lock);
  if (self->unanswered == 0) asked_mark(self);
  work_submit_unlock(self);
}

/* How long the reaper may wait. An answer that is still to come wakes it. */
static uint64_t wait_until_again(uring *self, uint64_t wait_ns) {
  uint64_t again_ns = self->again_ns;
  if (again_ns == 0) return wait_ns;
  ladei_lock_acquire(&self->lock);
  bool answered = self->unanswered == 0;
  ladei_lock_release(&self->lock);
  uint64_t now = ladei_clock_ns(CLOCK_MONOTONIC);
  uint64_t left_ns = again_ns > now ? again_ns - now : 0;
  return answered && left_ns < wait_ns ? left_ns : wait_ns;
}

/* The kernel's answer to a cancellation; its result does not count. */
static void cancel_answered(uring *self) {
  ladei_lock_acquire(&self->lock);
  self->unanswered--;
  ladei_lock_release(&self->lock);
}

/* --- reaping ------------------------------------------------------------------------------------------------------ */

/* The kernel has ended a call. True: the request is over. */
static bool completion_take(uring *self, ladei_pipe_storage_request *request, int result) {
  ladei_lock_acquire(&self->lock);
  kernel_remove(self, request);
  ladei_lock_release(&self->lock);
  if (result == -EAGAIN && !request->punt) {
    request->punt = true; /* it cannot be done without waiting: let a thread of the kernel wait */
    request->status = LADE_NOT_READY;
  } else {
    request->status = ladei_pipe_storage_call_done(request, result);
  }
  if (request->status == LADE_NOT_READY) {
    uring_submit(self, request);
    return false;
  }
  if (request->status != LADE_OK) ladei_error_save(&request->error);
  return true;
}

static unsigned completions_take(uring *self, ladei_pipe_storage_request **out, unsigned room) {
  struct io_uring_cqe *cqe;
  unsigned count = 0;
  while (count < room && io_uring_peek_cqe(&self->ring, &cqe) == 0) {
    ladei_pipe_storage_request *request = io_uring_cqe_get_data(cqe);
    int result = cqe->res;
    io_uring_cqe_seen(&self->ring, cqe);
    if (request == NULL)
      cancel_answered(self);
    else if (completion_take(self, request, result))
      out[count++] = request;
  }
  ladei_lock_acquire(&self->lock);
  while (count < room && !TAILQ_EMPTY(&self->done)) {
    out[count] = TAILQ_FIRST(&self->done);
    TAILQ_REMOVE(&self->done, out[count], link);
    count++;
  }
  ladei_lock_release(&self->lock);
  return count;
}

static unsigned uring_reap(void *user, uint64_t wait_ns, ladei_pipe_storage_request **out, unsigned room) {
  uring *self = user;
  unsigned count = completions_take(self, out, room);
  cancels_repeat(self);
  if (count > 0 || wait_ns == 0) return count;
  wait_ns = wait_until_again(self, wait_ns);
  struct pollfd ends[] = {{self->ring.ring_fd, POLLIN, 0}, {self->event, POLLIN, 0}};
  struct timespec timeout = {(time_t)(wait_ns / 1000000000u), (long)(wait_ns % 1000000000u)};
  (void)ppoll(ends, 2, wait_ns == UINT64_MAX ? NULL : &timeout, NULL);
  if ((ends[1].revents & POLLIN) != 0) {
    eventfd_t value;
    (void)eventfd_read(self->event, &value);
  }
  return completions_take(self, out, room);
}

static void uring_wake(void *user) {
  uring *self = user;
  (void)eventfd_write(self->event, 1);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static lade_status refused(int code) {
  const char *why = "";
  char text[128];
  switch (code) {
  case ENOSYS: why = ": the kernel has none, or a sandbox hides it"; break;
  case EPERM:
  case EACCES: why = ": a sandbox or kernel.io_uring_disabled forbids it"; break;
  case ENOMEM: why = ": over the limit of locked memory"; break;
  default: break;
  }
  return ladei_error(LADE_ERR_UNSUPPORTED, code, "no io_uring%s (%s)", why, strerror_r(code, text, sizeof text));
}

static void uring_destroy(void *user) {
  uring *self = user;
  if (self->ring.ring_fd >= 0) io_uring_queue_exit(&self->ring);
  if (self->event >= 0) close(self->event);
  ladei_lock_destroy(&self->lock);
  free(self->blocks);
  free(self->prepared);
  free(self);
}

static uring *uring_new(unsigned blocks) {
  uring *self = calloc(1, sizeof *self);
  if (self == NULL) return NULL;
  self->ring.ring_fd = -1;
  self->event = -1;
  ladei_lock_init(&self->lock, LADEI_RANK_LEAF);
  TAILQ_INIT(&self->queue);
  TAILQ_INIT(&self->kernel);
  TAILQ_INIT(&self->done);
  self->block_count = blocks;
  self->blocks = calloc(blocks, sizeof *self->blocks);
  if (self->blocks == NULL) {
    uring_destroy(self);
    return NULL;
  }
  return self;
}

/* Tables are optional: without them the kernel looks descriptors and pages up at each request. */
static void tables_create(uring *self) {
  self->files = io_uring_register_files_sparse(&self->ring, FIXED_FILES) == 0;
  int code = io_uring_register_buffers_sparse(&self->ring, self->block_count);
  self->buffers = code == 0;
  self->buffers_code = -code;
}

static lade_status uring_create(unsigned requests, unsigned blocks, void **out) {
  unsigned entries = requests < RING_MOST ? requests : RING_MOST;
  struct io_uring_params parameters = {.flags = IORING_SETUP_CLAMP};
  uring *self = uring_new(blocks);
  if (self == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for io_uring");
  int code = io_uring_queue_init_params(entries, &self->ring, &parameters);
  if (code < 0)
    self->ring.ring_fd = -1;
  else if ((parameters.features & features_needed) != features_needed)
    code = -ENOSYS;
  else if ((self->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
    code = -errno;
  else if ((self->prepared = calloc(parameters.sq_entries, sizeof(ladei_pipe_storage_request *))) == NULL)
    code = -ENOMEM;
  if (code < 0) {
    uring_destroy(self);
    return refused(-code);
  }
  (void)io_uring_ring_dontfork(&self->ring);
  tables_create(self);
  *out = self;
  return LADE_OK;
}

const ladei_pipe_storage_engine ladei_pipe_storage_uring = {
    .kind = LADE_STORAGE_URING,
    .create = uring_create,
    .destroy = uring_destroy,
    .file_add = uring_file_add,
    .file_remove = uring_file_remove,
    .submit = uring_submit,
    .reap = uring_reap,
    .wake = uring_wake,
    .cancel = uring_cancel,
    .push = uring_push,
    .block_forget = uring_block_forget,
    .blocks_registered = uring_blocks_registered,
};
