/* SPDX-License-Identifier: Apache-2.0 */
/*
 * References to user objects.
 *
 * I4  A user object's references = those of the program + its places in graphs' and execs' lists. With the last one its
 *     destructor is posted to the host engine of device 0, on a node kept for it, so that this cannot fail.
 * Locks: rt->lock.
 */
#include "runtime/soft/run/objects.h"

#include <assert.h>
#include <stdlib.h>

#include "runtime/soft/run/queue.h"

void ladei_soft_object_unreference(soft_runtime *rt, soft_user_object *object) {
  assert(object->references > 0); /* I4 */
  if (--object->references != 0) return;
  ladei_soft_table_hide(&rt->object_table, object);
  ladei_soft_post(rt, object->node, object->destroy, object->user);
  ladei_soft_table_put(&rt->object_table, object);
}

void ladei_soft_objects_release(soft_runtime *rt, soft_object_list *list) {
  for (uint32_t i = 0; i < list->count; i++) ladei_soft_object_unreference(rt, list->objects[i]);
  free(list->objects);
  *list = (soft_object_list){NULL, 0, 0};
}

bool ladei_soft_objects_add(soft_object_list *list, soft_user_object *object) {
  if (list->count == list->capacity) {
    uint32_t capacity = list->capacity == 0 ? 4 : list->capacity * 2;
    soft_user_object **objects = realloc(list->objects, capacity * sizeof(soft_user_object *));
    if (objects == NULL) return false;
    list->objects = objects;
    list->capacity = capacity;
  }
  list->objects[list->count++] = object;
  return true;
}
