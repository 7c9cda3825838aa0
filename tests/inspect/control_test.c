/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control of a publishing process: snapshots and histories from outside; who is heard; clients that say nothing, garbage, too
 * much, or go away; descriptors that are wrong, full or slow; many clients; forks, namespaces, and processes that stop or are
 * killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inspect/live/control.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/history_on.h"

/* libunwind gives a thread's cache back when the thread ends, after the thread sanitiser has given up the thread: threads that
 * end capture no stacks under it. */
#if defined(__SANITIZE_THREAD__)
enum { STACKS = LADE_CONTEXT_NEVER, STACKS_EXPECTED = 0 };
#else
enum { STACKS = LADE_CONTEXT_ALL, STACKS_EXPECTED = 4 };
#endif

/* ---- Writes and allocations that a test stands between ----------------------------------------------------------- */

static _Atomic(size_t) writes_room; /* bytes until the disk is full; 0: it is not */
static _Atomic(bool) writes_wait;   /* the first write to memory waits in the middle */
static sem_t write_has_begun, write_may_go;
static _Atomic(size_t) allocations_left; /* the last one fails; 0: none does */

ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
  struct stat stat;
  bool to_file = fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode);
  if (to_file && atomic_exchange(&writes_wait, false)) {
    sem_post(&write_has_begun);
    while (sem_wait(&write_may_go) != 0) {
    }
  }
  size_t room = atomic_load(&writes_room);
  if (to_file && room > 0) {
    if (room == 1) {
      errno = ENOSPC;
      return -1;
    }
    if (bytes > room - 1) bytes = room - 1;
    atomic_store(&writes_room, room - bytes);
  }
  return __real_write(fd, data, bytes);
}

static bool allocation_fails(void) {
  size_t left = atomic_load(&allocations_left);
  if (left == 0) return false;
  atomic_store(&allocations_left, left - 1);
  return left == 1;
}

void *__wrap_malloc(size_t bytes) { return allocation_fails() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return allocation_fails() ? NULL : __real_calloc(count, bytes); }

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

typedef struct scene {
  device_fixture f;
  lade_pinned_pool *pool;
  lade_publisher *publisher;
} scene;

static bool scene_open(scene *s, const char *runtime, uint32_t flags) {
  memset(s, 0, sizeof *s);
  bool open = strcmp(runtime, "sim") == 0 ? device_fixture_open(&s->f, runtime, 256 * MIB, NULL)
                                          : device_fixture_open_bytes(&s->f, runtime, NULL);
  if (!open) return false;
  LADE_EXPECT_OK(lade_pinned_pool_create(s->f.runtime, NULL, &s->pool));
  lade_part parts[] = {lade_part_pinned(s->pool), lade_part_device(s->f.allocator)};
  parts[1].name = "weights";
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.flags = flags;
  LADE_EXPECT_OK(lade_publish(parts, 2, &options, &s->publisher));
  return s->publisher != NULL;
}

static void scene_close(scene *s) {
  lade_publisher_destroy(s->publisher);
  LADE_EXPECT_OK(lade_pinned_pool_destroy(s->pool, false));
  device_fixture_close(&s->f);
}

static uint64_t self(void) { return (uint64_t)getpid(); }

static lade_status snapshot_of(uint64_t process_id, uint32_t wait_ms) {
  lade_snapshot *snapshot = NULL;
  lade_status status = lade_published_snapshot_take(process_id, 0, NULL, wait_ms, &snapshot);
  LADE_EXPECT((status == LADE_OK) == (snapshot != NULL));
  lade_snapshot_destroy(snapshot);
  return status;
}

static lade_status history_set(uint64_t process_id, uint32_t enabled, uint32_t level, uint32_t wait_ms) {
  lade_published_history_options options;
  lade_published_history_options_init(&options);
  options.enabled = enabled;
  options.level = level;
  return lade_published_history_set(process_id, 0, &options, wait_ms);
}

/* A child that does as `scene_main` says after it published, and is killed. 0: it could not be made. */
typedef struct child {
  pid_t pid; /* as this process knows it */
  int orders, answers;
} child;

static bool answer_await(const child *c) {
  char byte = 0;
  return read(c->answers, &byte, 1) == 1 && byte == 'y';
}

static void child_main(int answers, int orders, void (*enter)(void), void (*obey)(scene *s, char order)) {
  scene s;
  if (enter != NULL) enter();
  char answer = scene_open(&s, "cpu", LADE_PUBLISH_CONTROL) ? 'y' : 'n', order;
  if (write(answers, &answer, 1) != 1) _exit(1);
  while (read(orders, &order, 1) == 1) {
    obey(&s, order);
    if (write(answers, "y", 1) != 1) _exit(1);
  }
  for (;;) pause();
}

