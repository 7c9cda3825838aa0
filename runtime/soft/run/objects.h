/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects that graphs retain. All under the lock (model in objects.c).
 */
#ifndef LADE_RUNTIME_SOFT_RUN_OBJECTS_H
#define LADE_RUNTIME_SOFT_RUN_OBJECTS_H

#include "runtime/soft/state/model.h"

/* The last one makes the destructor due: ladei_soft_objects_unlock runs it. */
void ladei_soft_object_unreference(soft_runtime *rt, soft_user_object *object);
void ladei_soft_objects_release(soft_runtime *rt, soft_object_list *list);

/* The end of an op that may drop references: drops the lock, then runs the due destructors. */
void ladei_soft_objects_unlock(soft_runtime *rt);

/* Reserves the means to release an exec's objects after its launch. False: no memory. */
bool ladei_soft_late_objects_make(soft_runtime *rt, soft_late_objects **out);
/* The exec was destroyed: the program no longer owns these objects. */
void ladei_soft_late_objects_count(const soft_object_list *list);
/* The exec goes: releases the objects in its list, at once or, if it was launched and they are counted late, later. */
void ladei_soft_late_objects_end(soft_runtime *rt, soft_late_objects *late, soft_object_list *list, bool launched);

/* Takes a reference over. False: no memory. */
bool ladei_soft_objects_add(soft_object_list *list, soft_user_object *object);

#endif /* LADE_RUNTIME_SOFT_RUN_OBJECTS_H */
