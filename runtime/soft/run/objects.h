/* SPDX-License-Identifier: Apache-2.0 */
/*
 * User objects, as graphs retain them. All under the lock.
 */
#ifndef LADE_RUNTIME_SOFT_RUN_OBJECTS_H
#define LADE_RUNTIME_SOFT_RUN_OBJECTS_H

#include "runtime/soft/state/model.h"

/* The last reference posts the destructor. */
void ladei_soft_object_unreference(soft_runtime *rt, soft_user_object *object);
void ladei_soft_objects_release(soft_runtime *rt, soft_object_list *list);

/* Takes a reference over. False: no memory. */
bool ladei_soft_objects_add(soft_object_list *list, soft_user_object *object);

#endif /* LADE_RUNTIME_SOFT_RUN_OBJECTS_H */
