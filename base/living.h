/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Living pools, allocators and pipelines of the process, for reports on all (LADE_STATS, config/environment.c).
 *
 * An object is listed from the end of its creation to the begin of its destruction; if that fails, again.
 */
#ifndef LADE_BASE_LIVING_H
#define LADE_BASE_LIVING_H

#include <stdbool.h>

typedef enum ladei_living_kind { LADEI_LIVING_PINNED, LADEI_LIVING_DEVICE, LADEI_LIVING_PIPELINE } ladei_living_kind;

/* A member of the object. */
typedef struct ladei_living {
  ladei_living_kind kind;
  void *object;
  struct ladei_living *next, *before;
  bool read; /* ladei_living_each is at it: the object stays as it is */
} ladei_living;

void ladei_living_add(ladei_living *entry, ladei_living_kind kind, void *object);
/* Waits while ladei_living_each() is at the object. The caller holds no lade lock. */
void ladei_living_remove(ladei_living *entry);

/* Calls `look` for each object, under no lock: it may make any call on it except destroy. One caller at a time. */
void ladei_living_each(void (*look)(ladei_living_kind kind, void *object, void *user), void *user);

#endif /* LADE_BASE_LIVING_H */
