/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks: captured by each method, kept once, bounded, named as addr2line of binutils names them, also after a dlclose().
 *
 * The linker leads malloc through here, so that a test lets it fail.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "history/stacks.h"
#include "lade/device.h"
#include "lade/stacks.h"
#include "tests/device/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/symbols.h"

static _Thread_local int missing_in;

static bool is_missing(void) { return missing_in > 0 && --missing_in == 0; }

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes) { return is_missing() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t count, size_t bytes) { return is_missing() ? NULL : __real_calloc(count, bytes); }

static lade_stacks *stacks_open(uint32_t method, uint64_t max_bytes) {
  lade_stacks_options options;
  lade_stacks_options_init(&options);
  options.method = method;
  options.max_frames = 32;
  options.max_bytes = max_bytes;
  lade_stacks *stacks = NULL;
  LADE_EXPECT_OK(lade_stacks_create(&options, &stacks));
  return stacks;
}

typedef struct address_list {
  uint64_t addresses[64];
  size_t count;
} address_list;

static lade_status address_take(void *user, uint64_t address, ladei_module *module) {
  address_list *list = user;
  (void)module;
  list->addresses[list->count++] = address;
  return LADE_OK;
}

static address_list addresses_of(const void *stack) {
  address_list list = {.count = 0};
  LADE_EXPECT_OK(ladei_stacks_each(stack, address_take, &list));
  return list;
}

/* A stack of `depth` frames more; each depth has another one. */
static __attribute__((noinline)) void *capture_at(void *user, int depth) {
  void *volatile stack = depth == 0 ? ladei_stacks_capture(user) : capture_at(user, depth - 1);
  return stack;
}

static void *capture_here(void *user) { return ladei_stacks_capture(user); }

/* ---- Keeping ----------------------------------------------------------------------------------------------------- */

static const uint32_t methods[] = {LADE_STACKS_BEST, LADE_STACKS_LIBUNWIND, LADE_STACKS_FRAME_POINTERS,
                                   LADE_STACKS_BACKTRACE};
static const char *const method_names[] = {"best", "libunwind", "frame pointers", "backtrace", NULL};

static uint32_t method_of(const char *name) {
  int at = 0;
  while (strcmp(method_names[at], name) != 0) at++;
  return methods[at];
}

