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
 * Each name begins with "lade_". Control characters in the name of a part become "?".
 * All samples of a metric stand together, whichever parts they are of.
 */
#ifndef LADE_INSPECT_FORMATS_METRICS_H
#define LADE_INSPECT_FORMATS_METRICS_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_prometheus(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                           ladei_output *output);
lade_status ladei_inspect_write_openmetrics(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                            ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_METRICS_H */
