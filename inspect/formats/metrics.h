/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters as Prometheus' text and as OpenMetrics' text. A key becomes a metric and a label:
 *
 *   allocated_bytes.large_pool.current    device_allocated_bytes{part="0",name="device 0",device="0",pool="large_pool"}
 *   allocated_bytes.large_pool.peak       device_allocated_bytes_peak{...}
 *   allocated_bytes.large_pool.allocated  device_allocated_bytes_allocated_total{...}, a counter; freed likewise
 *   host_alloc_time.total                 pinned_host_alloc_time_seconds_total, from microseconds
 *   num_ooms                              device_ooms_total
 *   driver_alloc_max_ns                   pinned_driver_alloc_max_seconds
 *
 * After these labels come `pid`, `publisher` of a process's second one and later, and, where it is a process of this machine, `command`
 * and `host`. Each name begins with "lade_". Control characters in the name of a part become "?".
 * All samples of a metric stand together, whichever parts they are of.
 */
#ifndef LADE_INSPECT_FORMATS_METRICS_H
#define LADE_INSPECT_FORMATS_METRICS_H

#include <stdbool.h>

#include "inspect/formats/format.h"

typedef struct ladei_metrics_source {
  const lade_snapshot *snapshot;
  uint32_t publisher; /* of its process, from 0 */
} ladei_metrics_source;

/* Of several processes: each metric once. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_inspect_metrics_write(const ladei_metrics_source *sources, size_t source_count, bool openmetrics,
                                        ladei_output *output);
lade_status ladei_inspect_write_prometheus(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                           ladei_output *output);
lade_status ladei_inspect_write_openmetrics(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                            ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_METRICS_H */