static bool child_start(child *c, void (*enter)(void), void (*obey)(scene *s, char order)) {
  int orders[2], answers[2];
  if (pipe(orders) != 0 || pipe(answers) != 0) return false;
  c->pid = fork();
  if (c->pid == 0) {
    close(orders[1]);
    close(answers[0]);
    child_main(answers[1], orders[0], enter, obey);
  }
  close(orders[0]);
  close(answers[1]);
  c->orders = orders[1];
  c->answers = answers[0];
  return answer_await(c);
}

static void child_order(const child *c, char order) {
  LADE_EXPECT_EQ_INT((int)write(c->orders, &order, 1), 1);
  LADE_EXPECT(answer_await(c));
}

static void child_kill(child *c) {
  kill(c->pid, SIGKILL);
  waitpid(c->pid, NULL, 0);
  close(c->orders);
  close(c->answers);
}

/* ---- What a client gets ------------------------------------------------------------------------------------------ */

static uint64_t blocks_in_use(const lade_snapshot *snapshot, uint64_t requested_bytes) {
  uint64_t count = 0;
  for (size_t i = 0; i < snapshot->blocks.count; i++)
    count += snapshot->blocks.rows[i].state == LADE_DEVICE_BLOCK_ALLOCATED &&
             snapshot->blocks.rows[i].requested_bytes == requested_bytes;
  return count;
}

/* Blocks of all parts, names, counters: as a snapshot that the process takes itself. */
LADE_TEST(Control, GivesAWholeSnapshot) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  char *block = device_fixture_alloc(&s.f, 12345, 0);
  void *pinned = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(s.pool, 54321, &pinned));
  lade_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(lade_published_snapshot_take(self(), 0, NULL, 0, &snapshot));
  LADE_EXPECT_EQ_UINT(snapshot->parts.count, 2);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, snapshot->parts.rows[1].name), "weights");
  LADE_EXPECT_EQ_UINT(blocks_in_use(snapshot, 12345), 1);
  LADE_EXPECT_EQ_UINT(blocks_in_use(snapshot, 54321), 1);
  LADE_EXPECT_EQ_INT(ladei_inspect_counter_find(snapshot, 1, "requested_bytes.all.current", -1), 12345);
  LADE_EXPECT_EQ_UINT(snapshot->process_id, self());
  lade_snapshot_destroy(snapshot);

  lade_snapshot_options options;
  lade_snapshot_options_init(&options);
  options.flags = LADE_SNAPSHOT_NO_BLOCKS;
  LADE_ASSERT_OK(lade_published_snapshot_take(self(), 0, &options, 0, &snapshot));
  LADE_EXPECT_EQ_UINT(snapshot->blocks.count, 0);
  LADE_EXPECT(snapshot->counters.count > 122);
  lade_snapshot_destroy(snapshot);
  snapshot = NULL;
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_published_snapshot_take(self(), 1, NULL, 0, &snapshot));
  LADE_EXPECT(snapshot == NULL);
  LADE_EXPECT_OK(lade_pinned_free(s.pool, pinned));
  device_fixture_free(&s.f, block);
  scene_close(&s);
}

LADE_TEST(Control, IsAskedFor) {
  scene s;
  if (!scene_open(&s, "cpu", 0)) return;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, snapshot_of(self(), 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "LADE_PUBLISH_CONTROL");
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, history_set(self(), 1, 0, 0));
  scene_close(&s);
}

static uint64_t events_with_stacks(uint64_t *out_events) {
  lade_snapshot *snapshot = NULL;
  uint64_t with = 0;
  *out_events = 0;
  LADE_EXPECT_OK(lade_published_snapshot_take(self(), 0, NULL, 0, &snapshot));
  if (snapshot == NULL) return 0;
  *out_events = snapshot->events.count;
  for (size_t i = 0; i < snapshot->events.count; i++) with += snapshot->events.rows[i].stack != LADEI_SNAPSHOT_NONE;
  lade_snapshot_destroy(snapshot);
  return with;
}

