/* SPDX-License-Identifier: Apache-2.0 */
/* The event pool: events are used again, per context, and none is lost. */
#include "runtime/event_pool.h"

#include <pthread.h>

#include "tests/runtime/fake_driver.h"
#include "tests/shim/lade_test.h"

enum { CONTEXT = 77 }; /* of the fake driver */

static ladei_event_pool_counters counters_of(ladei_event_pool *pool) {
  ladei_event_pool_counters counters;
  ladei_event_pool_counters_get(pool, &counters);
  return counters;
}

LADE_TEST(EventPool, HandsOutWhatWasGivenBack) {
  lade_runtime *runtime;
  fake_driver *fake = fake_open(&runtime);
  ladei_event_pool *pool;
  LADE_ASSERT_OK(ladei_event_pool_create(runtime, &pool));
  ladei_event *one, *two, *again;
  LADE_EXPECT_OK(ladei_event_pool_acquire(pool, CONTEXT, &one));
  LADE_EXPECT_OK(ladei_event_pool_acquire(pool, CONTEXT, &two));
  LADE_EXPECT_NE_PTR(one->handle, two->handle);
  LADE_EXPECT_EQ_UINT(counters_of(pool).on_loan, 2);
  ladei_event_pool_release(pool, one);
  LADE_EXPECT_OK(ladei_event_pool_acquire(pool, CONTEXT, &again));
  LADE_EXPECT_EQ_PTR(again, one);
  LADE_EXPECT_EQ_UINT(counters_of(pool).created, 2);
  ladei_event_pool_release(pool, again);
  ladei_event_pool_discard(pool, two);
  LADE_EXPECT_EQ_UINT(counters_of(pool).alive, 1);
  LADE_EXPECT_EQ_UINT(counters_of(pool).on_loan, 0);
  LADE_EXPECT_OK(ladei_event_pool_destroy(pool));
  fake_close(fake, runtime);
}

LADE_TEST(EventPool, FailedCreationCountsNothing) {
  lade_runtime *runtime;
  fake_driver *fake = fake_open(&runtime);
  ladei_event_pool *pool;
  LADE_ASSERT_OK(ladei_event_pool_create(runtime, &pool));
  ladei_event *event = NULL;
  fake_fail(fake, "event_create", LADE_ERR_DRIVER, 0, 1);
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_event_pool_acquire(pool, CONTEXT, &event));
  LADE_EXPECT(event == NULL);
  LADE_EXPECT_EQ_UINT(counters_of(pool).alive, 0);
  LADE_EXPECT_OK(ladei_event_pool_destroy(pool));
  LADE_EXPECT_OK(ladei_event_pool_destroy(NULL));
  fake_close(fake, runtime);
}

LADE_TEST(EventPool, DiscardKeepsTheFirstError) {
  lade_runtime *runtime;
  fake_driver *fake = fake_open(&runtime);
  ladei_event_pool *pool;
  LADE_ASSERT_OK(ladei_event_pool_create(runtime, &pool));
  ladei_event *kept, *event;
  LADE_EXPECT_OK(ladei_event_pool_acquire(pool, CONTEXT, &kept));
  LADE_EXPECT_OK(ladei_event_pool_acquire(pool, CONTEXT, &event));
  lade_event handle = event->handle;
  fake_fail(fake, "event_create", LADE_ERR_DRIVER, 0, 1);
  ladei_event *none;
  LADE_EXPECT_STATUS(LADE_ERR_DRIVER, ladei_event_pool_acquire(pool, CONTEXT, &none));
  fake_fail(fake, "event_destroy", LADE_ERR_TIMEOUT, 0, 1);
  ladei_event_pool_discard(pool, event);
  LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, "event_create");
  fake_event_destroy(fake, handle);
  ladei_event_pool_release(pool, kept);
  LADE_EXPECT_OK(ladei_event_pool_destroy(pool));
  fake_close(fake, runtime);
}

static void *loan_and_return(void *argument) {
  for (int i = 0; i < 2000; i++) {
    ladei_event *events[3];
    for (int e = 0; e < 3; e++) LADE_EXPECT_OK(ladei_event_pool_acquire(argument, CONTEXT, &events[e]));
    for (int e = 0; e < 3; e++) ladei_event_pool_release(argument, events[e]);
  }
  return NULL;
}

LADE_TEST(EventPool, ThreadsNeverShareAnEvent) {
  lade_runtime *runtime;
  fake_driver *fake = fake_open(&runtime);
  ladei_event_pool *pool;
  LADE_ASSERT_OK(ladei_event_pool_create(runtime, &pool));
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) LADE_ASSERT_EQ_INT(pthread_create(&threads[i], NULL, loan_and_return, pool), 0);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  LADE_EXPECT_LE_UINT(counters_of(pool).created, 9); /* shared, but no more than were ever held at once */
  LADE_EXPECT_EQ_UINT(counters_of(pool).on_loan, 0);
  LADE_EXPECT_OK(ladei_event_pool_destroy(pool));
  fake_close(fake, runtime);
}
