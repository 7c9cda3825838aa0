/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/renewal.h"

#include <assert.h>

#include "base/error.h"
#include "base/thread.h"

static void *renewal_main(void *argument) {
  ladei_source_renewal *renewal = argument;
  void (*told)(void *) = renewal->told;
  void *user = renewal->user;
  renewal->error.status = LADE_OK;
  if (ladei_source_credentials_load(renewal->curl, renewal->settings, &renewal->stop, &renewal->found) != LADE_OK)
    ladei_error_save(&renewal->error);
  atomic_store_explicit(&renewal->over, true, memory_order_release);
  told(user);
  return NULL;
}

lade_status ladei_source_renewal_begin(ladei_source_renewal *renewal) {
  assert(!renewal->under_way);
  atomic_store_explicit(&renewal->over, false, memory_order_relaxed);
  if (ladei_thread_start(&renewal->thread, renewal_main, renewal) != 0)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "the thread that loads credentials cannot be started");
  renewal->under_way = true;
  return LADE_OK;
}

bool ladei_source_renewal_take(ladei_source_renewal *renewal, lade_status *out_status, ladei_source_credentials *out) {
  if (!renewal->under_way || !atomic_load_explicit(&renewal->over, memory_order_acquire)) return false;
  pthread_join(renewal->thread, NULL);
  renewal->under_way = false;
  *out_status = renewal->error.status;
  if (*out_status == LADE_OK)
    *out = renewal->found;
  else
    ladei_error_restore(&renewal->error);
  return true;
}

void ladei_source_renewal_end(ladei_source_renewal *renewal) {
  lade_status status;
  ladei_source_credentials found;
  if (!renewal->under_way) return;
  atomic_store_explicit(&renewal->stop, true, memory_order_relaxed);
  pthread_join(renewal->thread, NULL);
  renewal->under_way = false;
  status = renewal->error.status;
  found = renewal->found;
  if (status == LADE_OK) ladei_source_credentials_free(&found);
}