LADE_TEST(Control, TurnsHistoriesOnAndOff) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  uint64_t events;
  device_fixture_free(&s.f, device_fixture_alloc(&s.f, 5000, 0));
  LADE_EXPECT_EQ_UINT(events_with_stacks(&events), 0);
  LADE_EXPECT_EQ_UINT(events, 0);

  LADE_EXPECT_OK(history_set(self(), 1, LADE_CONTEXT_NEVER, 0));
  device_fixture_free(&s.f, device_fixture_alloc(&s.f, 5000, 0));
  LADE_EXPECT_EQ_UINT(events_with_stacks(&events), 0);
  LADE_EXPECT(events >= 3);

  LADE_EXPECT_OK(history_set(self(), 1, STACKS, 0));
  void *pinned = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(s.pool, 54321, &pinned));
  LADE_EXPECT_OK(lade_pinned_free(s.pool, pinned));
  device_fixture_free(&s.f, device_fixture_alloc(&s.f, 5000, 0));
  uint64_t with = events_with_stacks(&events);
  LADE_EXPECT(with + 1 > STACKS_EXPECTED);
  LADE_EXPECT(events >= 6);

  LADE_EXPECT_OK(history_set(self(), 0, 0, 0));
  LADE_EXPECT(!support_device_history_on(s.f.allocator));
  LADE_EXPECT(!support_pinned_history_on(s.pool));
  LADE_EXPECT_EQ_UINT(events_with_stacks(&events), 0);
  LADE_EXPECT_EQ_UINT(events, 0);
  scene_close(&s);
}

static void histories_expect(const scene *s, bool wanted) {
  LADE_EXPECT_EQ_INT(support_device_history_on(s->f.allocator), wanted);
  LADE_EXPECT_EQ_INT(support_pinned_history_on(s->pool), wanted);
}

/* Each allocation of the call fails in turn, on either side: both histories are on afterwards, or none is. */
LADE_TEST(Control, SetsAllHistoriesOrNone) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  size_t failures = 0;
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  for (size_t number = 1; status != LADE_OK && number < 1000; number++) {
    atomic_store(&allocations_left, number);
    status = history_set(self(), 1, LADE_CONTEXT_NEVER, 60000);
    atomic_store(&allocations_left, 0);
    failures += status != LADE_OK;
    histories_expect(&s, status == LADE_OK);
  }
  LADE_EXPECT_OK(status);
  LADE_EXPECT(failures > 10);
  lade_published_history_options options;
  lade_published_history_options_init(&options);
  options.enabled = 1;
  options.level = 9;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_published_history_set(self(), 0, &options, 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "level is 9");
  histories_expect(&s, true);
  LADE_EXPECT_OK(history_set(self(), 0, 0, 0));
  histories_expect(&s, false);
  scene_close(&s);
}

/* ---- By hand ----------------------------------------------------------------------------------------------------- */

typedef struct client {
  pthread_t thread;
  uint32_t wait_ms;
  uint64_t process_id;
  _Atomic(bool) done;
  lade_status status;
  char text[496];
} client;

static void *client_main(void *user) {
  client *c = user;
  c->status = snapshot_of(c->process_id, c->wait_ms);
  snprintf(c->text, sizeof c->text, "%s", lade_last_error()->text);
  atomic_store(&c->done, true);
  return NULL;
}

static void client_start(client *c, uint64_t process_id, uint32_t wait_ms) {
  *c = (client){.process_id = process_id, .wait_ms = wait_ms};
  if (pthread_create(&c->thread, NULL, client_main, c) != 0) abort();
}

/* CT6: on "sim" the calls on the parts are made by the thread that updates, and by no other. */
LADE_TEST(Control, OfSimWaitsForAnUpdate) {
  scene s;
  if (!scene_open(&s, "sim", LADE_PUBLISH_CONTROL)) return;
  client c;
  client_start(&c, self(), 60000);
  while (!atomic_load(&c.done)) {
    LADE_EXPECT_OK(lade_publish_update(s.publisher));
    sched_yield();
  }
  pthread_join(c.thread, NULL);
  LADE_EXPECT_OK(c.status);
  /* Nobody updates. */
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, snapshot_of(self(), 50));
  client_start(&c, self(), 60000);
  lade_publisher_destroy(s.publisher);
  s.publisher = NULL;
  pthread_join(c.thread, NULL);
  /* It came before the end, in the middle of it, or after it. */
  LADE_EXPECT(c.status == LADE_ERR_CANCELLED || c.status == LADE_ERR_IO || c.status == LADE_NOT_READY);
  scene_close(&s);
}

/* ---- Clients that are not as they should be ---------------------------------------------------------------------- */

