/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs that a program makes by hand, node by node. The software device has graphs of captures alone, so the nodes are kept here,
 * and captured one behind the other when the graph is instantiated, and again when a node of the instance gets other parameters.
 *
 *   cuGraphCreate --> made graph --cuGraphAddNode--> nodes --cuGraphInstantiate--> capture on a stream of its own --> exec
 *
 * I1  The handle of a made graph, and of its nodes, is its address in `graphs`; other handles are the software device's.
 * I2  An instance has the nodes of its graph as they were at the instantiation, at the same places.
 * Locks: none; a test makes graphs in one thread.
 */
#include <string.h>

#include "tests/loopback/loopback.h"

enum { MADE_GRAPHS = 8, MADE_NODES = 8, NODE_OPS = 4 };

/* A fill, or values that are written. */
typedef struct made_node {
  CUgraphNodeType type;
  CUDA_MEMSET_NODE_PARAMS fill;
  CUstreamBatchMemOpParams ops[NODE_OPS];
  unsigned op_count;
} made_node;

typedef struct made_graph {
  bool is_there;
  CUgraphExec exec; /* of an instance */
  made_node nodes[MADE_NODES];
  size_t count;
} made_graph;

static made_graph graphs[MADE_GRAPHS];
static made_graph instances[MADE_GRAPHS];

void loop_made_graphs_reset(void) {
  memset(graphs, 0, sizeof graphs);
  memset(instances, 0, sizeof instances);
}

static made_graph *graph_find(CUgraph handle) {
  for (int i = 0; i < MADE_GRAPHS; i++)
    if ((CUgraph)(void *)&graphs[i] == handle && graphs[i].is_there) return &graphs[i];
  return NULL;
}

static made_graph *graph_of_node(CUgraphNode handle, size_t *out_index) {
  for (int i = 0; i < MADE_GRAPHS; i++) {
    for (size_t j = 0; j < graphs[i].count && graphs[i].is_there; j++) {
      if ((CUgraphNode)(void *)&graphs[i].nodes[j] != handle) continue;
      *out_index = j;
      return &graphs[i];
    }
  }
  return NULL;
}

static made_graph *instance_find(CUgraphExec exec) {
  for (int i = 0; i < MADE_GRAPHS; i++)
    if (instances[i].is_there && instances[i].exec == exec) return &instances[i];
  return NULL;
}

