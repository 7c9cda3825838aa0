/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Threads that are cancelled (pthread_cancel) in a call of the loaders: the call comes to its end first, and nothing
 * stays behind with the thread: no lock of a checkpoint, no file, no transfer.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "lade/loader.h"
#include "tests/loaders/data_set.h"
#include "tests/loaders/fixture.h"
#include "tests/loaders/tar.h"
#include "tests/shim/lade_test.h"
#include "tests/support/cancelled.h"
#include "tests/support/interposer.h"
#include "tests/support/runtimes.h"
#include "tests/support/temp_dir.h"

enum { BYTES = 5000 };

static void cancellation_point(void *user, const char *op) {
  (void)user, (void)op;
  pthread_testcancel();
}

/* Every driver call is a cancellation point, as it may be in a driver. */
static bool fixture_open_cancelling(fixture *f, const char *name) {
  lade_runtime *runtime = support_interposer_open(name, NULL);
  if (runtime == NULL) return false;
  LADE_EXPECT_OK(fixture_open_on(f, runtime));
  support_on_call(runtime, cancellation_point, NULL);
  return !lade_test_has_failed();
}

typedef struct scene scene;

struct scene {
  fixture f;
  const char *path, *index_path, *tar_path;
  void *memory; /* of two tensors */
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_record_index *index;
  lade_status status;
  void (*make)(scene *s); /* the call */
};

static void save_several(scene *s) {
  static const uint64_t shape[] = {BYTES};
  const lade_tensor tensors[] = {{"a", shape, 1, s->memory, 0, LADE_DTYPE_U8},
                                 {"b", shape, 1, (char *)s->memory + BYTES, 0, LADE_DTYPE_U8}};
  lade_save_options options;
  lade_save_options_init(&options);
  options.max_shard_bytes = BYTES;
  s->status = lade_safetensors_save(s->path, s->f.targets, 1, tensors, 2, &options);
}

static void open_several(scene *s) { s->status = lade_safetensors_open(s->index_path, &s->file); }
static void load_begin(scene *s) { s->status = lade_safetensors_load(s->file, s->f.targets, 1, NULL, &s->load); }
static void load_wait(scene *s) { s->status = lade_tensor_load_wait(s->load, LADE_LOAD_ALL, LADE_WAIT_FOREVER); }
static void load_destroy(scene *s) { s->status = lade_tensor_load_destroy(s->load, false); }

static void close_several(scene *s) {
  lade_safetensors_close(s->file);
  s->status = LADE_OK;
}

static void index_add_file(scene *s) {
  uint64_t file;
  s->status = lade_index_add_file(s->index, s->index_path, &file);
}

static void index_add_tar(scene *s) { s->status = lade_index_add_tar(s->index, s->tar_path, NULL); }

static void index_destroy(scene *s) {
  lade_index_destroy(s->index);
  s->status = LADE_OK;
}

static void call_make(void *user) {
  scene *s = user;
  s->make(s);
}

static bool make_cancelled(scene *s, void (*call)(scene *s), const char *name) {
  lade_test_context("%s", name);
  s->make = call;
  s->status = LADE_ERR_INTERNAL;
  bool returned = support_call_cancelled(call_make, s);
  LADE_EXPECT(returned);
  if (returned) LADE_EXPECT_OK(s->status);
  return returned && s->status == LADE_OK;
}

/* Bug: a thread cancelled in a save of several files left its lock, and every later save of that checkpoint was LADE_ERR_BUSY; other
 * calls left files open. */
LADE_TEST_P(LoaderThreadCancel, LetsTheCallComeToItsEnd, support_soft_runtimes, name) {
  static scene s;
  support_temp_dir dir;
  memset(&s, 0, sizeof s);
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "model.safetensors");
  char *index_path = support_temp_dir_path(&dir, "model.safetensors.index.json");
  char *tar_path = support_temp_dir_path(&dir, "shard.tar");
  const tar_member member = {.name = "a.jpg", .data = "abc", .bytes = 3};
  tar_write(tar_path, "ustar", &member, 1);
  s.path = path;
  s.index_path = index_path;
  s.tar_path = tar_path;
  if (!fixture_open_cancelling(&s.f, name)) return;
  LADE_ASSERT_OK(lade_device_alloc(s.f.targets[0].allocator, 2 * (size_t)BYTES, s.f.streams[0], &s.memory));
  LADE_ASSERT_OK(lade_index_create("jpg", &s.index));
  bool good = make_cancelled(&s, save_several, "save") && make_cancelled(&s, open_several, "open") &&
              make_cancelled(&s, load_begin, "load") && make_cancelled(&s, load_wait, "wait") &&
              make_cancelled(&s, load_destroy, "load, destroy") && make_cancelled(&s, close_several, "close") &&
              make_cancelled(&s, index_add_file, "index, file") && make_cancelled(&s, index_add_tar, "index, tar") &&
              make_cancelled(&s, index_destroy, "index, destroy");
  if (good) {
    save_several(&s); /* nobody holds its lock */
    LADE_EXPECT_OK(s.status);
    LADE_EXPECT_OK(lade_device_free(s.f.targets[0].allocator, s.memory));
    fixture_close(&s.f);
  }
  support_temp_dir_remove(&dir);
  free(path);
  free(index_path);
  free(tar_path);
}

typedef struct loader_scene {
  fixture f;
  data_set set;
  lade_loader_options options;
  lade_loader *loader;
  lade_batch batch;
  lade_status status;
} loader_scene;

static void loader_create(void *user) {
  loader_scene *s = user;
  s->status = data_set_loader(&s->f, &s->set, &s->options, &s->loader);
}

static void loader_next(void *user) {
  loader_scene *s = user;
  s->status = lade_loader_next(s->loader, s->f.streams[0], LADE_WAIT_FOREVER, &s->batch);
}

static void loader_return(void *user) {
  loader_scene *s = user;
  s->status = lade_loader_return(s->loader, &s->batch, s->f.streams[0]);
}

static void loader_destroy(void *user) {
  loader_scene *s = user;
  s->status = lade_loader_destroy(s->loader);
}

LADE_TEST_P(LoaderThreadCancel, LetsCallsOnALoaderComeToTheirEnd, support_soft_runtimes, name) {
  void (*const calls[])(void *user) = {loader_create, loader_next, loader_return, loader_destroy};
  static loader_scene s;
  memset(&s, 0, sizeof s);
  lade_batch_init(&s.batch);
  s.options = data_set_options(8);
  if (!data_set_open(&s.set) || !fixture_open_cancelling(&s.f, name)) return;
  bool good = true;
  for (size_t i = 0; i < sizeof calls / sizeof calls[0] && good; i++) {
    good = support_call_cancelled(calls[i], &s);
    LADE_EXPECT(good);
    if (good) LADE_EXPECT_OK(s.status);
  }
  if (good) fixture_close(&s.f);
  data_set_close(&s.set);
}
