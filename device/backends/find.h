/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend options name. */
#ifndef LADE_DEVICE_BACKENDS_FIND_H
#define LADE_DEVICE_BACKENDS_FIND_H

#include "device/state/backend.h"

/* NULL where there is none of that number. */
const ladei_device_backend *ladei_device_backend_find(const lade_device_options *options);

#endif /* LADE_DEVICE_BACKENDS_FIND_H */