static made_graph *free_find(made_graph *all) {
  for (int i = 0; i < MADE_GRAPHS; i++)
    if (!all[i].is_there) return &all[i];
  return NULL;
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static CUresult fill_make(const CUDA_MEMSET_NODE_PARAMS *parameters, made_node *out) {
  if (parameters->elementSize != 1 || parameters->value > UINT8_MAX || parameters->width == 0)
    return CUDA_ERROR_INVALID_VALUE;
  *out = (made_node){.type = CU_GRAPH_NODE_TYPE_MEMSET, .fill = *parameters};
  return CUDA_SUCCESS;
}

static CUresult ops_make(const CUstreamBatchMemOpParams *ops, unsigned count, made_node *out) {
  if (count == 0 || count > NODE_OPS) return CUDA_ERROR_INVALID_VALUE;
  *out = (made_node){.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, .op_count = count};
  memcpy(out->ops, ops, count * sizeof *ops);
  return CUDA_SUCCESS;
}

static CUresult node_make(const CUgraphNodeParams *parameters, made_node *out) {
  const CUDA_MEMSET_NODE_PARAMS_v2 *fill = &parameters->memset;
  if (parameters->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
    return ops_make(parameters->memOp.paramArray, parameters->memOp.count, out);
  if (parameters->type != CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_NOT_SUPPORTED;
  return fill_make(
      &(CUDA_MEMSET_NODE_PARAMS){fill->dst, fill->pitch, fill->value, fill->elementSize, fill->width, fill->height},
      out);
}

static CUresult node_queue(const made_node *node, CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  for (size_t row = 0; row < node->fill.height && code == CUDA_SUCCESS; row++)
    code = loop_cuMemsetD8Async_v3020(node->fill.dst + row * node->fill.pitch, (unsigned char)node->fill.value,
                                      node->fill.width, stream);
  if (node->op_count != 0)
    code = loop_cuStreamBatchMemOp_v11070(stream, node->op_count, (CUstreamBatchMemOpParams *)node->ops, 0);
  return code;
}

/* The nodes as a graph of the software device. */
static CUresult nodes_capture(const made_graph *of, CUgraph *out) {
  CUstream stream = NULL;
  CUresult code = loop_cuStreamCreate_v2000(&stream, CU_STREAM_NON_BLOCKING);
  if (code != CUDA_SUCCESS) return code;
  code = loop_cuStreamBeginCapture_v10010(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  for (size_t i = 0; i < of->count && code == CUDA_SUCCESS; i++) code = node_queue(&of->nodes[i], stream);
  CUresult ended = loop_cuStreamEndCapture_v10000(stream, out);
  (void)loop_cuStreamDestroy_v4000(stream);
  return code == CUDA_SUCCESS ? ended : code;
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

CUresult loop_cuGraphCreate_v10000(CUgraph *out, unsigned int flags) {
  LOOP_ENTER(cuGraphCreate, 10000);
  made_graph *made = free_find(graphs);
  if (flags != 0 || made == NULL) return flags != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
  *made = (made_graph){.is_there = true};
  *out = (CUgraph)(void *)made;
  return CUDA_SUCCESS;
}

bool loop_made_graph_destroy(CUgraph graph) {
  made_graph *made = graph_find(graph);
  if (made != NULL) made->is_there = false;
  return made != NULL;
}

bool loop_made_graph_instantiate(CUgraph graph, CUgraphExec *out, CUresult *out_code) {
  const made_graph *made = graph_find(graph);
  made_graph *instance = made == NULL ? NULL : free_find(instances);
  CUgraph captured = NULL;
  if (made == NULL) return false;
  *out_code = instance == NULL ? CUDA_ERROR_OUT_OF_MEMORY : nodes_capture(made, &captured);
  if (*out_code != CUDA_SUCCESS) return true;
  *out_code = loop_cuGraphInstantiateWithFlags_v11040(out, captured, 0);
  if (*out_code == CUDA_SUCCESS) {
    *instance = *made;
    instance->exec = *out;
  }
  (void)loop_cuGraphDestroy_v10000(captured);
  return true;
}

void loop_made_exec_destroyed(CUgraphExec exec) {
  made_graph *instance = instance_find(exec);
  if (instance != NULL) instance->is_there = false;
}

/* ---- Adding and changing nodes ----------------------------------------------------------------------------------- */

static CUresult node_add(CUresult code, CUgraph graph, const made_node *node, CUgraphNode *out) {
  made_graph *made = graph_find(graph);
  if (code != CUDA_SUCCESS) return code;
  if (made == NULL || made->count == MADE_NODES) return CUDA_ERROR_INVALID_VALUE;
  made->nodes[made->count] = *node;
  *out = (CUgraphNode)(void *)&made->nodes[made->count++];
  return CUDA_SUCCESS;
}

static CUresult node_set(CUresult code, CUgraphNode handle, const made_node *node) {
  size_t index;
  made_graph *made = graph_of_node(handle, &index);
  if (code != CUDA_SUCCESS) return code;
  if (made == NULL || made->nodes[index].type != node->type) return CUDA_ERROR_INVALID_VALUE;
  made->nodes[index] = *node;
  return CUDA_SUCCESS;
}

static CUresult exec_node_set(CUresult code, CUgraphExec exec, CUgraphNode handle, const made_node *node) {
  size_t index;
  made_graph *instance = instance_find(exec);
  CUgraph captured = NULL;
  CUgraphExecUpdateResultInfo info;
  if (code != CUDA_SUCCESS) return code;
  if (instance == NULL || graph_of_node(handle, &index) == NULL || instance->nodes[index].type != node->type)
    return CUDA_ERROR_INVALID_VALUE;
  instance->nodes[index] = *node;
  code = nodes_capture(instance, &captured);
  if (code == CUDA_SUCCESS) code = loop_cuGraphExecUpdate_v12000(exec, captured, &info);
  if (captured != NULL) (void)loop_cuGraphDestroy_v10000(captured);
  return code;
}

CUresult loop_cuGraphAddMemsetNode_v10000(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                          const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context) {
  LOOP_ENTER(cuGraphAddMemsetNode, 10000);
  made_node node;
  (void)after, (void)count, (void)context; /* nodes run in the order in which they were added */
  return node_add(fill_make(parameters, &node), graph, &node, out);
}

CUresult loop_cuGraphMemsetNodeSetParams_v10000(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *parameters) {
  LOOP_ENTER(cuGraphMemsetNodeSetParams, 10000);
  made_node node;
  return node_set(fill_make(parameters, &node), handle, &node);
}

CUresult loop_cuGraphExecMemsetNodeSetParams_v10020(CUgraphExec exec, CUgraphNode handle,
                                                    const CUDA_MEMSET_NODE_PARAMS *parameters, CUcontext context) {
  LOOP_ENTER(cuGraphExecMemsetNodeSetParams, 10020);
  made_node node;
  (void)context;
  return exec_node_set(fill_make(parameters, &node), exec, handle, &node);
}

CUresult loop_cuGraphAddBatchMemOpNode_v11070(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                              const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters) {
  LOOP_ENTER(cuGraphAddBatchMemOpNode, 11070);
  made_node node;
  (void)after, (void)count;
  return node_add(ops_make(parameters->paramArray, parameters->count, &node), graph, &node, out);
}

CUresult loop_cuGraphBatchMemOpNodeSetParams_v11070(CUgraphNode handle,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters) {
  LOOP_ENTER(cuGraphBatchMemOpNodeSetParams, 11070);
  made_node node;
  return node_set(ops_make(parameters->paramArray, parameters->count, &node), handle, &node);
}

CUresult loop_cuGraphExecBatchMemOpNodeSetParams_v11070(CUgraphExec exec, CUgraphNode handle,
                                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS *parameters) {
  LOOP_ENTER(cuGraphExecBatchMemOpNodeSetParams, 11070);
  made_node node;
  return exec_node_set(ops_make(parameters->paramArray, parameters->count, &node), exec, handle, &node);
}

CUresult loop_cuGraphAddNode_v12020(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                    CUgraphNodeParams *parameters) {
  LOOP_ENTER(cuGraphAddNode, 12020);
  made_node node;
  (void)after, (void)count;
  return node_add(node_make(parameters, &node), graph, &node, out);
}

CUresult loop_cuGraphNodeSetParams_v12020(CUgraphNode handle, CUgraphNodeParams *parameters) {
  LOOP_ENTER(cuGraphNodeSetParams, 12020);
  made_node node;
  return node_set(node_make(parameters, &node), handle, &node);
}

CUresult loop_cuGraphExecNodeSetParams_v12020(CUgraphExec exec, CUgraphNode handle, CUgraphNodeParams *parameters) {
  LOOP_ENTER(cuGraphExecNodeSetParams, 12020);
  made_node node;
  return exec_node_set(node_make(parameters, &node), exec, handle, &node);
}
