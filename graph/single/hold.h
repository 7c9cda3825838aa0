/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that graphs keep; model in hold.c. */
#ifndef LADE_GRAPH_SINGLE_HOLD_H
#define LADE_GRAPH_SINGLE_HOLD_H

#include "device/for_graphs.h"

typedef struct ladei_graph_hold ladei_graph_hold;

/* Ties one use of the pool, which becomes the hold's, to a graph: it is given back when the graph, all executable
 * graphs made of it from now on and their launches are gone. On failure the use remains the caller's, and nothing else
 * is left except a few bytes if the driver refused to take its object back. No lock held. */
lade_status ladei_graph_hold_tie(lade_device_allocator *allocator, lade_device_pool_id pool, ladei_graph graph,
                                 ladei_graph_hold **out);
/* The maker knows that the graph is no longer used: the use is given back before the call returns. Ends the maker's
 * ownership; the second function does only that. NULL does nothing. */
void ladei_graph_hold_cancel(ladei_graph_hold *hold);
void ladei_graph_hold_drop(ladei_graph_hold *hold);
/* Whether the use was given back. */
bool ladei_graph_hold_over(const ladei_graph_hold *hold);

#endif /* LADE_GRAPH_SINGLE_HOLD_H */
