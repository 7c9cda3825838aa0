/* SPDX-License-Identifier: Apache-2.0 */
/* All that graph/ calls and sees of device/: it includes no other header of this room (.ci/checks/includes). */
#ifndef LADE_DEVICE_FOR_GRAPHS_H
#define LADE_DEVICE_FOR_GRAPHS_H

#include "device/api/device.h"          /* the free of a block that a tree or a graph keeps */
#include "device/native/native.h"       /* how large a checkpoint is */
#include "device/native/pool_list.h"    /* the blocks of a pool */
#include "device/native/private_pool.h" /* a use of a pool for a graph that was not captured into it */
#include "device/native/refused.h"      /* graphs of captures that failed */
#include "device/native/suspend.h"      /* launches beside a suspend */
#include "device/native/uses.h"         /* what a capture deferred */
#include "device/state/allocator.h"     /* its runtime and device, acquire and release */
#include "device/state/backend.h"       /* whether it has private pools */
#include "device/state/checks.h"        /* arguments of public calls */
#include "device/state/tally.h"         /* what the code of a capture allocates */

#endif /* LADE_DEVICE_FOR_GRAPHS_H */