static void control_name(uint64_t process_id, char out[LADEI_PUBLISHED_CONTROL_BYTES]) {
  ladei_published_about about;
  lade_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(ladei_published_find(process_id, 0, &about, &snapshot));
  lade_snapshot_destroy(snapshot);
  memcpy(out, about.control, LADEI_PUBLISHED_CONTROL_BYTES);
}

static int raw_connect(const char *name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path + 1, name, strlen(name));
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  if (connect(fd, (const struct sockaddr *)&address, length) == 0) return fd;
  close(fd);
  return -1;
}

static int raw_connect_self(void) {
  char name[LADEI_PUBLISHED_CONTROL_BYTES];
  control_name(self(), name);
  int fd = raw_connect(name);
  LADE_EXPECT(fd >= 0);
  return fd;
}

static void raw_send(int socket, const void *data, size_t bytes, const int *fds, size_t count) {
  union {
    struct cmsghdr head;
    char room[CMSG_SPACE(64 * sizeof(int))];
  } control;
  struct iovec iov = {(void *)(uintptr_t)data, bytes};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  memset(&control, 0, sizeof control);
  if (count > 0) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(head), fds, count * sizeof(int));
  }
  LADE_EXPECT_EQ_INT((int)sendmsg(socket, &message, MSG_NOSIGNAL), (int)bytes);
}

/* What the publisher answers; the reply's status, and its text in `reply`. */
static lade_status raw_ask(const void *data, size_t bytes, const int *fds, size_t count, ladei_control_reply *reply) {
  char answer[LADEI_CONTROL_MOST_BYTES];
  int socket = raw_connect_self();
  raw_send(socket, data, bytes, fds, count);
  ssize_t got = recv(socket, answer, sizeof answer, 0);
  LADE_EXPECT(got > 0);
  memset(reply, 0, sizeof *reply);
  LADE_EXPECT_OK(ladei_control_reply_read(answer, got > 0 ? (size_t)got : 0, reply));
  close(socket);
  return (lade_status)reply->status;
}

static size_t open_descriptors(void) {
  size_t count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* The publisher closes a connection after its answer: so it is waited for. */
static bool open_descriptors_become(size_t wanted) {
  for (int i = 0; i < 10000 && open_descriptors() != wanted; i++) usleep(1000);
  return open_descriptors() == wanted;
}

/* CT2, CT4: each is answered with what is wrong, keeps no descriptor, and leaves the publisher to others. */
LADE_TEST(Control, SaysWhatIsWrongWithARequest) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  size_t before = open_descriptors();
  ladei_control_request good, changed;
  ladei_control_reply reply;
  ladei_control_request_init(&good, LADEI_CONTROL_SNAPSHOT);
  good.wait_ms = 1000;
  int memory = memfd_create("test", MFD_CLOEXEC);
  int two[] = {memory, memory}, twenty[20];
  for (int i = 0; i < 20; i++) twenty[i] = memory;

  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask("garbage that is long enough", 28, NULL, 0, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "magic");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask("x", 1, NULL, 0, &reply));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good - 8, &memory, 1, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "length");
  changed = good;
  changed.version = 2;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, raw_ask(&changed, sizeof changed, &memory, 1, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "version 2; expected 1");
  changed = good;
  changed.command = 77;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, raw_ask(&changed, sizeof changed, &memory, 1, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "command is 77");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good, NULL, 0, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "0 descriptors came; expected 1");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good, two, 2, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "2 descriptors came; expected 1");
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good, twenty, 20, &reply));
  char much[LADEI_CONTROL_MOST_BYTES + 100] = {0};
  memcpy(much, &good, sizeof good);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(much, sizeof much, &memory, 1, &reply));

  /* A newer client's request: what is unknown here and zero is no matter, else it is refused. */
  ((ladei_control_request *)(void *)much)->bytes = sizeof good + 8;
  LADE_EXPECT_OK(raw_ask(much, sizeof good + 8, &memory, 1, &reply));
  much[sizeof good + 3] = 1;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, raw_ask(much, sizeof good + 8, &memory, 1, &reply));
  /* An older client's: what is missing is zero. */
  changed = good;
  changed.bytes = offsetof(ladei_control_request, enabled);
  LADE_EXPECT_OK(raw_ask(&changed, changed.bytes, &memory, 1, &reply));
  LADE_EXPECT(reply.written > 1000);

  LADE_EXPECT_OK(snapshot_of(self(), 0));
  close(memory);
  LADE_EXPECT(open_descriptors_become(before));
  scene_close(&s);
}

