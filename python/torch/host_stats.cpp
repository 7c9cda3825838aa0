// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's figures of a host cache, out of lade's:
//
//   active_requests (2.8: allocation)       blocks in use or pending
//   active_bytes    (2.8: allocated_bytes)  ... and their bytes
//   allocations     (2.8: segment)          segments
//   allocated_bytes (2.8: reserved_bytes)   reserved bytes
//
// lade_pinned_stats_each() has them under these names.

#include "host_stats.h"

#include "source.h"

#include <c10/util/llvmMathExtras.h>

#include <string>

namespace lade_torch {

namespace {

using c10::CachingAllocator::DurationStat;
using c10::CachingAllocator::Stat;

struct Figure {
  const std::string &key;
  int64_t value;
};

lade_status figure_compare(const char *key, int64_t value, void *user) {
  auto *figure = static_cast<Figure *>(user);
  if (figure->key == key) figure->value = value;
  return LADE_OK;
}

int64_t figure(const lade_pinned_stats &stats, const std::string &key) {
  Figure found{key, 0};
  lade_status status = lade_pinned_stats_each(&stats, figure_compare, &found);
  if (status != LADE_OK) throw_last_error(status);
  return found.value;
}

Stat stat_of(const lade_pinned_stats &stats, const std::string &key) {
  Stat stat;
  stat.current = figure(stats, key + ".current");
  stat.peak = figure(stats, key + ".peak");
  stat.allocated = figure(stats, key + ".allocated");
  stat.freed = figure(stats, key + ".freed");
  return stat;
}

// In microseconds.
DurationStat duration_of(const lade_pinned_stats &stats, const std::string &key) {
  DurationStat stat;
  stat.total = figure(stats, key + ".total");
  stat.max = figure(stats, key + ".max");
  stat.min = figure(stats, key + ".min");
  stat.count = figure(stats, key + ".count");
  return stat;
}

#if LADE_TORCH_HAS_ACTIVE_STATS
// Blocks handed out by power of two, since lade splits segments and does not ask the driver for blocks.
lade_status bucket_count(const lade_pinned_class_stats *stats, void *user) {
  auto *buckets = static_cast<std::vector<int64_t> *>(user);
  size_t bucket = c10::llvm::Log2_64_Ceil(stats->block_bytes);
  if (bucket < buckets->size()) (*buckets)[bucket] += static_cast<int64_t>(stats->in_use_blocks.allocated);
  return LADE_OK;
}
#endif

lade_pinned_stats stats_of(lade_pinned_pool *pool) {
  lade_pinned_stats stats;
  lade_pinned_stats_init(&stats);
  lade_status status = lade_pinned_stats_get(pool, &stats);
  if (status != LADE_OK) throw_last_error(status);
  return stats;
}

} // namespace

at::HostStats host_stats(lade_pinned_pool *pool) {
  const lade_pinned_stats stats = stats_of(pool);
  at::HostStats host;
#if LADE_TORCH_HAS_ACTIVE_STATS
  host.active_requests = stat_of(stats, "active_requests");
  host.active_bytes = stat_of(stats, "active_bytes");
  host.allocations = stat_of(stats, "allocations");
  host.allocated_bytes = stat_of(stats, "allocated_bytes");
  lade_status status = lade_pinned_class_stats_each(pool, bucket_count, &host.bucket_allocation);
  if (status != LADE_OK) throw_last_error(status);
#else
  host.allocation = stat_of(stats, "active_requests");
  host.segment = stat_of(stats, "allocations");
  host.allocated_bytes = stat_of(stats, "active_bytes");
  host.reserved_bytes = stat_of(stats, "allocated_bytes");
#endif
  host.num_host_alloc = figure(stats, "num_host_alloc");
  host.num_host_free = figure(stats, "num_host_free");
  host.host_alloc_time = duration_of(stats, "host_alloc_time");
  host.host_free_time = duration_of(stats, "host_free_time");
  return host;
}

} // namespace lade_torch
