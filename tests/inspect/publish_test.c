/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Published counters: what readers get, in this process and from another one; that nobody can write or cut what is published;
 * memory that is torn, foreign, of another version, or anything; forks; processes that are killed.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "inspect/live/published.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"

static int64_t counter(const lade_snapshot *snapshot, const char *key) {
  return ladei_inspect_counter_find(snapshot, 0, key, -12345);
}

static lade_snapshot *read_self(uint32_t index) {
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_published_read((uint64_t)getpid(), index, &snapshot));
  return snapshot;
}

/* A descriptor of what this process publishes, as another one finds it; -1: nothing. */
static int published_fd(int flags) {
  DIR *folder = opendir("/proc/self/fd");
  int found = -1;
  for (struct dirent *entry; found < 0 && (entry = readdir(folder)) != NULL;) {
    char target[100], path[300];
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t bytes = readlink(path, target, sizeof target - 1);
    if (bytes < 0) continue;
    target[bytes] = '\0';
    if (strstr(target, LADEI_PUBLISHED_NAME) != NULL) found = open(path, flags | O_CLOEXEC);
  }
  closedir(folder);
  return found;
}

typedef struct scene {
  device_fixture f;
  lade_publisher *publisher;
} scene;

static bool scene_open(scene *s) {
  s->publisher = NULL;
  if (!device_fixture_open(&s->f, "sim", 256 * MIB, NULL)) return false;
  lade_part part = lade_part_device(s->f.allocator);
  part.name = "weights";
  LADE_EXPECT_OK(lade_publish(&part, 1, NULL, &s->publisher));
  return s->publisher != NULL;
}

static void scene_close(scene *s) {
  lade_publisher_destroy(s->publisher);
  device_fixture_close(&s->f);
}

LADE_TEST(Publish, ShowsTheCountersOfTheLastRefresh) {
  scene s;
  if (!scene_open(&s)) return;
  char *block = device_fixture_alloc(&s.f, 1000, 0);
  lade_snapshot *snapshot = read_self(0);
  LADE_EXPECT_EQ_INT(counter(snapshot, "requested_bytes.all.current"), 0);
  LADE_EXPECT_EQ_STR(ladei_inspect_string(snapshot, snapshot->parts.rows[0].name), "weights");
  LADE_EXPECT_EQ_UINT(snapshot->process_id, (uint64_t)getpid());
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_OK(lade_publish_update(s.publisher));
  snapshot = read_self(0);
  LADE_EXPECT_EQ_INT(counter(snapshot, "requested_bytes.all.current"), 1000);
  LADE_EXPECT_EQ_UINT(snapshot->parts.rows[0].counter_count, 122);
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_published_read((uint64_t)getpid(), 1, &snapshot));
  device_fixture_free(&s.f, block);
  scene_close(&s);
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_published_read((uint64_t)getpid(), 0, &snapshot));
}