/* CT3: a pipe that nobody reads, a socket, a device, what is not open for writing, what may not grow. */
LADE_TEST(Control, WritesIntoRegularFilesAlone) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  ladei_control_request good;
  ladei_control_reply reply;
  ladei_control_request_init(&good, LADEI_CONTROL_SNAPSHOT);
  int pipes[2], sockets[2];
  LADE_ASSERT_EQ_INT(pipe(pipes), 0);
  LADE_ASSERT_EQ_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  int others[] = {pipes[1], sockets[0], open("/dev/zero", O_RDWR | O_CLOEXEC),
                  open("/proc/self", O_RDONLY | O_CLOEXEC)};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good, &others[i], 1, &reply));
    LADE_EXPECT_CONTAINS_STR(reply.text, "expected a regular one");
  }
  int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, raw_ask(&good, sizeof good, &exe, 1, &reply));
  LADE_EXPECT_CONTAINS_STR(reply.text, "not open for writing");
  int sealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  LADE_EXPECT_EQ_INT(fcntl(sealed, F_ADD_SEALS, F_SEAL_GROW), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, raw_ask(&good, sizeof good, &sealed, 1, &reply));
  LADE_EXPECT_EQ_INT(reply.native_code, EPERM);
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  close(exe);
  close(sealed);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) close(others[i]);
  close(pipes[0]);
  close(sockets[1]);
  scene_close(&s);
}

/* The disk is full after each number of bytes up to some: the client hears it, and the next one is served. */
LADE_TEST(Control, SaysThatTheDiskIsFull) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  for (size_t room = 1; room < 4000; room = room * 3 + 1) {
    atomic_store(&writes_room, room);
    LADE_EXPECT_STATUS(LADE_ERR_IO, snapshot_of(self(), 0));
    LADE_EXPECT_EQ_INT(lade_last_error()->native_code, ENOSPC);
    atomic_store(&writes_room, 0);
  }
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  scene_close(&s);
}

/* Some say nothing, some go away with a request under way; who asks is served all the same, and the silent are sent away. */
LADE_TEST(Control, LeavesSilentClientsAlone) {
  enum { SILENT = 150 };
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  int silent[SILENT], memory = memfd_create("test", MFD_CLOEXEC);
  ladei_control_request good;
  ladei_control_request_init(&good, LADEI_CONTROL_SNAPSHOT);
  for (int i = 0; i < SILENT; i++) silent[i] = raw_connect_self();
  LADE_EXPECT_OK(snapshot_of(self(), 60000));
  for (int i = 0; i < 20; i++) {
    int socket = raw_connect_self();
    raw_send(socket, &good, sizeof good, &memory, 1);
    close(socket);
  }
  LADE_EXPECT_OK(snapshot_of(self(), 60000));
  for (int i = 0; i < SILENT; i++) {
    char byte;
    LADE_EXPECT(recv(silent[i], &byte, 1, 0) <= 0);
    close(silent[i]);
  }
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  close(memory);
  scene_close(&s);
}

LADE_TEST(Control, ServesAHundredClients) {
  enum { CLIENTS = 100 };
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  char *block = device_fixture_alloc(&s.f, 4096, 0);
  static client clients[CLIENTS];
  for (int i = 0; i < CLIENTS; i++) client_start(&clients[i], self(), 120000);
  for (int i = 0; i < CLIENTS; i++) {
    pthread_join(clients[i].thread, NULL);
    LADE_EXPECT_OK(clients[i].status);
    if (clients[i].status != LADE_OK) fprintf(stderr, "%s\n", clients[i].text);
  }
  device_fixture_free(&s.f, block);
  scene_close(&s);
}

/* ---- Ends -------------------------------------------------------------------------------------------------------- */

static void *destroy_main(void *user) {
  lade_publisher_destroy(user);
  return NULL;
}

/* A snapshot is in the middle of being written when the publisher is destroyed. */
LADE_TEST(Control, IsDestroyedWhileASnapshotIsWritten) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  LADE_ASSERT_EQ_INT(sem_init(&write_has_begun, 0, 0), 0);
  LADE_ASSERT_EQ_INT(sem_init(&write_may_go, 0, 0), 0);
  atomic_store(&writes_wait, true);
  client c;
  client_start(&c, self(), 60000);
  while (sem_wait(&write_has_begun) != 0) {
  }
  pthread_t destroyer;
  LADE_ASSERT_EQ_INT(pthread_create(&destroyer, NULL, destroy_main, s.publisher), 0);
  sem_post(&write_may_go);
  pthread_join(destroyer, NULL);
  s.publisher = NULL;
  pthread_join(c.thread, NULL);
  LADE_EXPECT(c.status == LADE_OK || c.status == LADE_ERR_CANCELLED);
  LADE_EXPECT_STATUS(LADE_NOT_READY, snapshot_of(self(), 0));
  scene_close(&s);
}

