/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a local group find each other. */
#ifndef LADE_GROUP_LOCAL_RENDEZVOUS_H
#define LADE_GROUP_LOCAL_RENDEZVOUS_H

#include "group/local/shared.h"

/*
 * Meets the other ranks: in `shared`, name, rank, size, slots, slot_bytes and timeout_ns are set; on success life and pid are,
 * too, the memory is mapped, and no socket is left. `transport` must be the same on all ranks, too. On failure nothing is left, and
 * all ranks that have come fail with the same words.
 */
lade_status ladei_group_rendezvous(ladei_group_shared *shared, int32_t transport);

#endif /* LADE_GROUP_LOCAL_RENDEZVOUS_H */
