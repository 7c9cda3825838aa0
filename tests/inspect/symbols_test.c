/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stacks are taken as addresses, modules and build ids, and named when a snapshot is written, or when a program asks: after the library was
 * unloaded, after the set of stacks is gone, of a file that another process wrote.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "inspect/snapshot.h"
#include "lade/inspect.h"
#include "lade/pinned.h"
#include "lade/stacks.h"
#include "tests/inspect/sample.h"
#include "tests/inspect/tables.h"
#include "tests/shim/lade_test.h"
#include "tests/support/symbols.h"
#include "tests/support/temp_dir.h"

static const char *const modules[] = {"tests/history/libstacks_module.so",
                                      "tests/history/libstacks_module_no_aranges.so", NULL};

static void *block_alloc(void *user) {
  void *block = NULL;
  LADE_EXPECT_OK(lade_pinned_alloc(user, 5000, &block));
  return block;
}

/* A block whose stack goes through the library. */
static void *block_through_module(lade_pinned_pool *pool, const char *module) {
  void *(*call)(void *(*function)(void *), void *user);
  void *library = dlopen(module, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library == NULL ? NULL : dlsym(library, "stacks_module_call");
  LADE_EXPECT(symbol != NULL);
  if (symbol == NULL) return NULL;
  memcpy(&call, &symbol, sizeof call);
  void *block = call(block_alloc, pool);
  LADE_EXPECT_EQ_INT(dlclose(library), 0);
  LADE_EXPECT(dlopen(module, RTLD_NOW | RTLD_NOLOAD) == NULL);
  return block;
}

/* A snapshot of a pool whose stacks are gone, as are the pool and the library. */
static lade_snapshot *snapshot_make(uint32_t flags, const char *module) {
  lade_runtime *runtime = NULL;
  lade_pinned_pool *pool = NULL;
  lade_stacks *stacks = NULL;
  lade_snapshot *snapshot = NULL;
  lade_history_options options;
  lade_snapshot_options wanted;
  LADE_EXPECT_OK(lade_runtime_open("sim", NULL, &runtime));
  LADE_EXPECT_OK(lade_pinned_pool_create(runtime, NULL, &pool));
  LADE_EXPECT_OK(lade_stacks_create(NULL, &stacks));
  lade_history_options_init(&options);
  options.enabled = 1;
  options.level = LADE_CONTEXT_ALLOC;
  options.max_entries = 100;
  lade_stacks_use(stacks, &options);
  LADE_EXPECT_OK(lade_pinned_history_set(pool, &options));
  void *block = block_through_module(pool, module);
  lade_snapshot_options_init(&wanted);
  wanted.flags = flags;
  const lade_part part = lade_part_pinned(pool);
  LADE_EXPECT_OK(lade_snapshot_take(&part, 1, &wanted, &snapshot));
  LADE_EXPECT_OK(lade_pinned_free(pool, block));
  LADE_EXPECT_OK(lade_pinned_history_set(pool, NULL));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(pool, false));
  LADE_EXPECT_OK(lade_stacks_destroy(stacks));
  LADE_EXPECT_OK(lade_runtime_close(runtime));
  return snapshot;
}

/* Functions of the frames in the library, innermost first, of the first stack that has some: "+" for one without. */
static const char *functions_of(const lade_snapshot *snapshot, char room[256]) {
  inspect_tables t = inspect_tables_of(snapshot);
  room[0] = '\0';
  for (uint64_t i = 0; i < t.stack_count && room[0] == '\0'; i++) {
    for (uint64_t k = t.stacks[i].first_frame; k < t.stacks[i].first_frame + t.stacks[i].frame_count; k++) {
      const ladei_snapshot_frame *frame = &t.frames[k];
      if (frame->module == LADEI_SNAPSHOT_NONE) continue;
      if (strstr(ladei_inspect_string(snapshot, t.modules[frame->module].path), "libstacks_module") == NULL) continue;
      LADE_EXPECT_GT_UINT(frame->address, t.modules[frame->module].base);
      LADE_EXPECT_LE_UINT(frame->address - t.modules[frame->module].base, t.modules[frame->module].bytes);
      LADE_EXPECT_GT_SIZE(strlen(ladei_inspect_string(snapshot, t.modules[frame->module].build_id)), 8);
      const char *name = frame->function == 0 ? "+" : ladei_inspect_string(snapshot, frame->function);
      size_t used = strlen(room);
      snprintf(room + used, 256 - used, "%s%s", used == 0 ? "" : " ", name);
    }
  }
  return room;
}

static const char NAMES[] = "inlined_inner inlined_outer not_exported stacks_module_call", RAW[] = "+ +";

static lade_snapshot *written_and_read(const lade_snapshot *snapshot, char **out_data) {
  lade_snapshot *read = NULL;
  support_temp_dir dir;
  LADE_EXPECT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "memory.json");
  LADE_EXPECT_OK(lade_snapshot_save(snapshot, LADE_SNAPSHOT_JSON, NULL, path));
  LADE_EXPECT_OK(lade_snapshot_open(path, &read));
  size_t bytes;
  if (out_data != NULL) *out_data = support_file_read(path, &bytes);
  free(path);
  support_temp_dir_remove(&dir);
  return read;
}

/* Else the test is skipped. */
#define NEEDS_NAMES()                                                                                                  \
  do {                                                                                                                 \
    if (!support_has_symbols()) LADE_SKIP("the programs are stripped");                                                \
    if (dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL) == NULL)                                                          \
      LADE_SKIP("libdw.so.1 is not installed: tools/setup tests");                                                     \
  } while (0)