/* CT5 */
LADE_TEST(Control, IsTheParentsAfterAFork) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  int ready[2], end[2];
  LADE_ASSERT_EQ_INT(pipe(ready), 0);
  LADE_ASSERT_EQ_INT(pipe(end), 0);
  pid_t forked = fork();
  if (forked == 0) {
    char byte = lade_publish_update(s.publisher) == LADE_ERR_FORKED ? 'y' : 'n';
    lade_publisher_destroy(s.publisher);
    if (write(ready[1], &byte, 1) != 1 || read(end[0], &byte, 1) != 1) _exit(1);
    _exit(0);
  }
  char byte = 0;
  LADE_EXPECT_EQ_INT((int)read(ready[0], &byte, 1), 1);
  LADE_EXPECT_EQ_INT(byte, 'y');
  LADE_EXPECT_STATUS(LADE_NOT_READY, snapshot_of((uint64_t)forked, 0));
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  LADE_EXPECT_EQ_INT((int)write(end[1], "x", 1), 1);
  LADE_EXPECT_EQ_INT(waitpid(forked, NULL, 0), forked);
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  for (int i = 0; i < 2; i++) {
    close(ready[i]);
    close(end[i]);
  }
  scene_close(&s);
}

/* Each allocation of publishing with control fails in turn: nothing is left, no thread and no descriptor. */
LADE_TEST(Control, LeavesNothingWhenThereIsNoMemory) {
  device_fixture f;
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  const lade_part part = lade_part_device(f.allocator);
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.flags = LADE_PUBLISH_CONTROL;
  size_t before = open_descriptors();
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  size_t failures = 0;
  for (size_t number = 1; status != LADE_OK && number < 1000; number++) {
    lade_publisher *publisher = NULL;
    atomic_store(&allocations_left, number);
    status = lade_publish(&part, 1, &options, &publisher);
    atomic_store(&allocations_left, 0);
    LADE_EXPECT((status == LADE_OK) == (publisher != NULL));
    failures += status != LADE_OK;
    lade_publisher_destroy(publisher);
    LADE_EXPECT_EQ_UINT(open_descriptors(), before);
  }
  LADE_EXPECT_OK(status);
  LADE_EXPECT(failures >= 4);
  device_fixture_close(&f);
}

static bool socket_is_there(const char *name) {
  FILE *file = fopen("/proc/net/unix", "r");
  char line[512];
  bool found = false;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) found = found || strstr(line, name) != NULL;
  if (file != NULL) fclose(file);
  return found;
}

static void nothing_obey(scene *s, char order) {
  (void)s;
  (void)order;
}

LADE_TEST(Control, LeavesNothingOfAKilledProcess) {
  child c;
  LADE_ASSERT(child_start(&c, NULL, nothing_obey));
  char name[LADEI_PUBLISHED_CONTROL_BYTES];
  control_name((uint64_t)c.pid, name);
  LADE_EXPECT_OK(snapshot_of((uint64_t)c.pid, 0));
  LADE_EXPECT(socket_is_there(name));
  child_kill(&c);
  LADE_EXPECT(!socket_is_there(name));
  LADE_EXPECT_STATUS(LADE_ERR_IO, snapshot_of((uint64_t)c.pid, 0));
}

/* A process that stands still answers nobody: the client's time is over some day, and later it is served again. */
LADE_TEST(Control, DoesNotWaitForeverForAStoppedProcess) {
  child c;
  LADE_ASSERT(child_start(&c, NULL, nothing_obey));
  int status = 0;
  kill(c.pid, SIGSTOP);
  LADE_ASSERT(waitpid(c.pid, &status, WUNTRACED) == c.pid && WIFSTOPPED(status)); /* all of its threads */
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, snapshot_of((uint64_t)c.pid, 100));
  kill(c.pid, SIGCONT);
  LADE_EXPECT_OK(snapshot_of((uint64_t)c.pid, 60000));
  child_kill(&c);
}

static void files_obey(scene *s, char order) {
  (void)s;
  struct rlimit limit;
  getrlimit(order == 's' ? RLIMIT_FSIZE : RLIMIT_NOFILE, &limit);
  static rlim_t files;
  switch (order) {
  case 'l': /* no descriptor more than there are */
    files = limit.rlim_cur;
    limit.rlim_cur = 3;
    break;
  case 'm': limit.rlim_cur = files; break;
  default: limit.rlim_cur = 4096; break;
  }
  setrlimit(order == 's' ? RLIMIT_FSIZE : RLIMIT_NOFILE, &limit);
}