/* L3: what others could do with the descriptor, they are refused. */
LADE_TEST(Publish, CanBeReadAndNothingElse) {
  scene s;
  if (!scene_open(&s)) return;
  int fd = published_fd(O_RDWR);
  LADE_ASSERT(fd >= 0);
  LADE_EXPECT_EQ_INT((int)write(fd, "x", 1), -1);
  LADE_EXPECT_EQ_INT(ftruncate(fd, 0), -1);
  LADE_EXPECT_EQ_INT(ftruncate(fd, 1 << 20), -1);
  LADE_EXPECT(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  LADE_EXPECT_EQ_INT(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  close(fd);
  scene_close(&s);
}

/* P2: a child inherits the descriptor, and publishes nothing. Its calls are refused, and the parent's goes on. */
LADE_TEST(Publish, IsTheParentsAfterAFork) {
  scene s;
  if (!scene_open(&s)) return;
  int ready[2], end[2];
  LADE_ASSERT_EQ_INT(pipe(ready), 0);
  LADE_ASSERT_EQ_INT(pipe(end), 0);
  pid_t child = fork();
  if (child == 0) {
    char byte = lade_publish_update(s.publisher) == LADE_ERR_FORKED ? 'y' : 'n';
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    if (read(end[0], &byte, 1) != 1) _exit(1);
    lade_publisher_destroy(s.publisher);
    _exit(0);
  }
  char byte = 0;
  LADE_EXPECT_EQ_INT((int)read(ready[0], &byte, 1), 1);
  LADE_EXPECT_EQ_INT(byte, 'y');
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_STATUS(LADE_NOT_READY, lade_published_read((uint64_t)child, 0, &snapshot));
  LADE_EXPECT_EQ_INT((int)write(end[1], "x", 1), 1);
  int status = 0;
  LADE_EXPECT_EQ_INT(waitpid(child, &status, 0), child);
  LADE_EXPECT_EQ_INT(status, 0);
  LADE_EXPECT_OK(lade_publish_update(s.publisher));
  for (int i = 0; i < 2; i++) {
    close(ready[i]);
    close(end[i]);
  }
  scene_close(&s);
}

/* Another process publishes, is read from here, and is killed: nothing of it is left. */
LADE_TEST(Publish, ReadsAnotherProcessUntilItIsKilled) {
  int ready[2];
  LADE_ASSERT_EQ_INT(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    scene s;
    if (!scene_open(&s)) _exit(1);
    device_fixture_alloc(&s.f, 5000, 0);
    if (lade_publish_update(s.publisher) != LADE_OK || write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  LADE_EXPECT_EQ_INT((int)read(ready[0], &byte, 1), 1);
  lade_snapshot *snapshot = NULL;
  LADE_EXPECT_OK(lade_published_read((uint64_t)child, 0, &snapshot));
  if (snapshot != NULL) LADE_EXPECT_EQ_INT(counter(snapshot, "requested_bytes.all.current"), 5000);
  lade_snapshot_destroy(snapshot);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  LADE_EXPECT_STATUS(LADE_ERR_IO, lade_published_read((uint64_t)child, 0, &snapshot));
  close(ready[0]);
  close(ready[1]);
}

/* ---- Memory that is not what it should be ------------------------------------------------------------------------ */

static void *published_bytes(size_t *out_bytes) {
  int fd = published_fd(O_RDONLY);
  off_t bytes = lseek(fd, 0, SEEK_END);
  void *copy = malloc((size_t)bytes);
  LADE_EXPECT_EQ_INT((int)pread(fd, copy, (size_t)bytes, 0), (int)bytes);
  close(fd);
  *out_bytes = (size_t)bytes;
  return copy;
}

static lade_status copy_status(const void *data, size_t bytes) {
  lade_snapshot *snapshot = NULL;
  lade_status status = ladei_published_copy(data, bytes, (uint64_t)getpid(), NULL, &snapshot);
  lade_snapshot_destroy(snapshot);
  return status;
}

/* Each byte of the head changed in several ways, and each length: never more than an error. */
LADE_TEST(Published, TrustsNothing) {
  scene s;
  if (!scene_open(&s)) return;
  size_t bytes;
  unsigned char *data = published_bytes(&bytes);
  LADE_EXPECT_OK(copy_status(data, bytes));
  static const unsigned char changes[] = {0x01, 0x80, 0xFF};
  size_t head = ((ladei_published_header *)(void *)data)->texts_at + 100;
  unsigned refused = 0;
  for (size_t i = 0; i < head; i++) {
    size_t sequence = offsetof(ladei_published_header, sequence);
    if (i >= sequence && i < sequence + 8) continue; /* torn: below */
    for (size_t c = 0; c < sizeof changes; c++) {
      data[i] ^= changes[c];
      refused += copy_status(data, bytes) != LADE_OK;
      data[i] ^= changes[c];
    }
  }
  LADE_EXPECT(refused > 100);
  for (size_t length = 0; length < bytes; length += 7) {
    void *exact = malloc(length + 1);
    memcpy(exact, data, length);
    LADE_EXPECT(copy_status(exact, length) != LADE_OK);
    free(exact);
  }
  free(data);
  scene_close(&s);
}

/* A page of `parts` device parts, each with all `values` values, whose key is the text at 0: "" or what the caller puts there. */
static ladei_published_header *page_make(uint32_t parts, uint64_t values, uint64_t texts_bytes, size_t *out_bytes) {
  ladei_published_header h = {.version = LADEI_PUBLISHED_VERSION,
                              .header_bytes = sizeof h,
                              .process_id = (uint64_t)getpid(),
                              .part_count = parts,
                              .value_count = values,
                              .texts_bytes = texts_bytes};
  memcpy(h.magic, "LADEPUB\n", sizeof h.magic);
  h.parts_at = sizeof h;
  h.keys_at = h.parts_at + parts * sizeof(ladei_published_part);
  h.values_at = h.keys_at + values * 8;
  h.texts_at = h.values_at + values * 8;
  h.bytes = h.texts_at + texts_bytes;
  ladei_published_header *page = calloc(1, h.bytes);
  if (page == NULL) abort();
  *page = h;
  ladei_published_part *rows = (void *)((char *)page + h.parts_at);
  for (uint32_t i = 0; i < parts; i++)
    rows[i] = (ladei_published_part){.kind = LADE_PART_DEVICE, .value_count = values};
  *out_bytes = h.bytes;
  return page;
}

static void page_expect(lade_status status, ladei_published_header *page, size_t bytes) {
  LADE_EXPECT_STATUS(status, copy_status(page, bytes));
  free(page);
}

/*
 * What a page makes its reader do is bounded: `lade top` of root reads what any user publishes. 1,000 parts of the same 2^20 values
 * were 16 GB of counters, for 12 MB; texts were copied whatever their size, as of sparse memory; and each of 2^20 keys could be one
 * text of many MB, to be read again for each.
 */
LADE_TEST(Published, DoesNotMakeItsReaderWorkForMoreThanItHolds) {
  size_t bytes;
  ladei_published_header *page = page_make(1, 100, 100, &bytes);
  page_expect(LADE_OK, page, bytes);
  page = page_make(2, 100, 100, &bytes);
  page_expect(LADE_ERR_INVALID_ARGUMENT, page, bytes);
  page = page_make(1000, 0, 100, &bytes);
  page_expect(LADE_OK, page, bytes);
  page = page_make(1001, 0, 100, &bytes);
  page_expect(LADE_ERR_INVALID_ARGUMENT, page, bytes);
  page = page_make(1, 1, 300, &bytes);
  memset((char *)page + page->texts_at + 1, 'k', 298); /* its name is text 0 */
  ((uint32_t *)(void *)((char *)page + page->keys_at))[0] = 1;
  page_expect(LADE_ERR_INVALID_ARGUMENT, page, bytes);
  page = page_make(1, 1, LADEI_PUBLISHED_MOST_TEXTS, &bytes);
  page_expect(LADE_OK, page, bytes);
  page = page_make(1, 1, LADEI_PUBLISHED_MOST_TEXTS + 1, &bytes);
  page_expect(LADE_ERR_INVALID_ARGUMENT, page, bytes);
}

/* Three intervals, whatever they are; a second at least, since a machine may be busy; never where nobody promised any. */
LADE_TEST(Published, IsStaleAfterThreeIntervals) {
  const uint64_t second = 1000000000, then = 100 * second;
  LADE_EXPECT(!ladei_published_is_stale(1000, then, then + 3 * second));
  LADE_EXPECT(ladei_published_is_stale(1000, then, then + 3 * second + 1));
  LADE_EXPECT(!ladei_published_is_stale(60000, then, then + 180 * second));
  LADE_EXPECT(ladei_published_is_stale(60000, then, then + 180 * second + 1));
  LADE_EXPECT(!ladei_published_is_stale(10, then, then + second));
  LADE_EXPECT(ladei_published_is_stale(10, then, then + second + 1));
  LADE_EXPECT(!ladei_published_is_stale(UINT32_MAX, then, UINT64_C(3) * UINT32_MAX * 1000000 + then));
  LADE_EXPECT(!ladei_published_is_stale(0, then, then + 1000000 * second));
  LADE_EXPECT(!ladei_published_is_stale(1000, then, then - 5 * second)); /* the clock was set back */
}

/* What is read beside the counters: how often they are refreshed, and whether control is there. */
LADE_TEST(Published, TellsHowItIsRefreshed) {
  scene s;
  if (!scene_open(&s)) return;
  ladei_published_about about;
  lade_snapshot *snapshot = NULL;
  LADE_ASSERT_OK(ladei_published_find((uint64_t)getpid(), 0, &about, &snapshot));
  LADE_EXPECT_EQ_UINT(about.interval_ms, 0); /* on "sim", by hand */
  LADE_EXPECT_EQ_UINT(about.process_id, (uint64_t)getpid());
  LADE_EXPECT_EQ_STR(about.control, "");
  lade_snapshot_destroy(snapshot);
  scene_close(&s);
}

/* A page of the first release ends before the name of the socket: it is read as one without control. */
LADE_TEST(Published, ReadsPagesOfTheFirstRelease) {
  scene s;
  if (!scene_open(&s)) return;
  size_t bytes;
  ladei_published_header *header = published_bytes(&bytes);
  ladei_published_about about;
  lade_snapshot *snapshot = NULL;
  header->header_bytes = LADEI_PUBLISHED_LEAST_BYTES;
  memset(header->control, 'x', sizeof header->control); /* that is something else there */
  LADE_ASSERT_OK(ladei_published_copy(header, bytes, (uint64_t)getpid(), &about, &snapshot));
  LADE_EXPECT_EQ_STR(about.control, "");
  lade_snapshot_destroy(snapshot);
  header->header_bytes = LADEI_PUBLISHED_LEAST_BYTES - 1;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, copy_status(header, bytes));
  free(header);
  scene_close(&s);
}

LADE_TEST(Published, SaysWhatIsWrong) {
  scene s;
  if (!scene_open(&s)) return;
  size_t bytes;
  ladei_published_header *header = published_bytes(&bytes);
  header->version = 2;
  LADE_EXPECT_STATUS(LADE_ERR_UNSUPPORTED, copy_status(header, bytes));
  header->version = LADEI_PUBLISHED_VERSION;
  header->sequence++; /* its writer stopped in the middle */
  LADE_EXPECT_STATUS(LADE_ERR_TIMEOUT, copy_status(header, bytes));
  header->sequence++;
  LADE_EXPECT_OK(copy_status(header, bytes));
  header->process_id++;
  LADE_EXPECT_STATUS(LADE_NOT_READY, copy_status(header, bytes));
  free(header);
  scene_close(&s);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct churn {
  device_fixture *f;
  _Atomic(bool) stop;
} churn;

static void *churn_main(void *user) {
  churn *c = user;
  while (!atomic_load(&c->stop)) {
    void *block = NULL;
    LADE_EXPECT_OK(lade_device_alloc(c->f->allocator, 4096, c->f->streams[0], &block));
    LADE_EXPECT_OK(lade_device_free(c->f->allocator, block));
  }
  return NULL;
}

/* The publisher's thread, a thread that allocates, one that refreshes by hand, and a reader: what the reader gets is of one
 * refresh, since all counters of a part are of one moment. */
LADE_TEST(Publish, IsReadWhileItChanges) {
  device_fixture f;
  if (!device_fixture_open_bytes(&f, "cpu", NULL)) return;
  lade_part part = lade_part_device(f.allocator);
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.interval_ms = 10;
  lade_publisher *publisher = NULL;
  LADE_ASSERT_OK(lade_publish(&part, 1, &options, &publisher));
  churn c = {.f = &f};
  pthread_t thread;
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, churn_main, &c), 0);
  for (int i = 0; i < 200; i++) {
    lade_status status = lade_publish_update(publisher);
    LADE_EXPECT(status == LADE_OK || status == LADE_ERR_BUSY);
    lade_snapshot *snapshot = NULL;
    status = lade_published_read((uint64_t)getpid(), 0, &snapshot);
    if (status == LADE_ERR_TIMEOUT) continue; /* the writer was put to sleep in the middle */
    LADE_ASSERT_OK(status);
    int64_t made = counter(snapshot, "allocation.all.allocated"), gone = counter(snapshot, "allocation.all.freed");
    LADE_EXPECT_EQ_INT(made - gone, counter(snapshot, "allocation.all.current"));
    lade_snapshot_destroy(snapshot);
  }
  atomic_store(&c.stop, true);
  pthread_join(thread, NULL);
  lade_publisher_destroy(publisher);
  device_fixture_close(&f);
}

/* Memory behind a descriptor is a file to the kernel, which would end the process by a signal. */
LADE_TEST(Publish, LimitOnTheSizeOfFilesIsAnError) {
  struct rlimit before, little;
  lade_publisher *publisher = NULL;
  LADE_ASSERT_EQ_INT(getrlimit(RLIMIT_FSIZE, &before), 0);
  little = (struct rlimit){100, before.rlim_max};
  LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_FSIZE, &little), 0);
  lade_status status = lade_publish(NULL, 0, NULL, &publisher);
  LADE_ASSERT_EQ_INT(setrlimit(RLIMIT_FSIZE, &before), 0); /* before anything is said: that may go to a file, too */
  LADE_EXPECT_STATUS(LADE_ERR_IO, status);
  LADE_EXPECT_EQ_INT(lade_last_error()->native_code, EFBIG);
  LADE_EXPECT(publisher == NULL);
}

