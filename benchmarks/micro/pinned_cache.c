/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned_cache: what does lade's pinned host block cache itself cost, beside fast mallocs and the cache that frameworks
 * have?
 *
 * Pinned memory is addresses only (model_driver.h), except in the cases that measure pinning. So sizes are free, and what
 * is measured is the caches' own work. Run it on a quiet machine, built with --config=opt.
 */
#include "benchmarks/micro/pinned_cache_crowd.h"
#include "benchmarks/micro/pinned_cache_cycles.h"
#include "benchmarks/micro/pinned_cache_idle.h"
#include "benchmarks/micro/pinned_cache_latency.h"
#include "benchmarks/micro/pinned_cache_memory.h"
#include "benchmarks/micro/pinned_cache_pairs.h"
#include "benchmarks/micro/pinned_cache_pin.h"

int main(int argc, char **argv) {
  static const bench_case cases[] = {
      {"warm", "alloc and free of one size, one thread, no stream", warm_case, NULL},
      {"lists", "the same with lists of sizes, replacing random ones of those in use", lists_case, NULL},
      {"holes", "1 KiB among 65,536 free holes, past the magazines", holes_case, NULL},
      {"record", "alloc, record on one stream, free; 64 in flight; calls of the driver subtracted", record_case, NULL},
      {"reference", "against the model of PyTorch's cache: own cost, and with a driver's cost", reference_case, NULL},
      {"streams", "as record, over 10,000 streams one after the other, each idle when it is used again", streams_case,
       NULL},
      {"threads", "speed of two threads by that of one", threads_case, NULL},
      {"crowd", "a pair, and a recorded cycle, in each of up to 16 threads", crowd_case, NULL},
      {"crowd_lists", "blocks of the random lists replaced, in each of up to 16 threads", crowd_lists_case, NULL},
      {"idle", "a pair and a recorded cycle among 0 to 1,000 idle threads", idle_case, NULL},
      {"latency", "99.9th percentile of single calls, two threads", latency_case, NULL},
      {"stuck", "reserved bytes when one stream never finishes, by those when it does", stuck_case, NULL},
      {"waste", "reserved by requested bytes after random replacement", waste_case, NULL},
      {"metadata", "memory that records of blocks take", metadata_case, NULL},
      {"cold", "pinning: map, prefault, lock", cold_case, NULL},
      {"pin", "reserve of up to 16 GiB, on a GPU's driver where there is one; against its parts and other ways",
       pin_case, NULL},
  };
  return bench_main(argc, argv, "What does the pinned cache itself cost, beside mallocs and PyTorch's cache?", cases,
                    sizeof cases / sizeof cases[0]);
}