LADE_TEST_P(Stacks, AreKeptOnceForEqualCaptures, method_names, name) {
  if (method_of(name) == LADE_STACKS_LIBUNWIND && dlopen("libunwind.so.8", RTLD_LAZY | RTLD_LOCAL) == NULL)
    LADE_SKIP("libunwind.so.8 is not installed: tools/setup tests");
  lade_stacks *stacks = stacks_open(method_of(name), 0);
  LADE_ASSERT(stacks != NULL);
  void *all[10];
  for (int i = 0; i < 10; i++) all[i] = capture_at(stacks, 3);
  for (int i = 1; i < 10; i++) LADE_EXPECT_EQ_PTR(all[i], all[0]);
  void *deeper = capture_at(stacks, 4);
  LADE_EXPECT(deeper != all[0]);
  LADE_EXPECT_EQ_UINT(ladei_stacks_count(stacks).stacks, 2);
  address_list addresses = addresses_of(all[0]), deeper_addresses = addresses_of(deeper);
  LADE_ASSERT_GE_UINT(addresses.count, 5);
  LADE_EXPECT_EQ_UINT(deeper_addresses.count, addresses.count < 32 ? addresses.count + 1 : addresses.count);
  LADE_EXPECT_EQ_UINT(addresses.addresses[0], deeper_addresses.addresses[0]); /* the caller of the capture */
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_stacks_destroy(stacks));
  for (int i = 0; i < 10; i++) ladei_stacks_release(stacks, all[i]);
  ladei_stacks_release(stacks, deeper);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, TheProgramsOwnBacktraceStays) {
  void *before = dlsym(RTLD_DEFAULT, "backtrace");
  lade_stacks *stacks = stacks_open(LADE_STACKS_BEST, 0);
  LADE_ASSERT(stacks != NULL);
  LADE_EXPECT_EQ_PTR(dlsym(RTLD_DEFAULT, "backtrace"), before);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, HaveABoundInBytes) {
  lade_stacks *stacks = stacks_open(LADE_STACKS_FRAME_POINTERS, 20000);
  LADE_ASSERT(stacks != NULL);
  void *held[200];
  int count = 0;
  while (count < 200 && (held[count] = capture_at(stacks, count % 100)) != NULL) count++;
  for (int depth = 0; depth < 25; depth++) ladei_stacks_release(stacks, capture_at(stacks, depth));
  LADE_EXPECT_LE_UINT(ladei_stacks_count(stacks).bytes, 20000);
  for (int i = 0; i < count; i++) ladei_stacks_release(stacks, held[i]);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
  stacks = stacks_open(LADE_STACKS_FRAME_POINTERS, 0);
  LADE_ASSERT(stacks != NULL);
  ladei_stacks_release(stacks, capture_at(stacks, 1));
  uint64_t bytes = ladei_stacks_count(stacks).bytes * 3 / 2; /* room for one */
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
  stacks = stacks_open(LADE_STACKS_FRAME_POINTERS, bytes);
  LADE_ASSERT(stacks != NULL);
  void *first = capture_at(stacks, 1);
  LADE_EXPECT(first != NULL);
  LADE_EXPECT_EQ_PTR(capture_at(stacks, 2), NULL); /* no room beside what is held */
  LADE_EXPECT_EQ_UINT(ladei_stacks_count(stacks).dropped, 1);
  LADE_EXPECT_LE_UINT(ladei_stacks_count(stacks).bytes, bytes);
  ladei_stacks_release(stacks, first);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, AreDroppedWhereThereIsNoMemory) {
  lade_stacks *stacks = stacks_open(LADE_STACKS_FRAME_POINTERS, 0);
  LADE_ASSERT(stacks != NULL);
  ladei_stacks_release(stacks, capture_at(stacks, 1));
  missing_in = 1;
  LADE_EXPECT_EQ_PTR(capture_at(stacks, 2), NULL);
  LADE_EXPECT_EQ_INT(missing_in, 0);
  LADE_EXPECT_EQ_UINT(ladei_stacks_count(stacks).dropped, 1);
  void *again = capture_at(stacks, 2);
  LADE_EXPECT(again != NULL);
  ladei_stacks_release(stacks, again);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, RefuseWrongOptions) {
  lade_stacks *stacks = NULL;
  lade_stacks_options options;
  lade_stacks_options_init(&options);
  options.max_frames = 65;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stacks_create(&options, &stacks));
  options.max_frames = 64;
  options.method = 4;
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stacks_create(&options, &stacks));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_stacks_create(NULL, NULL));
  LADE_EXPECT_OK(lade_stacks_destroy(NULL));
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 1000 };

static void *capturer_run(void *user) {
  for (int i = 0; i < ROUNDS; i++) ladei_stacks_release(user, capture_at(user, i % 20));
  return NULL;
}

static void threads_capture(uint64_t max_bytes) {
  lade_stacks *stacks = stacks_open(LADE_STACKS_FRAME_POINTERS, max_bytes);
  LADE_ASSERT(stacks != NULL);
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) LADE_ASSERT(pthread_create(&threads[i], NULL, capturer_run, stacks) == 0);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  ladei_stacks_counts stats = ladei_stacks_count(stacks);
  LADE_EXPECT_LE_UINT(stats.stacks, 20);
  LADE_EXPECT_LE_UINT(stats.bytes, max_bytes == 0 ? 16 << 20 : max_bytes);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, AreCapturedByManyThreads) { threads_capture(0); }
LADE_TEST(Stacks, MakeRoomBesideOtherThreads) { threads_capture(1500); }

/* ---- Names ------------------------------------------------------------------------------------------------------- */

enum { FRAMES = 128, NAME = 200 };