/* Readers would refuse them. */
LADE_TEST(Publish, RefusesNamesThatAreTooLong) {
  device_fixture f;
  lade_publisher *publisher = NULL;
  if (!device_fixture_open(&f, "sim", 256 * MIB, NULL)) return;
  lade_part part = lade_part_device(f.allocator);
  char *name = calloc(1, LADEI_PUBLISHED_MOST_TEXTS + 1);
  LADE_ASSERT(name != NULL);
  memset(name, 'n', LADEI_PUBLISHED_MOST_TEXTS);
  part.name = name;
  LADE_EXPECT_STATUS(LADE_ERR_LIMIT, lade_publish(&part, 1, NULL, &publisher));
  LADE_EXPECT(publisher == NULL);
  lade_publisher_destroy(publisher);
  free(name);
  device_fixture_close(&f);
}

LADE_TEST(Publish, RefusesBadArguments) {
  lade_publisher *publisher = NULL;
  lade_publish_options options;
  lade_publish_options_init(&options);
  options.interval_ms = 5;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_publish(NULL, 0, &options, &publisher));
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "interval_ms is 5");
  options = (lade_publish_options){.struct_size = sizeof options, .flags = 8};
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_publish(NULL, 0, &options, &publisher));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_publish(NULL, 1, NULL, &publisher));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_publish_update(NULL));
  LADE_EXPECT(publisher == NULL);
  lade_publisher_destroy(NULL);
}
