/* SPDX-License-Identifier: Apache-2.0 */
/* Giving memory back; all functions: lock held at call and return, released in between. */
#ifndef LADE_DEVICE_NATIVE_GIVE_BACK_H
#define LADE_DEVICE_NATIVE_GIVE_BACK_H

#include "device/state/allocator.h"

/*
 * Gives back the blocks of a list: plain segments by a free, granules of expandable ones by unmapping. A block that the
 * driver refuses becomes free again, and so does one whose return would break a capture (finish.c), which is counted.
 * Returned after all were tried: the first refusal; LADE_ERR_CAPTURE where captures kept something, `kept_bytes` of the
 * list, and nothing else was refused. While frees are held (caching.c), all blocks are free again, for LADE_OK.
 * `gone_bytes` of the list: what the driver took.
 */
lade_status ladei_device_give_back(lade_device_allocator *allocator, ladei_device_block_list *leaving);

/* Gives back the expandable segments among those marked `emptied` of which nothing is mapped. */
lade_status ladei_device_give_back_emptied(lade_device_allocator *allocator);

/* Waits until no thread gives a peer access, so that memory may be unmapped (expandable.c, E3). Blocks to unmap
 * are then picked and given back without releasing the lock before. */
void ladei_device_await_grants(lade_device_allocator *allocator);

/* Waits until no other thread is giving memory back, so that all segments can be seen. */
void ladei_device_await_idle(lade_device_allocator *allocator);
/* The same; true if any has since `seen` (of allocator->returns.count) was read. */
bool ladei_device_await_returns(lade_device_allocator *allocator, uint64_t seen);

#endif /* LADE_DEVICE_NATIVE_GIVE_BACK_H */