typedef struct named_frame {
  uint64_t address, base;
  char module[NAME], function[NAME], file[NAME], build_id[NAME];
  uint32_t line, is_inlined;
} named_frame;

typedef struct names {
  named_frame frames[FRAMES];
  int count;
} names;

static void text_take(char *out, const char *text) { snprintf(out, NAME, "%s", text == NULL ? "" : text); }

static lade_status frame_take(void *user, const lade_stack_frame *frame) {
  names *all = user;
  if (all->count == FRAMES) return LADE_ERR_LIMIT;
  named_frame *out = &all->frames[all->count++];
  *out = (named_frame){
      .address = frame->address, .base = frame->base, .line = frame->line, .is_inlined = frame->is_inlined};
  text_take(out->module, frame->module);
  text_take(out->function, frame->function);
  text_take(out->file, frame->file);
  text_take(out->build_id, frame->build_id);
  return LADE_OK;
}

static const names *names_of(lade_stacks *stacks, const void *stack) {
  static names all;
  all.count = 0;
  LADE_EXPECT_OK(ladei_stacks_describe(stacks, stack, frame_take, &all));
  return &all;
}

static const char *name_only(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash == NULL ? path : slash + 1;
}

/* One frame by addr2line: function, and file:line. */
typedef struct judged_frame {
  char function[NAME], place[2 * NAME];
} judged_frame;

static int judge(const char *module, uint64_t address, judged_frame *out, int most) {
  char command[2 * NAME + 64];
  snprintf(command, sizeof command, "addr2line -i -f -e '%s' 0x%llx", module, (unsigned long long)address);
  FILE *pipe = popen(command, "r");
  int count = 0;
  while (pipe != NULL && count < most && fgets(out[count].function, NAME, pipe) != NULL &&
         fgets(out[count].place, 2 * NAME, pipe) != NULL) {
    out[count].function[strcspn(out[count].function, "\n")] = '\0';
    out[count].place[strcspn(out[count].place, "\n")] = '\0';
    count++;
  }
  return pipe == NULL || pclose(pipe) != 0 ? -1 : count;
}

static bool tool_is_there(const char *command) { return system(command) == 0; }

/* The frames of one address, from `at` on, against the judge's; how many there were. */
static int frames_compare(const names *all, int at) {
  judged_frame judged[16];
  const named_frame *frames = &all->frames[at];
  int count = judge(frames->module, frames->address - 1 - frames->base, judged, 16);
  LADE_EXPECT_GT_INT(count, 0);
  for (int i = 0; i < count && at + i < all->count; i++) {
    char place[2 * NAME];
    LADE_EXPECT_EQ_UINT(frames[i].address, frames->address);
    LADE_EXPECT_EQ_STR(frames[i].function, judged[i].function);
    snprintf(place, sizeof place, "%s:%u", name_only(frames[i].file), frames[i].line);
    char *remark = strstr(judged[i].place, " (discriminator");
    if (remark != NULL) *remark = '\0';
    LADE_EXPECT_EQ_STR(place, name_only(judged[i].place));
    LADE_EXPECT_EQ_UINT(frames[i].is_inlined, i + 1 < count);
  }
  return count;
}

static const char MODULE[] = "tests/history/libstacks_module.so";

/* A stack through the library, which is open; its first frame there. */
static void *stack_through_module(lade_stacks *stacks, void **out_library) {
  void *(*call)(void *(*function)(void *), void *user);
  *out_library = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL);
  void *symbol = *out_library == NULL ? NULL : dlsym(*out_library, "stacks_module_call");
  LADE_EXPECT(symbol != NULL);
  if (symbol == NULL) return NULL;
  memcpy(&call, &symbol, sizeof call);
  return call(capture_here, stacks);
}

static int frame_in_module(const names *all) {
  int at = 0;
  while (at < all->count && strstr(all->frames[at].module, "libstacks_module.so") == NULL) at++;
  return at;
}