/* A process that may open no descriptor more loses no client for good; and a file that would grow beyond its limit is an
 * error, and no signal that ends it (CT4). */
LADE_TEST(Control, LivesWithTheLimitsOfItsProcess) {
  child c;
  LADE_ASSERT(child_start(&c, NULL, files_obey));
  child_order(&c, 'l');
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, snapshot_of((uint64_t)c.pid, 200));
  child_order(&c, 'm');
  LADE_EXPECT_OK(snapshot_of((uint64_t)c.pid, 60000));
  child_order(&c, 's');
  LADE_EXPECT_STATUS(LADE_ERR_IO, snapshot_of((uint64_t)c.pid, 0));
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EFBIG);
  LADE_EXPECT_EQ_INT(waitpid(c.pid, NULL, WNOHANG), 0);
  child_kill(&c);
}

/* ---- Who is heard ------------------------------------------------------------------------------------------------ */

LADE_TEST(Control, HearsTheSameUserAndRoot) {
  LADE_EXPECT(ladei_control_peer_may(0, 1000));
  LADE_EXPECT(ladei_control_peer_may(1000, 1000));
  LADE_EXPECT(!ladei_control_peer_may(1001, 1000));
  LADE_EXPECT(!ladei_control_peer_may(1000, 0));
  /* Users that this namespace does not know all look like nobody. */
  LADE_EXPECT(!ladei_control_peer_may(65534, 65534));
  LADE_EXPECT(ladei_control_peer_may(0, 65534));
}

/* CT1: another user finds the socket, and is sent away before it has said anything. */
LADE_TEST(Control, SendsOtherUsersAway) {
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  char name[LADEI_PUBLISHED_CONTROL_BYTES];
  control_name(self(), name);
  pid_t other = fork();
  if (other == 0) {
    char answer[LADEI_CONTROL_MOST_BYTES];
    ladei_control_reply reply;
    if (setgid(12345) != 0 || setuid(12345) != 0) _exit(77);
    int socket = raw_connect(name);
    if (socket < 0) _exit(2);
    ssize_t bytes = recv(socket, answer, sizeof answer, 0);
    if (bytes <= 0 || ladei_control_reply_read(answer, (size_t)bytes, &reply) != LADE_OK) _exit(3);
    if (reply.status != LADE_ERR_IO || reply.native_code != EACCES) _exit(4);
    _exit(recv(socket, answer, sizeof answer, 0) == 0 ? 0 : 5);
  }
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(other, &status, 0), other);
  LADE_EXPECT_OK(snapshot_of(self(), 0));
  scene_close(&s);
  LADE_EXPECT(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) LADE_SKIP("this user may not become another one");
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}

/* A page that names another process's socket: the client notices who answers. */
LADE_TEST(Control, NoticesWhoAnswers) {
  child c;
  LADE_ASSERT(child_start(&c, NULL, nothing_obey));
  char path[64];
  int published = -1;
  for (int fd = 3; fd < 100 && published < 0; fd++) {
    char target[100];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)c.pid, fd);
    ssize_t bytes = readlink(path, target, sizeof target - 1);
    target[bytes < 0 ? 0 : bytes] = '\0';
    if (strstr(target, LADEI_PUBLISHED_NAME) != NULL) published = open(path, O_RDONLY | O_CLOEXEC);
  }
  LADE_ASSERT(published >= 0);
  off_t bytes = lseek(published, 0, SEEK_END);
  ladei_published_header *page = malloc((size_t)bytes);
  LADE_ASSERT_EQ_INT((int)pread(published, page, (size_t)bytes, 0), (int)bytes);
  page->process_id = self();
  int memory = memfd_create(LADEI_PUBLISHED_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  LADE_EXPECT_EQ_INT((int)write(memory, page, (size_t)bytes), (int)bytes);
  LADE_EXPECT_EQ_INT(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, snapshot_of(self(), 0));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "answered by process");
  free(page);
  close(published);
  close(memory);
  child_kill(&c);
}

/* ---- Containers -------------------------------------------------------------------------------------------------- */

static void network_enter(void) {
  if (unshare(CLONE_NEWNET) != 0) _exit(77);
}

