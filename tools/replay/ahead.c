/* SPDX-License-Identifier: Apache-2.0 */
/* Reading ahead; model in ahead.h. */
#include "tools/replay/ahead.h"

void ahead_init(ahead *queue, trace_reader *reader) {
  queue->reader = reader;
  queue->read = queue->taken = 0;
  queue->end = READ_ITEM;
  queue->held = false;
  queue->frees_read = queue->frees_taken = 0;
}

static void fill(ahead *queue) {
  if (queue->taken == queue->read) queue->held = false;
  while (queue->end == READ_ITEM && !queue->held && queue->read - queue->taken < AHEAD_ROOM) {
    trace_op *op = &queue->ops[queue->read % AHEAD_ROOM];
    queue->end = trace_read(queue->reader, op);
    if (queue->end != READ_ITEM) return;
    queue->held = op->text != NULL || op->streams != NULL;
    queue->read++;
    if (op->kind == TRACE_FREE) queue->frees[queue->frees_read++ % AHEAD_ROOM] = (ahead_target){.id = op->number[0]};
  }
}

read_result ahead_next(ahead *queue, const trace_op **out) {
  fill(queue);
  if (queue->taken == queue->read) return queue->end;
  const trace_op *op = &queue->ops[queue->taken++ % AHEAD_ROOM];
  if (op->kind == TRACE_FREE) queue->frees_taken++;
  *out = op;
  return READ_ITEM;
}
