/* SPDX-License-Identifier: Apache-2.0 */
/* The meeting of the ranks of a local group. */
#ifndef LADE_GROUP_LOCAL_RENDEZVOUS_H
#define LADE_GROUP_LOCAL_RENDEZVOUS_H

#include "group/local/shared.h"

/*
 * Meets the other ranks. In `shared`, name, rank, size, slots, slot_bytes and timeout_ns are set; on success life and
 * pid are set, too, the memory is mapped, and no socket is left. `transport` must be the same on all ranks. On failure
 * nothing is left, and all ranks that have come fail with the same text.
 */
lade_status ladei_group_rendezvous(ladei_group_shared *shared, int32_t transport);

#endif /* LADE_GROUP_LOCAL_RENDEZVOUS_H */
