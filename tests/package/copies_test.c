/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Several copies of the shared library in one process, as when packages each bring their own. Libraries that
 * are opened late share about two kilobytes of static TLS.
 */
#include <dlfcn.h>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/shim/lade_test.h"

/* Builds without NDEBUG keep the locks that a thread holds in thread-local storage, too. */
#ifdef NDEBUG
enum { COPIES = 10 };
#else
enum { COPIES = 4 };
#endif

typedef struct copy {
  void *handle;
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  void *block;
} copy;

static void *symbol(const copy *c, const char *name) {
  void *found = dlsym(c->handle, name);
  LADE_EXPECT_NE_PTR(found, NULL);
  return found;
}

#define CALL(c, function) ((__typeof__(&(function)))symbol(c, #function))

static bool copy_open(copy *c, int number) {
  char path[256], command[600];
  const char *folder = getenv("TEST_TMPDIR");
  snprintf(path, sizeof path, "%s/liblade_%d.so", folder != NULL ? folder : "/tmp", number);
  snprintf(command, sizeof command, "cp -L ./liblade.so.0 '%s'", path);
  LADE_EXPECT_EQ_INT(system(command), 0);
  c->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  LADE_EXPECT_EQ_STR(c->handle == NULL ? dlerror() : "opened", "opened");
  remove(path);
  return c->handle != NULL;
}

static void copy_use(copy *c) {
  LADE_ASSERT_EQ_INT(CALL(c, lade_runtime_open)("sim", NULL, &c->runtime), LADE_OK);
  LADE_ASSERT_EQ_INT(CALL(c, lade_pinned_pool_create)(c->runtime, NULL, &c->pool), LADE_OK);
  LADE_ASSERT_EQ_INT(CALL(c, lade_pinned_alloc)(c->pool, 4096, &c->block), LADE_OK);
}

/* Each has its own pools and its own last error. */
static void copy_close(copy *c, copy *other) {
  LADE_EXPECT_EQ_INT(CALL(other, lade_pinned_free)(other->pool, c->block), LADE_ERR_FOREIGN_POINTER);
  LADE_EXPECT_EQ_INT(CALL(c, lade_pinned_free)(c->pool, c->block), LADE_OK);
  LADE_EXPECT_EQ_INT(CALL(c, lade_pinned_pool_destroy)(c->pool, true), LADE_OK);
  LADE_EXPECT_EQ_INT(CALL(c, lade_runtime_close)(c->runtime), LADE_OK);
}

LADE_TEST(Copies, OfTheLibraryLiveInOneProcess) {
  copy copies[COPIES] = {{NULL, NULL, NULL, NULL}};
  for (int i = 0; i < COPIES; i++)
    if (!copy_open(&copies[i], i)) return;
  for (int i = 0; i < COPIES; i++) copy_use(&copies[i]);
  if (lade_test_has_failed()) return;
  for (int i = 0; i + 1 < COPIES; i++) copy_close(&copies[i], &copies[i + 1]);
  LADE_EXPECT_EQ_INT(CALL(&copies[COPIES - 1], lade_pinned_free)(copies[COPIES - 1].pool, copies[COPIES - 1].block),
                     LADE_OK);
  LADE_EXPECT_EQ_INT(CALL(&copies[COPIES - 1], lade_pinned_pool_destroy)(copies[COPIES - 1].pool, true), LADE_OK);
  LADE_EXPECT_EQ_INT(CALL(&copies[COPIES - 1], lade_runtime_close)(copies[COPIES - 1].runtime), LADE_OK);
}