/* Note [Network namespaces] */
LADE_TEST(Control, ReachesAnotherNetworkNamespace) {
  child c;
  if (!child_start(&c, network_enter, nothing_obey)) {
    child_kill(&c);
    LADE_SKIP("this user may not make a network namespace");
  }
  char name[LADEI_PUBLISHED_CONTROL_BYTES];
  control_name((uint64_t)c.pid, name);
  LADE_EXPECT_EQ_INT(raw_connect(name), -1); /* from here it is not there */
  LADE_EXPECT_OK(snapshot_of((uint64_t)c.pid, 60000));
  LADE_EXPECT_OK(history_set((uint64_t)c.pid, 1, LADE_CONTEXT_NEVER, 60000));
  child_kill(&c);
}

/* In a namespace of processes of its own it knows another id than the one by which it is asked. */
LADE_TEST(Control, FindsAProcessByItsIdOutside) {
  pid_t between = fork();
  if (between == 0) {
    child c;
    if (unshare(CLONE_NEWPID) != 0) _exit(77);
    if (!child_start(&c, NULL, nothing_obey)) _exit(2); /* as 1 */
    lade_status status = snapshot_of((uint64_t)c.pid, 60000);
    lade_snapshot *snapshot = NULL;
    if (status == LADE_OK) status = lade_published_read((uint64_t)c.pid, 0, &snapshot);
    bool right = status == LADE_OK && snapshot->process_id == (uint64_t)c.pid;
    child_kill(&c);
    _exit(right ? 0 : 3);
  }
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(between, &status, 0), between);
  LADE_EXPECT(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) LADE_SKIP("this user may not make a namespace of processes");
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
}

LADE_TEST(Published, ReadsTheIdThatAProcessKnows) {
  LADE_EXPECT_EQ_UINT(ladei_published_own_id("Name:\tx\nPid:\t12\nNSpid:\t12\t7\t1\nVmPeak:\t3 kB\n", 5), 1);
  LADE_EXPECT_EQ_UINT(ladei_published_own_id("Pid:\t12\nNSpid:\t12\nNSpgid:\t99\n", 5), 12);
  LADE_EXPECT_EQ_UINT(ladei_published_own_id("Pid:\t12\nNSpid:\t12", 5), 12);
  LADE_EXPECT_EQ_UINT(ladei_published_own_id("Pid:\t12\nNSpid:\n", 5), 5);
  LADE_EXPECT_EQ_UINT(ladei_published_own_id("", 5), 5);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct churn {
  scene *s;
  int stream;
  _Atomic(bool) *stop;
} churn;

static void *churn_main(void *user) {
  churn *c = user;
  while (!atomic_load(c->stop)) {
    void *block = NULL, *pinned = NULL;
    LADE_EXPECT_OK(lade_device_alloc(c->s->f.allocator, 4096, c->s->f.streams[c->stream], &block));
    LADE_EXPECT_OK(lade_pinned_alloc(c->s->pool, 4096, &pinned));
    LADE_EXPECT_OK(lade_device_free(c->s->f.allocator, block));
    LADE_EXPECT_OK(lade_pinned_free(c->s->pool, pinned));
  }
  return NULL;
}

/* Histories and publishing come and go, and snapshots are taken, while four threads allocate. */
LADE_TEST(Control, WorksWhileFourThreadsAllocate) {
  enum { THREADS = 4, ROUNDS = 10 };
  scene s;
  if (!scene_open(&s, "cpu", LADE_PUBLISH_CONTROL)) return;
  _Atomic(bool) stop = false;
  churn churns[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    churns[i] = (churn){&s, i, &stop};
    LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, churn_main, &churns[i]), 0);
  }
  const lade_part parts[] = {lade_part_pinned(s.pool), lade_part_device(s.f.allocator)};
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.flags = LADE_PUBLISH_CONTROL;
  options.interval_ms = 10;
  lade_published_history_options history;
  lade_published_history_options_init(&history);
  history.max_entries = 1000;
  for (int i = 0; i < ROUNDS; i++) {
    lade_publisher *other = NULL;
    history.enabled = 1;
    history.level = i % 2 == 0 ? (uint32_t)STACKS : LADE_CONTEXT_NEVER;
    LADE_EXPECT_OK(lade_published_history_set(self(), 0, &history, 60000));
    LADE_EXPECT_OK(lade_publish(parts, 2, &options, &other));
    LADE_EXPECT_OK(snapshot_of(self(), 60000));
    history.enabled = 0;
    LADE_EXPECT_OK(lade_published_history_set(self(), 1, &history, 60000));
    lade_publisher_destroy(other);
  }
  atomic_store(&stop, true);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  scene_close(&s);
}
