/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a pinned pool as they are at one moment of each node. */
#ifndef LADE_HOST_API_SNAPSHOT_H
#define LADE_HOST_API_SNAPSHOT_H

#include "host/caches/node.h"

/* Views of all of a node's blocks, by segment and address; the caller frees them. NULL with *out_count 0 where there
 * are none. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_pinned_snapshot_node(ladei_pinned_node *node, ladei_pinned_block_view **out, size_t *out_count);

#endif /* LADE_HOST_API_SNAPSHOT_H */
