/* SPDX-License-Identifier: Apache-2.0 */
/* Loading by a group. */
#ifndef LADE_LOADERS_GROUP_LOAD_H
#define LADE_LOADERS_GROUP_LOAD_H

#include "loaders/tensor_load.h"

/*
 * As lade_safetensors_load() with options->group. `load` was made of the arguments and is filled here; NULL with
 * `status` not LADE_OK: the arguments were refused, which the other ranks must hear. Waits. After a failure the caller
 * undoes the load.
 */
lade_status ladei_loader_group_load(lade_tensor_load *load, const lade_load_options *options, lade_status status);

#endif /* LADE_LOADERS_GROUP_LOAD_H */
