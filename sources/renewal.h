/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading credentials beside the client: services of containers and instances may take seconds to answer.
 *
 * One load at a time, by a thread that ends with it. `told` is called on that thread when the result can be taken.
 * Threads: one, the client's.
 */
#ifndef LADE_SOURCES_RENEWAL_H
#define LADE_SOURCES_RENEWAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "sources/credentials.h"

typedef struct ladei_source_renewal {
  const ladei_libcurl *curl;
  const ladei_source_settings *settings;
  void (*told)(void *user);
  void *user;
  bool under_way; /* the client's */
  pthread_t thread;
  _Atomic(bool) stop; /* the load is to end without a result */
  _Atomic(bool) over; /* what follows is the client's again */
  ladei_source_credentials found;
  lade_error error; /* status LADE_OK: `found` is good */
} ladei_source_renewal;

/* Begins a load; none is under way. LADE_ERR_OUT_OF_HOST_MEMORY: the thread cannot be started. */
lade_status ladei_source_renewal_begin(ladei_source_renewal *renewal);

/* Whether the load is over: *out_status, described by lade_last_error(), and with LADE_OK credentials for the caller to free. */
bool ladei_source_renewal_take(ladei_source_renewal *renewal, lade_status *out_status, ladei_source_credentials *out);

/* Ends a load that is under way, and waits for that. */
void ladei_source_renewal_end(ladei_source_renewal *renewal);

#endif /* LADE_SOURCES_RENEWAL_H */
