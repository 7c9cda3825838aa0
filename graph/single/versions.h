/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of single graphs. A version is a native graph, the executable graph that launches use, and the hold of its pool. A candidate is
 * one in the making. What the driver refused to take back is spent, and offered again.
 */
#ifndef LADE_GRAPH_SINGLE_VERSIONS_H
#define LADE_GRAPH_SINGLE_VERSIONS_H

#include "graph/single/session.h"

typedef struct ladei_graph_version {
  struct ladei_graph_version *next; /* of the spent ones */
  ladei_graph native;               /* NULL: the program's, or gone */
  ladei_graph_exec exec;            /* NULL: of a later version, or gone */
  ladei_graph_hold *hold;           /* NULL: of no pool, or over */
  lade_device_pool_id pool;
  ladei_device_private_pool *memory; /* the same; NULL: none */
  ladei_graph_counts counts;
  bool lent; /* the program may have launches of its own under way */
} ladei_graph_version;

lade_status ladei_graph_no_memory(const char *call, size_t bytes);

/* Its hold is over, or ends by itself. */
void ladei_graph_version_free(lade_device_allocator *allocator, ladei_graph_version *version);
/* Gives spent ones back to the driver. `finished`: nothing of them runs any more, so their holds end here. The first refusal. */
lade_status ladei_graph_spent_destroy(lade_device_allocator *allocator, ladei_graph_version **spent, bool finished);
/* Those that are gone to the driver and wait for the last launches: their holds end by themselves from here on. */
void ladei_graph_spent_forget(lade_device_allocator *allocator, ladei_graph_version **spent);

/* A native graph on its way to be a version. */
typedef struct ladei_graph_candidate {
  ladei_graph_version *version;
  ladei_graph native;           /* also where it is the program's */
  ladei_graph_session *session; /* that it came from, which still routes; NULL: the program's */
  bool has_use;                 /* of version->pool, not tied yet */
} ladei_graph_candidate;

/* Takes the graph, if it is a session's, and the use of the pool, also on failure. */
lade_status ladei_graph_candidate_make(lade_device_allocator *allocator, const char *call, ladei_graph native,
                                       ladei_graph_session *session, lade_device_pool_id pool,
                                       ladei_graph_candidate *out);
/* As the flags of lade_graph_options say. The driver brings it to the device with the first launch, or an upload. */
lade_status ladei_graph_candidate_instantiate(lade_device_allocator *allocator, uint32_t graph_flags,
                                              ladei_graph_candidate *candidate);
/* Nothing of it was ever launched. The program's graph stays, without a hold on the pool. Leaves the error record alone. Whether its use
 * of the pool is still the caller's. */
bool ladei_graph_candidate_discard(lade_device_allocator *allocator, ladei_graph_candidate *candidate);

#endif /* LADE_GRAPH_SINGLE_VERSIONS_H */
