/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/formats/json_columns.h"

#include <stddef.h>

#define FIELD(row, field) offsetof(row, field), sizeof((row *)NULL)->field

const ladei_json_column ladei_json_segment_columns[] = {
    {"address", FIELD(ladei_snapshot_segment, address), LADEI_JSON_HEX, true, 0},
    {"bytes", FIELD(ladei_snapshot_segment, total_bytes), LADEI_JSON_UINT, true, 0},
    {"block_count", FIELD(ladei_snapshot_segment, block_count), LADEI_JSON_UINT, true, 0},
    {"stream", FIELD(ladei_snapshot_segment, stream), LADEI_JSON_STREAM, false, 0},
    {"pool", FIELD(ladei_snapshot_segment, pool), LADEI_JSON_POOL, false, 0},
    {"stack", FIELD(ladei_snapshot_segment, stack), LADEI_JSON_INDEX, false, LADEI_SNAPSHOT_NONE},
    {"flags", FIELD(ladei_snapshot_segment, flags), LADEI_JSON_UINT, false, 0},
    {"numa_node", FIELD(ladei_snapshot_segment, numa_node), LADEI_JSON_INT, false, (uint32_t)-1},
    {NULL, 0, 0, 0, false, 0},
};

const ladei_json_column ladei_json_block_columns[] = {
    {"bytes", FIELD(ladei_snapshot_block, bytes), LADEI_JSON_UINT, true, 0},
    {"requested_bytes", FIELD(ladei_snapshot_block, requested_bytes), LADEI_JSON_UINT, false, 0},
    {"state", FIELD(ladei_snapshot_block, state), LADEI_JSON_UINT, false, 0},
    {"stack", FIELD(ladei_snapshot_block, stack), LADEI_JSON_INDEX, false, LADEI_SNAPSHOT_NONE},
    {"note", FIELD(ladei_snapshot_block, note), LADEI_JSON_TEXT, false, 0},
    {NULL, 0, 0, 0, false, 0},
};

const ladei_json_column ladei_json_event_columns[] = {
    {"action", FIELD(ladei_snapshot_event, action), LADEI_JSON_UINT, true, 0},
    {"elapsed_ns", FIELD(ladei_snapshot_event, time_ns), LADEI_JSON_ELAPSED, true, 0},
    {"address", FIELD(ladei_snapshot_event, address), LADEI_JSON_HEX, false, 0},
    {"bytes", FIELD(ladei_snapshot_event, bytes), LADEI_JSON_UINT, false, 0},
    {"block_bytes", FIELD(ladei_snapshot_event, block_bytes), LADEI_JSON_UINT, false, 0},
    {"stream", FIELD(ladei_snapshot_event, stream), LADEI_JSON_STREAM, false, 0},
    {"pool", FIELD(ladei_snapshot_event, pool), LADEI_JSON_POOL, false, 0},
    {"stack", FIELD(ladei_snapshot_event, stack), LADEI_JSON_INDEX, false, LADEI_SNAPSHOT_NONE},
    {"label", FIELD(ladei_snapshot_event, label), LADEI_JSON_TEXT, false, 0},
    {"scopes", FIELD(ladei_snapshot_event, scopes), LADEI_JSON_TEXT, false, 0},
    {"flags", FIELD(ladei_snapshot_event, flags), LADEI_JSON_UINT, false, 0},
    {NULL, 0, 0, 0, false, 0},
};

const ladei_json_column ladei_json_stack_columns[] = {
    {"frame_count", FIELD(ladei_snapshot_stack, frame_count), LADEI_JSON_UINT, true, 0},
    {NULL, 0, 0, 0, false, 0},
};

const ladei_json_column ladei_json_frame_columns[] = {
    {"function", FIELD(ladei_snapshot_frame, function), LADEI_JSON_TEXT, true, 0},
    {"file", FIELD(ladei_snapshot_frame, file), LADEI_JSON_TEXT, false, 0},
    {"line", FIELD(ladei_snapshot_frame, line), LADEI_JSON_UINT, false, 0},
    {"address", FIELD(ladei_snapshot_frame, address), LADEI_JSON_HEX, false, 0},
    {"module", FIELD(ladei_snapshot_frame, module), LADEI_JSON_INDEX, false, LADEI_SNAPSHOT_NONE},
    {NULL, 0, 0, 0, false, 0},
};

const ladei_json_column ladei_json_module_columns[] = {
    {"path", FIELD(ladei_snapshot_module, path), LADEI_JSON_TEXT, true, 0},
    {"build_id", FIELD(ladei_snapshot_module, build_id), LADEI_JSON_TEXT, false, 0},
    {"base", FIELD(ladei_snapshot_module, base), LADEI_JSON_HEX, true, 0},
    {"bytes", FIELD(ladei_snapshot_module, bytes), LADEI_JSON_UINT, true, 0},
    {NULL, 0, 0, 0, false, 0},
};