LADE_TEST(Stacks, AreNamedAsAddr2lineNamesThem) {
  if (!support_has_symbols()) LADE_SKIP("the programs are stripped");
  if (!tool_is_there("addr2line --version >/dev/null 2>&1")) LADE_SKIP("addr2line is not installed: binutils");
  if (dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) == NULL) LADE_SKIP("libdw.so.1 is not installed: tools/setup tests");
  lade_stacks *stacks = stacks_open(LADE_STACKS_BEST, 0);
  LADE_ASSERT(stacks != NULL);
  void *library;
  void *stack = stack_through_module(stacks, &library);
  const names *all = names_of(stacks, stack);
  int at = frame_in_module(all);
  LADE_ASSERT_LE_INT(at + 4, all->count);
  LADE_EXPECT_EQ_STR(all->frames[at].function, "inlined_inner");
  LADE_EXPECT_EQ_STR(all->frames[at + 1].function, "inlined_outer");
  LADE_EXPECT_EQ_STR(all->frames[at + 2].function, "not_exported");
  LADE_EXPECT_EQ_STR(all->frames[at + 3].function, "stacks_module_call");
  LADE_EXPECT_EQ_INT(frames_compare(all, at), 3);
  LADE_EXPECT_EQ_INT(frames_compare(all, at + 3), 1);
  ladei_stacks_release(stacks, stack);
  LADE_EXPECT_EQ_INT(dlclose(library), 0);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

LADE_TEST(Stacks, AreNamedAfterTheirLibraryWasUnloaded) {
  lade_stacks *stacks = stacks_open(LADE_STACKS_BEST, 0);
  LADE_ASSERT(stacks != NULL);
  void *library;
  void *stack = stack_through_module(stacks, &library);
  LADE_ASSERT(stack != NULL);
  LADE_EXPECT_EQ_INT(dlclose(library), 0);
  LADE_EXPECT(dlopen(MODULE, RTLD_NOW | RTLD_NOLOAD) == NULL);
  const names *all = names_of(stacks, stack);
  int at = frame_in_module(all);
  LADE_ASSERT_LT_INT(at, all->count);
  LADE_EXPECT_GT_UINT(all->frames[at].base, 0);
  LADE_EXPECT_EQ_SIZE(strlen(all->frames[at].build_id) % 2, 0);
  LADE_EXPECT_GT_SIZE(strlen(all->frames[at].build_id), 8);
  if (support_has_symbols() && dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) != NULL)
    LADE_EXPECT_EQ_STR(all->frames[at].function, "inlined_inner");
  ladei_stacks_release(stacks, stack);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}

/* ---- In a history ------------------------------------------------------------------------------------------------ */

LADE_TEST(Stacks, StandWithTheEventsOfAHistory) {
  device_fixture f;
  lade_stacks *stacks = stacks_open(LADE_STACKS_BEST, 0);
  LADE_ASSERT(stacks != NULL);
  if (!device_fixture_open(&f, "sim", 64 * MIB, NULL)) return;
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALL;
  options.max_entries = 100;
  lade_stacks_use(stacks, &options);
  LADE_EXPECT_OK(lade_device_history_set(f.allocator, &options));
  for (int i = 0; i < 5; i++) device_fixture_free(&f, device_fixture_alloc(&f, 1000, 0));
  lade_history *history = NULL;
  LADE_EXPECT_OK(lade_device_history_take(f.allocator, &history));
  LADE_ASSERT(history != NULL && history->event_count == 16);
  LADE_EXPECT_EQ_PTR(history->events[1].context, history->events[4].context); /* the same line allocated both */
  LADE_EXPECT(history->events[1].context != history->events[2].context);
  const names *all = names_of(stacks, history->events[1].context);
  bool found = false;
  for (int i = 0; i < all->count; i++) found = found || strstr(all->frames[i].function, "lade_device_alloc") != NULL;
  LADE_EXPECT(found || !support_has_symbols() || dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) == NULL);
  device_fixture_close(&f);
  LADE_EXPECT_STATUS(LADE_ERR_BUSY, lade_stacks_destroy(stacks)); /* the copy refers to them */
  lade_history_destroy(history);
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
}
