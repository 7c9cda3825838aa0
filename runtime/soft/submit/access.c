/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accesses of a piece of work, checked by hazard.c when it is submitted.
 *
 * Locks: rt->lock.
 */
#include "runtime/soft/submit/access.h"

#include "runtime/soft/run/work.h"
#include "runtime/soft/state/hazard.h"

/* Which bytes of its ranges it touches is not known: nothing to report. */
static bool work_is_blind(const soft_work *work) { return work->kind == SOFT_WORK_KERNEL && work->blind_bytes != 0; }

static void piece_accesses(soft_runtime *rt, soft_stream *stream, uint64_t number, const soft_piece *piece) {
  if (piece->src_range != NULL) ladei_soft_hazard_access(rt, stream, number, piece->src, piece->bytes, false);
  if (piece->dst_range != NULL) ladei_soft_hazard_access(rt, stream, number, piece->dst, piece->bytes, true);
}

/* The accesses of all nodes, as work `number` of `stream`. The nodes may run, so this leaves their bindings alone. */
static void body_accesses(soft_runtime *rt, soft_stream *stream, uint64_t number, const soft_body *body) {
  for (uint32_t i = 0; i < body->count; i++) {
    soft_work *work = &body->nodes[i].node.work;
    const soft_piece *pieces = ladei_soft_work_pieces(work);
    if (work_is_blind(work)) continue;
    for (uint32_t j = 0; j < work->piece_count; j++) {
      soft_piece piece = pieces[j];
      ladei_soft_piece_find_ranges(rt, &piece);
      piece_accesses(rt, stream, number, &piece);
    }
  }
}

void ladei_soft_hazard_work(soft_runtime *rt, soft_stream *stream, uint64_t number, soft_work *work) {
  const soft_piece *pieces = ladei_soft_work_pieces(work);
  if (work->kind == SOFT_WORK_LAUNCH) body_accesses(rt, stream, number, work->body);
  if (work_is_blind(work)) return;
  for (uint32_t i = 0; i < work->piece_count; i++) piece_accesses(rt, stream, number, &pieces[i]);
}
