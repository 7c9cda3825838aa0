/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bodies. A statement that makes a value becomes a software kernel, which reads its inputs when it runs: in a recording at each
 * replay, from where the recording found them.
 */
#include "tests/graph/trees/body.h"

#include <stdlib.h>
#include <string.h>

#include "lade/soft.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* By doubling what is filled: one copy for each power of two. */
void trees_memory_fill(void *at, uint64_t bytes, uint64_t value) {
  unsigned char *to = at;
  uint64_t filled = bytes < sizeof value ? bytes : sizeof value;
  memcpy(to, &value, filled);
  while (filled < bytes) {
    uint64_t more = bytes - filled < filled ? bytes - filled : filled;
    memcpy(to + filled, to, more);
    filled += more;
  }
}

uint64_t trees_memory_value(const void *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

uint64_t trees_memory_compare(const void *at, uint64_t bytes, uint64_t value) {
  const unsigned char *from = at;
  unsigned char wanted[sizeof value];
  memcpy(wanted, &value, sizeof value);
  uint64_t i = 0;
  /* Memory is right where it begins with the value and is equal to itself eight bytes on. */
  if (bytes >= sizeof value && memcmp(from, wanted, sizeof value) == 0 &&
      memcmp(from, from + sizeof value, bytes - sizeof value) == 0)
    return bytes;
  while (i + sizeof value <= bytes && memcmp(from + i, wanted, sizeof value) == 0) i += sizeof value;
  while (i < bytes && from[i] == wanted[i % sizeof value]) i++;
  return i;
}

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

/* A kernel's work: a value from words, then from the first words of memories, to a whole memory. */
typedef struct trees_kernel {
  void *to;
  uint64_t bytes;
  uint64_t words[3];
  uint64_t from_count;
  const void *from[];
} trees_kernel;

static void kernel_run(const void *arguments) {
  const trees_kernel *k = arguments;
  uint64_t value = TREES_HASH_BEGIN;
  for (int i = 0; i < 3; i++) value = trees_hash(value, k->words[i]);
  for (uint64_t i = 0; i < k->from_count; i++) value = trees_hash(value, trees_memory_value(k->from[i]));
  trees_memory_fill(k->to, k->bytes, value);
}

/* Queues a kernel that reads the inputs of the call that are wanted: all that are not dropped, or one. */
static lade_status kernel_queue(const trees_call *call, lade_stream stream, void *to, uint64_t bytes, uint64_t word,
                                const size_t *only) {
  size_t inputs = call->function->input_count;
  size_t room = sizeof(trees_kernel) + inputs * sizeof(void *);
  trees_kernel *k = calloc(1, room);
  lade_soft_range *ranges = calloc(inputs + 1, sizeof *ranges);
  lade_status status = LADE_ERR_OUT_OF_HOST_MEMORY;
  if (k != NULL && ranges != NULL) {
    *k = (trees_kernel){.to = to, .bytes = bytes, .words = {call->function->number, call->key, word}};
    ranges[0] = (lade_soft_range){to, bytes, LADE_SOFT_WRITE, 0};
    for (size_t i = 0; i < inputs; i++) {
      if (call->dropped[i] || (only != NULL && *only != i)) continue;
      k->from[k->from_count++] = call->inputs[i].address;
      ranges[k->from_count] = (lade_soft_range){call->inputs[i].address, call->inputs[i].bytes, LADE_SOFT_READ, 0};
    }
    status = lade_soft_kernel(call->runtime, stream, kernel_run, k, sizeof *k + k->from_count * sizeof(void *), ranges,
                              k->from_count + 1);
  }
  free(ranges);
  free(k);
  return status;
}

/* ---- The body ---------------------------------------------------------------------------------------------------- */

bool trees_call_create(trees_call *call, lade_runtime *runtime, const trees_function *function, uint64_t key) {
  *call = (trees_call){.runtime = runtime, .function = function, .key = key};
  call->inputs = calloc(function->input_count + 1, sizeof *call->inputs);
  call->locals = calloc(function->local_count + 1, sizeof *call->locals);
  call->dropped = calloc(function->input_count + 1, sizeof *call->dropped);
  return call->inputs != NULL && call->locals != NULL && call->dropped != NULL;
}

void trees_call_destroy(trees_call *call) {
  free(call->inputs);
  free(call->locals);
  free(call->dropped);
}

uint64_t trees_local_bytes(const trees_step *step, uint64_t key) {
  return step->times_key ? step->bytes * key : step->bytes;
}

/* Word 3 of what a mutation hashes. */
static uint64_t mutation_word(size_t input) { return (UINT64_C(1) << 32) + input; }

static lade_status step_run(trees_call *call, lade_graph_context *context, const trees_step *step) {
  lade_stream stream = context->stream;
  void **at = &call->locals[step->index];
  lade_status status;
  switch (step->kind) {
  case TREES_ALLOC: {
    uint64_t bytes = trees_local_bytes(step, call->key);
    status = lade_graph_alloc(context, bytes, at);
    if (status != LADE_OK) return status;
    return kernel_queue(call, stream, *at, bytes, call->function->locals[step->index], NULL);
  }
  case TREES_FREE: return lade_graph_free(context, *at);
  case TREES_DROP:
    status = lade_graph_input_drop(context, step->index);
    call->dropped[step->index] = status == LADE_OK;
    return status;
  default: {
    const lade_graph_value *input = &call->inputs[step->index];
    return kernel_queue(call, stream, input->address, input->bytes, mutation_word(step->index), &step->index);
  }
  }
}

/* Bytes of a local by the statement that allocated it. */
static uint64_t local_bytes_find(const trees_call *call, size_t local) {
  const trees_step *step = call->function->steps;
  while (step->kind != TREES_ALLOC || step->index != local) step++;
  return trees_local_bytes(step, call->key);
}

static lade_status output_name(const trees_call *call, lade_graph_context *context, size_t index) {
  const trees_output *output = &call->function->outputs[index];
  switch (output->kind) {
  case TREES_OUT_INTEGER: return lade_graph_output_integer(context, index, output->integer);
  case TREES_OUT_LOCAL:
    return lade_graph_output_memory(context, index, call->locals[output->index], local_bytes_find(call, output->index));
  default:
    return lade_graph_output_memory(context, index, call->inputs[output->index].address,
                                    call->inputs[output->index].bytes);
  }
}

lade_status trees_body_run(lade_graph_context *context, void *user) {
  trees_call *call = user;
  const trees_function *function = call->function;
  lade_status status = LADE_OK;
  call->begun = true;
  call->stage = context->stage;
  call->steps_done = 0;
  memset(call->dropped, 0, function->input_count * sizeof *call->dropped);
  for (size_t i = 0; i < function->input_count && status == LADE_OK; i++)
    status = lade_graph_input_get(context, i, &call->inputs[i]);
  for (size_t i = 0; i < function->step_count && status == LADE_OK; i++) {
    status = step_run(call, context, &function->steps[i]);
    if (status == LADE_OK) call->steps_done++;
  }
  for (size_t i = 0; i < function->output_count && status == LADE_OK; i++) status = output_name(call, context, i);
  return status;
}

/* ---- Truth ------------------------------------------------------------------------------------------------------- */

void trees_truth_run(const trees_function *function, uint64_t key, size_t steps, uint64_t *const *inputs, bool *dropped,
                     uint64_t *locals) {
  memset(dropped, 0, function->input_count * sizeof *dropped);
  uint64_t begin = trees_hash(trees_hash(TREES_HASH_BEGIN, function->number), key);
  for (size_t s = 0; s < steps; s++) {
    const trees_step *step = &function->steps[s];
    if (step->kind == TREES_DROP) dropped[step->index] = true;
    if (step->kind == TREES_MUTATE)
      *inputs[step->index] = trees_hash(trees_hash(begin, mutation_word(step->index)), *inputs[step->index]);
    if (step->kind != TREES_ALLOC) continue;
    uint64_t value = trees_hash(begin, function->locals[step->index]);
    for (size_t i = 0; i < function->input_count; i++)
      if (!dropped[i]) value = trees_hash(value, *inputs[i]);
    locals[step->index] = value;
  }
}