/* Bug: where no unit of debug information was listed in .debug_aranges there were no lines, and no inlined functions. */
LADE_TEST_P(SnapshotSymbols, AreFoundWhenItIsWritten, modules, module) {
  char room[256], *again;
  NEEDS_NAMES();
  lade_snapshot *snapshot = snapshot_make(0, module), *read = written_and_read(snapshot, NULL);
  LADE_EXPECT_EQ_STR(functions_of(snapshot, room), RAW);
  LADE_EXPECT_EQ_STR(functions_of(read, room), NAMES);
  lade_snapshot *second = written_and_read(snapshot, &again); /* what was named is there still */
  LADE_EXPECT_EQ_STR(functions_of(second, room), NAMES);
  LADE_EXPECT(strstr(again, "stacks_module.c") != NULL);
  free(again);
  LADE_EXPECT_OK(lade_snapshot_symbolise(snapshot));
  LADE_EXPECT_EQ_STR(functions_of(snapshot, room), NAMES);
  LADE_EXPECT_EQ_STR(sample_difference(snapshot, read, 1, room), "");
  lade_snapshot_destroy(read);
  lade_snapshot_destroy(second);
  lade_snapshot_destroy(snapshot);
}

/* A file with addresses alone: it stays so until a program asks, here in the part of another one. */
LADE_TEST(SnapshotSymbols, AreFoundElsewhereWhenAsked) {
  char room[256];
  NEEDS_NAMES();
  lade_snapshot *snapshot = snapshot_make(LADE_SNAPSHOT_NO_SYMBOLS, modules[0]),
                *read = written_and_read(snapshot, NULL);
  LADE_EXPECT_EQ_STR(functions_of(read, room), RAW);
  lade_snapshot *again = written_and_read(read, NULL);
  LADE_EXPECT_EQ_STR(functions_of(again, room), RAW);
  LADE_EXPECT_OK(lade_snapshot_symbolise(again));
  LADE_EXPECT_EQ_STR(functions_of(again, room), NAMES);
  LADE_EXPECT_OK(lade_snapshot_symbolise(again)); /* nothing is left to name */
  LADE_EXPECT_EQ_STR(functions_of(again, room), NAMES);
  lade_snapshot_destroy(again);
  lade_snapshot_destroy(read);
  lade_snapshot_destroy(snapshot);
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, lade_snapshot_symbolise(NULL));
}

static ladei_snapshot_module *module_of(lade_snapshot *snapshot) {
  size_t at = 0;
  while (strstr(ladei_inspect_string(snapshot, snapshot->modules.rows[at].path), "libstacks_module") == NULL) at++;
  return &snapshot->modules.rows[at];
}

/* A file may name anything as a module: another build, one without build id, a pipe that nobody writes to. */
LADE_TEST(SnapshotSymbols, AreNotAskedOfOtherFiles) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *pipe = support_temp_dir_path(&dir, "libstacks_module.so");
  LADE_ASSERT_EQ_INT(mkfifo(pipe, 0600), 0);
  lade_snapshot *snapshot = snapshot_make(LADE_SNAPSHOT_NO_SYMBOLS, modules[0]);
  const struct {
    const char *path, *build_id;
  } cases[] = {
      {NULL, "0123456789abcdef0123456789abcdef01234567"}, {NULL, ""}, {pipe, NULL}, {"/no/libstacks_module.so", NULL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    lade_snapshot *read = written_and_read(snapshot, NULL);
    ladei_snapshot_module *module = module_of(read);
    if (cases[i].path != NULL) LADE_EXPECT_OK(ladei_inspect_text(read, cases[i].path, &module->path));
    if (cases[i].build_id != NULL) LADE_EXPECT_OK(ladei_inspect_text(read, cases[i].build_id, &module->build_id));
    LADE_EXPECT_OK(lade_snapshot_symbolise(read));
    for (size_t k = 0; k < read->frames.count; k++)
      if (read->frames.rows[k].module == (uint32_t)(module - read->modules.rows))
        LADE_EXPECT_EQ_UINT(read->frames.rows[k].function, 0);
    lade_snapshot_destroy(read);
  }
  lade_snapshot_destroy(snapshot);
  free(pipe);
  support_temp_dir_remove(&dir);
}

static lade_status nothing_write(void *user, const void *data, size_t bytes) {
  (void)user;
  (void)data;
  (void)bytes;
  return LADE_OK;
}

static void *writer_run(void *user) {
  LADE_EXPECT_OK(lade_snapshot_write(user, LADE_SNAPSHOT_FOLDED, NULL, nothing_write, NULL));
  return NULL;
}

/* A snapshot is written by any thread, and named once or twice. */
LADE_TEST(SnapshotSymbols, AreFoundBySeveralThreads) {
  enum { THREADS = 4, SNAPSHOTS = 3 };
  for (int i = 0; i < SNAPSHOTS; i++) {
    pthread_t threads[THREADS];
    lade_snapshot *snapshot = snapshot_make(0, modules[0]);
    for (int k = 0; k < THREADS; k++) LADE_ASSERT_EQ_INT(pthread_create(&threads[k], NULL, writer_run, snapshot), 0);
    for (int k = 0; k < THREADS; k++) LADE_EXPECT_EQ_INT(pthread_join(threads[k], NULL), 0);
    lade_snapshot_destroy(snapshot);
  }
}
