/* SPDX-License-Identifier: Apache-2.0 */
/* The names of a pipeline's numbers: those of the fields of lade_pipeline_info. */
#include "base/stat_keys.h"
#include "lade/pipeline.h"

#define PIPELINE_COUNT(field)  LADEI_STAT_ROW_PLAIN(lade_pipeline_info, #field, field, LADEI_STAT_U64)
#define PIPELINE_NARROW(field) LADEI_STAT_ROW_PLAIN(lade_pipeline_info, #field, field, LADEI_STAT_U32)
#define PIPELINE_SIGNED(field) LADEI_STAT_ROW_PLAIN(lade_pipeline_info, #field, field, LADEI_STAT_I32)

static const ladei_stat_metric metrics[] = {
    PIPELINE_COUNT(block_waits),
    PIPELINE_COUNT(blocks),
    PIPELINE_COUNT(blocks_peak),
    PIPELINE_COUNT(bytes_by_cufile),
    PIPELINE_COUNT(bytes_by_pread),
    PIPELINE_COUNT(bytes_by_uring),
    PIPELINE_COUNT(bytes_by_url),
    PIPELINE_COUNT(bytes_completed),
    PIPELINE_COUNT(bytes_direct),
    PIPELINE_COUNT(callbacks_stalled),
    PIPELINE_COUNT(callbacks_stalled_sum),
    PIPELINE_COUNT(chunk_bytes),
    PIPELINE_COUNT(copies),
    PIPELINE_NARROW(depth),
    PIPELINE_SIGNED(device),
    PIPELINE_COUNT(direct_files),
    PIPELINE_COUNT(direct_refused),
    PIPELINE_COUNT(events_queried),
    PIPELINE_COUNT(events_recorded),
    PIPELINE_SIGNED(numa_node),
    PIPELINE_NARROW(readers),
    PIPELINE_COUNT(registered_buffers),
    PIPELINE_NARROW(requests_to_device),
    PIPELINE_NARROW(requests_to_host),
    PIPELINE_SIGNED(storage_buffered),
    PIPELINE_SIGNED(storage_direct),
    PIPELINE_COUNT(transfers_completed),
    PIPELINE_COUNT(transfers_failed),
    PIPELINE_COUNT(transfers_submitted),
    PIPELINE_COUNT(url_retries),
};

_Static_assert(sizeof(lade_pipeline_info) <= LADEI_STAT_STRUCT_MAX, "raise LADEI_STAT_STRUCT_MAX");

static const ladei_stat_table table = {{{metrics, sizeof metrics / sizeof metrics[0]}, {NULL, 0}},
                                       sizeof(lade_pipeline_info)};

lade_status lade_pipeline_stats_each(const lade_pipeline_info *info, lade_stat_visit visit, void *user) {
  return ladei_stat_keys_each(&table, __func__, info, visit, user);
}
