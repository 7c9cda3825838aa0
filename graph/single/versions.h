/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Versions of single graphs. A version is a native graph, the executable graph that launches use, and the hold of its
 * pool. A candidate is not committed yet. A former version is spent until the driver has taken all of it back.
 */
#ifndef LADE_GRAPH_SINGLE_VERSIONS_H
#define LADE_GRAPH_SINGLE_VERSIONS_H

#include "graph/single/session.h"

typedef struct ladei_graph_version {
  struct ladei_graph_version *next; /* of the spent ones */
  ladei_graph native;               /* NULL: the program's, or gone */
  ladei_graph_exec exec;            /* NULL: a later version has it, or gone */
  ladei_graph_hold *hold;           /* NULL: no pool, or over */
  lade_device_pool_id pool;
  ladei_device_private_pool *memory; /* the same; NULL: none */
  ladei_graph_counts counts;
  bool lent; /* the program may have its own launches under way */
} ladei_graph_version;

lade_status ladei_graph_no_memory(const char *call, size_t bytes);

/* Frees the version; its hold is over, or ends by itself. */
void ladei_graph_version_free(lade_device_allocator *allocator, ladei_graph_version *version);
/* Gives spent versions back to the driver. `finished`: none of them runs any more, so their holds end here. Returns the
 * first refusal. */
lade_status ladei_graph_spent_destroy(lade_device_allocator *allocator, ladei_graph_version **spent, bool finished);
/* Frees spent versions that the driver has taken back. Their holds end by themselves after the last launches. */
void ladei_graph_spent_forget(lade_device_allocator *allocator, ladei_graph_version **spent);

/* A native graph that is to become a version. */
typedef struct ladei_graph_candidate {
  ladei_graph_version *version;
  ladei_graph native;           /* also if it is the program's */
  ladei_graph_session *session; /* its source, which still routes; NULL: the graph is the program's */
  bool has_use;                 /* it has a use of version->pool, not tied yet */
} ladei_graph_candidate;

/* Takes the graph, if it is a session's, and the use of the pool, also on failure. */
lade_status ladei_graph_candidate_make(lade_device_allocator *allocator, const char *call, ladei_graph native,
                                       ladei_graph_session *session, lade_device_pool_id pool,
                                       ladei_graph_candidate *out);
/* Instantiates by the flags of lade_graph_options. The first launch, or an upload, brings the graph to the device. */
lade_status ladei_graph_candidate_instantiate(lade_device_allocator *allocator, uint32_t graph_flags,
                                              ladei_graph_candidate *candidate);
/* For a candidate that was never launched. The program's graph stays, without a hold on the pool. Keeps the error
 * record as it is. Returns whether the caller still has the use of the pool. */
bool ladei_graph_candidate_discard(lade_device_allocator *allocator, ladei_graph_candidate *candidate);

#endif /* LADE_GRAPH_SINGLE_VERSIONS_H */
