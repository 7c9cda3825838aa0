/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The shared library is closed with dlclose() while threads that used it live on. They come back to it
 * when they end (a thread gives its blocks back to its pools then), so it must still be there.
 */
#include <dlfcn.h>
#include <lade/pinned.h>
#include <lade/runtime.h>
#include <pthread.h>

#include "tests/shim/lade_test.h"

/* The program itself is not linked to the library: statuses are compared as numbers. */
typedef struct library {
  void *handle;
  lade_status (*runtime_open)(const char *name, const lade_runtime_options *options, lade_runtime **out);
  lade_status (*runtime_close)(lade_runtime *runtime);
  lade_status (*pool_create)(lade_runtime *runtime, const lade_pinned_options *options, lade_pinned_pool **out);
  lade_status (*pool_destroy)(lade_pinned_pool *pool, bool wait);
  lade_status (*alloc)(lade_pinned_pool *pool, size_t bytes, void **out);
  lade_status (*free)(lade_pinned_pool *pool, void *pointer);
} library;

static void symbol(const library *own, const char *name, void *out_function) {
  *(void **)out_function = dlsym(own->handle, name);
  LADE_EXPECT_NE_PTR(*(void **)out_function, NULL);
}

static bool library_open(library *own) {
  own->handle = dlopen("./liblade.so.0", RTLD_NOW | RTLD_LOCAL);
  LADE_EXPECT(own->handle != NULL);
  if (own->handle == NULL) return false;
  symbol(own, "lade_runtime_open", &own->runtime_open);
  symbol(own, "lade_runtime_close", &own->runtime_close);
  symbol(own, "lade_pinned_pool_create", &own->pool_create);
  symbol(own, "lade_pinned_pool_destroy", &own->pool_destroy);
  symbol(own, "lade_pinned_alloc", &own->alloc);
  symbol(own, "lade_pinned_free", &own->free);
  return !lade_test_has_failed();
}

typedef struct user {
  const library *lade;
  lade_pinned_pool *pool;
  pthread_barrier_t step; /* the thread has used the pool; the library is closed */
} user;

static void *use_and_stay(void *argument) {
  user *own = argument;
  void *block = NULL;
  LADE_EXPECT_EQ_INT(own->lade->alloc(own->pool, 4096, &block), LADE_OK);
  LADE_EXPECT_EQ_INT(own->lade->free(own->pool, block), LADE_OK);
  pthread_barrier_wait(&own->step);
  pthread_barrier_wait(&own->step);
  return NULL; /* with a block in its magazine */
}

LADE_TEST(Unload, ThreadsEndAfterTheLibraryWasClosed) {
  library lade = {NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  lade_runtime *runtime = NULL;
  user own = {.lade = &lade};
  pthread_t thread;
  if (!library_open(&lade)) return;
  LADE_ASSERT_EQ_INT(lade.runtime_open("cpu", NULL, &runtime), LADE_OK);
  LADE_ASSERT_EQ_INT(lade.pool_create(runtime, NULL, &own.pool), LADE_OK);
  LADE_ASSERT_EQ_INT(pthread_barrier_init(&own.step, NULL, 2), 0);
  LADE_ASSERT_EQ_INT(pthread_create(&thread, NULL, use_and_stay, &own), 0);
  pthread_barrier_wait(&own.step);
  LADE_EXPECT_EQ_INT(dlclose(lade.handle), 0);
  pthread_barrier_wait(&own.step);
  LADE_EXPECT_EQ_INT(pthread_join(thread, NULL), 0);
  pthread_barrier_destroy(&own.step);
  /* Opened again it is the same library, with all that lives in it. */
  if (!library_open(&lade)) return;
  LADE_EXPECT_EQ_INT(lade.pool_destroy(own.pool, true), LADE_OK);
  LADE_EXPECT_EQ_INT(lade.runtime_close(runtime), LADE_OK);
  LADE_EXPECT_EQ_INT(dlclose(lade.handle), 0);
}
