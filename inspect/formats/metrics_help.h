/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of metrics: METRIC(first word of its keys, text). */
#ifndef LADE_INSPECT_FORMATS_METRICS_HELP_H
#define LADE_INSPECT_FORMATS_METRICS_HELP_H

/* clang-format off */
#define LADEI_METRICS_HELP(METRIC) \
  METRIC(active, "Blocks handed out, and freed ones that a stream still uses.") \
  METRIC(active_bytes, "Bytes of blocks handed out, and of freed ones that a stream still uses.") \
  METRIC(active_requests, "Blocks handed out, and freed ones that a stream still uses.") \
  METRIC(alloc_ns, "Allocations, failed ones included.") \
  METRIC(allocated_bytes, "Bytes of blocks handed out.") \
  METRIC(allocation, "Blocks handed out.") \
  METRIC(allocations, "Blocks held from the system or driver.") \
  METRIC(block_waits, "Times that a direction of a pipeline without a block waited at the pool's cap.") \
  METRIC(blocks, "Pinned blocks that a pipeline holds.") \
  METRIC(blocks_peak, "Most pinned blocks that a pipeline held.") \
  METRIC(budget_bytes, "Budget of pinned memory that all pools share; 0: none.") \
  METRIC(budget_faults, "Charges and credits that the budget's file could not be told at once.") \
  METRIC(budget_held_bytes, "Pinned bytes that all pools of the budget hold.") \
  METRIC(budget_refusals, "Charges that the budget refused.") \
  METRIC(budget_returns, "Times that memory was given back because another pool asked for it.") \
  METRIC(bytes_by_cufile, "Bytes of files moved by cuFile.") \
  METRIC(bytes_by_pread, "Bytes of files moved by pread and pwrite.") \
  METRIC(bytes_by_uring, "Bytes of files moved by io_uring.") \
  METRIC(bytes_by_url, "Bytes read from URLs.") \
  METRIC(bytes_completed, "Bytes moved from end to end.") \
  METRIC(bytes_direct, "Bytes of files moved past the page cache.") \
  METRIC(cached_blocks, "Blocks kept ready, split from free memory already.") \
  METRIC(cached_bytes, "Bytes reserved, and neither in use nor pending.") \
  METRIC(callbacks_stalled, "Callbacks that were called 50 ms ago or earlier and have not returned.") \
  METRIC(callbacks_stalled_sum, "Callbacks that took 50 ms or longer.") \
  METRIC(chunk_bytes, "Bytes of a chunk of large transfers.") \
  METRIC(copies, "Calls that submitted copies to the copy engines.") \
  METRIC(debug_findings, "Blocks written to past their end or while they were free.") \
  METRIC(depth, "Chunks that a pipeline may have under way.") \
  METRIC(device, "Ordinal of the pipeline's device.") \
  METRIC(direct_files, "Transfers of files that began with O_DIRECT.") \
  METRIC(direct_refused, "Transfers that should have gone past the page cache, and did not, partly or wholly.") \
  METRIC(driver_alloc, "Calls of the driver that pinned memory.") \
  METRIC(driver_alloc_max_ns, "Longest call of the driver that pinned memory.") \
  METRIC(driver_alloc_min_ns, "Shortest call of the driver that pinned memory.") \
  METRIC(driver_alloc_ns, "Time in calls of the driver that pinned memory.") \
  METRIC(driver_allocs, "Calls of the driver that pinned memory.") \
  METRIC(driver_free_max_ns, "Longest call of the driver that gave pinned memory back.") \
  METRIC(driver_free_min_ns, "Shortest call of the driver that gave pinned memory back.") \
  METRIC(driver_free_ns, "Time in calls of the driver that gave pinned memory back.") \
  METRIC(driver_frees, "Calls of the driver that gave pinned memory back.") \
  METRIC(driver_ns, "Calls of the driver for memory.") \
  METRIC(events_queried, "Questions to the driver whether an event is done.") \
  METRIC(events_recorded, "Events recorded on streams.") \
  METRIC(free_ns, "Frees.") \
  METRIC(hits, "Allocations served from the cache.") \
  METRIC(host_alloc_time, "Calls that pinned memory.") \
  METRIC(host_free_time, "Calls that gave pinned memory back.") \
  METRIC(in_use_blocks, "Blocks handed out.") \
  METRIC(in_use_bytes, "Bytes handed out, rounding included.") \
  METRIC(inactive_split, "Free pieces of segments that are in use in part.") \
  METRIC(inactive_split_bytes, "Bytes of free pieces of segments that are in use in part.") \
  METRIC(limit_waits, "Allocations that waited at the cap.") \
  METRIC(max_split_size, "Largest block that is split, in bytes; -1: no limit.") \
  METRIC(misses, "Allocations that needed new pinned memory, and got it.") \
  METRIC(num_alloc_retries, "Allocations tried again after the cache was emptied.") \
  METRIC(num_device_alloc, "Calls of the driver that gave device memory.") \
  METRIC(num_device_free, "Calls of the driver that took device memory back.") \
  METRIC(num_host_alloc, "Calls of the driver that pinned memory.") \
  METRIC(num_host_free, "Calls of the driver that gave pinned memory back.") \
  METRIC(num_ooms, "Allocations that failed for lack of memory.") \
  METRIC(num_sync_all_streams, "Times that all pending blocks were waited for.") \
  METRIC(numa_node, "NUMA node that readers are bound to; -1: not bound.") \
  METRIC(other_node_takes, "Allocations served by memory of another NUMA node than asked for.") \
  METRIC(oversize_allocations, "Blocks handed out of the largest split size and more.") \
  METRIC(oversize_segments, "Segments of the largest split size and more.") \
  METRIC(pending_blocks, "Blocks freed that a stream still uses.") \
  METRIC(pending_bytes, "Bytes of blocks freed that a stream still uses.") \
  METRIC(pressure_returns, "Times that memory was given back because the system was short of it.") \
  METRIC(quarantined_uses, "Uses by streams whose event failed, or that were destroyed with work in flight.") \
  METRIC(readers, "Threads that read files.") \
  METRIC(registered_buffers, "Blocks registered with the kernel for io_uring.") \
  METRIC(requested_bytes, "Bytes asked for, in blocks handed out.") \
  METRIC(requests_to_device, "Reads at once.") \
  METRIC(requests_to_host, "Writes at once.") \
  METRIC(reserved_bytes, "Bytes held from the system or driver.") \
  METRIC(reserved_bytes_by_private_pools, "Bytes of a private pool held from the driver.") \
  METRIC(segment, "Pieces of memory held from the driver.") \
  METRIC(segments, "Pieces of memory held from the system or driver.") \
  METRIC(storage_buffered, "How files go through the page cache, as lade_storage numbers it.") \
  METRIC(storage_direct, "How files go past the page cache, as lade_storage numbers it.") \
  METRIC(streams_queried, "Questions to the driver whether a stream is done.") \
  METRIC(transfers_completed, "Transfers that ended well.") \
  METRIC(transfers_failed, "Transfers that ended with an error, cancelled ones included.") \
  METRIC(transfers_submitted, "Transfers submitted.") \
  METRIC(unreached_caches, "Times that a thread's cache could not be emptied from outside.") \
  METRIC(url_retries, "Requests to URLs that were sent again after a failure.")
/* clang-format on */

#endif /* LADE_INSPECT_FORMATS_METRICS_HELP_H */
