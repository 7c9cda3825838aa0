/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of living objects, newest first.
 *
 * V1  The entry that is read stays in the list, so its `next` remains valid.
 * V2  A child of fork() begins with an empty list: objects of its parent answer LADE_ERR_FORKED, and are not removed.
 * Locks: list_lock (LEAF), held for no call.
 */
#include "base/living.h"

#include <pthread.h>
#include <stddef.h>

#include "base/lock.h"

static ladei_lock list_lock = {.rank = LADEI_RANK_LEAF};
static ladei_condition list_read; /* an entry is no longer read */
static ladei_living *list_first;  /* guard: list_lock */

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* V2. The thread that held the lock does not exist in the child. */
static void child_begins(void) {
  ladei_lock_init(&list_lock, LADEI_RANK_LEAF);
  ladei_condition_init(&list_read);
  list_first = NULL;
}

static void fork_prepare(void) { (void)pthread_atfork(NULL, NULL, child_begins); }

void ladei_living_add(ladei_living *entry, ladei_living_kind kind, void *object) {
  (void)pthread_once(&fork_once, fork_prepare);
  ladei_lock_acquire(&list_lock);
  *entry = (ladei_living){.kind = kind, .object = object, .next = list_first};
  if (list_first != NULL) list_first->before = entry;
  list_first = entry;
  ladei_lock_release(&list_lock);
}

void ladei_living_remove(ladei_living *entry) {
  ladei_lock_assert_none_held();
  ladei_lock_acquire(&list_lock);
  while (entry->read) ladei_condition_wait(&list_read, &list_lock);
  if (entry->next != NULL) entry->next->before = entry->before;
  if (entry->before != NULL)
    entry->before->next = entry->next;
  else
    list_first = entry->next;
  ladei_lock_release(&list_lock);
}

void ladei_living_each(void (*look)(ladei_living_kind kind, void *object, void *user), void *user) {
  ladei_lock_assert_none_held();
  ladei_lock_acquire(&list_lock);
  for (ladei_living *entry = list_first; entry != NULL; entry = entry->next) {
    entry->read = true;
    ladei_lock_release(&list_lock);
    look(entry->kind, entry->object, user);
    ladei_lock_acquire(&list_lock);
    entry->read = false;
    ladei_condition_broadcast(&list_read);
  }
  ladei_lock_release(&list_lock);
}
