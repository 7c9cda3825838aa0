/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/cancelled.h"

#include <pthread.h>

#include "tests/shim/lade_test.h"

typedef struct cancelled_call {
  void (*make)(void *user);
  void *user;
  bool returned;
} cancelled_call;

/* pthread_cancel may be a cancellation point itself, so the request is made while none is obeyed. */
static void *thread_main(void *user) {
  int before;
  cancelled_call *call = user;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
  call->make(call->user);
  call->returned = true;
  pthread_testcancel();
  return NULL;
}

bool support_call_cancelled(void (*call)(void *user), void *user) {
  cancelled_call made = {call, user, false};
  pthread_t thread;
  void *result = NULL;
  int code = pthread_create(&thread, NULL, thread_main, &made);
  LADE_EXPECT_EQ_INT(code, 0);
  if (code != 0) return false;
  pthread_join(thread, &result);
  LADE_EXPECT_EQ_PTR(result, PTHREAD_CANCELED);
  return made.returned;
}
