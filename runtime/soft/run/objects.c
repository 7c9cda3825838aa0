/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References to user objects.
 *
 * I4  A user object's references = the program's + its places in graphs' and execs' lists. The call that drops the last
 *     one runs the destructor, in its thread, before it returns.
 * I5  A launched exec drops its references later, on the host engine of device 0, even if its launches ended long ago:
 *     as CUDA's driver does. From its destruction until then each counts in its object's `late`.
 * I6  Both use a node that is reserved for it, so neither can fail.
 * Locks: rt->lock; destructors run without it.
 */
#include "runtime/soft/run/objects.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "runtime/soft/run/queue.h"
#include "runtime/soft/run/work.h"
#include "runtime/soft/state/lock.h"

/* The calling op runs the destructor after it dropped the lock. */
static void destructor_note(soft_runtime *rt, soft_node *node, ladei_host_function destroy, void *user) {
  node->work.function = destroy;
  node->work.user = user;
  node->next = NULL;
  soft_node **end = &rt->ended_objects;
  while (*end != NULL) end = &(*end)->next;
  *end = node;
}

void ladei_soft_object_unreference(soft_runtime *rt, soft_user_object *object) {
  assert(object->references > object->late); /* I4 */
  if (--object->references != 0) return;
  ladei_soft_table_hide(&rt->object_table, object);
  destructor_note(rt, object->node, object->destroy, object->user);
  ladei_soft_table_put(&rt->object_table, object);
}

void ladei_soft_objects_unlock(soft_runtime *rt) {
  soft_node *ended = rt->ended_objects;
  rt->ended_objects = NULL;
  ladei_soft_unlock(rt);
  if (ended == NULL) return;
  for (const soft_node *node = ended; node != NULL; node = node->next)
    ladei_soft_call_out(rt, node->work.function, node->work.user);
  ladei_soft_lock(rt);
  for (soft_node *next; ended != NULL; ended = next) {
    next = ended->next;
    ladei_soft_node_free(rt, ended);
  }
  ladei_soft_unlock(rt);
}

void ladei_soft_objects_release(soft_runtime *rt, soft_object_list *list) {
  for (uint32_t i = 0; i < list->count; i++) ladei_soft_object_unreference(rt, list->objects[i]);
  free(list->objects);
  *list = (soft_object_list){NULL, 0, 0};
}

bool ladei_soft_objects_add(soft_object_list *list, soft_user_object *object) {
  if (!LADEI_ARRAY_ROOM(list->objects, list->capacity, (size_t)list->count + 1)) return false;
  list->objects[list->count++] = object;
  return true;
}

/* I5. On the host engine's thread, without the lock. */
static void late_release(void *user) {
  soft_late_objects *late = user;
  soft_runtime *rt = late->runtime;
  ladei_soft_lock(rt);
  for (uint32_t i = 0; i < late->list.count; i++) late->list.objects[i]->late--;
  ladei_soft_objects_release(rt, &late->list);
  free(late);
  ladei_soft_objects_unlock(rt);
}

void ladei_soft_late_objects_count(const soft_object_list *list) {
  for (uint32_t i = 0; i < list->count; i++) list->objects[i]->late++;
}

bool ladei_soft_late_objects_make(soft_runtime *rt, soft_late_objects **out) {
  *out = calloc(1, sizeof **out);
  soft_node *node = *out == NULL ? NULL : ladei_soft_node_new(rt);
  if (node == NULL) {
    free(*out);
    *out = NULL;
    return false;
  }
  **out = (soft_late_objects){.runtime = rt, .node = node};
  return true;
}

void ladei_soft_late_objects_end(soft_runtime *rt, soft_late_objects *late, soft_object_list *list, bool launched) {
  if (launched) {
    late->list = *list;
    *list = (soft_object_list){NULL, 0, 0};
    ladei_soft_post(rt, late->node, late_release, late);
    return;
  }
  ladei_soft_node_free(rt, late->node);
  free(late);
  ladei_soft_objects_release(rt, list);
}
