/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Settings as one line of text, in the syntax that PyTorch users know from PYTORCH_ALLOC_CONF.
 *
 *   KEY:VALUE[,KEY:VALUE...]          blanks and line ends around keys, values and commas are allowed
 *
 *   key                            value                    meaning
 *   backend                        native, cudaMallocAsync  lade_device_options.backend
 *   max_split_size_mb              21 .. 2^40 - 1           ... .max_split_bytes
 *   garbage_collection_threshold   above 0, below 1         ... .collection_threshold
 *   expandable_segments            True, False              ... .expandable_segments
 *   roundup_power2_divisions       D, or [A:D,A:D,...,>:D]  ... .roundup_divisions
 *   release_lock_on_cudamalloc     True, False              none: lade never holds a lock there
 *   max_non_split_rounding_mb      21 .. 2^40 - 1           lade_device_options.max_unsplit_slack_bytes
 *   large_segment_size_mb          11 .. 2^40 - 1           ... .large_segment_bytes
 *   per_process_memory_fraction    0 .. 1                   ... .memory_fraction
 *   throw_on_cudamalloc_oom        True, False              ... .flags, LADE_DEVICE_REFUSE_BEYOND_LIMIT
 *   graph_capture_record_stream_   True, False              ... .flags, LADE_DEVICE_CAPTURE_REUSE
 *   reuse
 *   pinned_use_cuda_host_register  True, False              lade_pinned_options.sources
 *   pinned_num_register_threads    power of two up to 128   ... .prefault_threads
 *   device_max_mb                  0 (none) ..              lade_device_options.max_bytes
 *   device_expandable_pools        True, False              ... .flags, LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS
 *   device_expandable_ipc          True, False              ... .flags, LADE_DEVICE_EXPANDABLE_IPC
 *   device_uncached                True, False              ... .flags, LADE_DEVICE_UNCACHED
 *   device_policy                  default, reference,      ... .flags, LADE_DEVICE_REFERENCE or LADE_DEVICE_THREAD_CACHES
 *                                  threads
 *   device_newest_pool             True, False              ... .flags, LADE_DEVICE_NEWEST_POOL
 *   device_streams_are_retired     True, False              ... .flags, LADE_DEVICE_STREAMS_ARE_RETIRED
 *   device_event_batch             0 (default) .. 65536     ... .event_batch
 *   pinned_max_mb                  0 (default) ..           lade_pinned_options.max_bytes
 *   pinned_event_batch             0 (default) .. 65536     ... .event_batch
 *   pinned_wait_ms                 0 ..                     ... .wait_ms
 *   pinned_segment_mb              0 (default) .. 2^20      ... .segment_bytes
 *   pinned_reserve_segment_size_mb 0 (default) .. 2^20      the same; later versions reserve one such segment
 *   pinned_magazine_mb             0 (default) ..           ... .magazine_bytes
 *   pinned_max_idle_ms             0 (never) ..             ... .max_idle_ms
 *   pinned_threads                 0 (default) .. 1024      ... .prefault_threads, before pinned_num_register_threads
 *   pinned_numa_strict             True, False              ... .flags, LADE_PINNED_NUMA_STRICT
 *   pinned_background              True, False              ... .flags, LADE_PINNED_BACKGROUND
 *   pinned_use_background_threads  True, False              the same, under the name of later versions
 *   pinned_policy                  default, reference       ... .flags, LADE_PINNED_REFERENCE
 *   pinned_debug                   True, False              ... .flags, LADE_PINNED_DEBUG
 *   pinned_device_mapped           True, False              ... .flags, LADE_PINNED_DEVICE_MAPPED
 *   pinned_register_chunk_mb       0 (all at once) .. 2^20  ... .register_chunk_bytes
 *   pinned_source                  S, or S|S...             ... .sources, before pinned_use_cuda_host_register;
 *                                                           S: register, driver, pool, pageable
 *   pinned_budget                  default, on, off         ... .budget
 *   pinned_budget_name             letters, digits, - _ .   ... .budget_name
 *   pinned_budget_mb               0 (default) ..           ... .budget_bytes
 *   pinned_budget_share            first_come, fair, part   ... .budget_share
 *   pinned_budget_part_mb          0 ..                     ... .budget_part_bytes
 *   pinned_local_ranks             0 (one) .. 2^20          ... .local_ranks, and lade_pipeline_options.local_ranks
 *   storage                        auto, uring, pread,      lade_pipeline_options.storage
 *                                  cufile
 *
 * release_lock_on_hipmalloc and pinned_use_hip_host_register are other names of the two keys with "cuda" in theirs. These
 * are all keys of PyTorch 2.11.
 *
 * D is a power of two, in the list also 0 (off); A is a size in MiB, a power of two. The list fills a table of 16
 * entries, for sizes from 1 MiB, 2 MiB, ..., 32 GiB up, all off at first: A names the entry of its size (the last, if
 * it is larger); the first A also fills the entries below its own; `>` fills from the entry named last, that one
 * included.
 *
 * The program calls these; the library never reads the environment by itself.
 *
 *   lade_config config;
 *   lade_config_init(&config);
 *   if (lade_config_from_env(&config) != LADE_OK) ...
 *   lade_device_options options;
 *   lade_device_options_init(&options);
 *   lade_config_apply_device(&config, &options);
 */
#ifndef LADE_CONFIG_H
#define LADE_CONFIG_H

#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Settings by the names of their keys; all zero means all defaults. Fields are appended only, in 8-byte steps. */
typedef struct lade_config {
  size_t struct_size;
  uint64_t max_split_size_mb; /**< 0: no limit */
  double garbage_collection_threshold;
  uint64_t roundup_power2_divisions[16];
  uint32_t expandable_segments;
  uint32_t release_lock_on_cudamalloc;
  uint32_t pinned_use_cuda_host_register; /**< 0: not said, 1: True, 2: False */
  uint32_t pinned_num_register_threads;
  uint64_t device_max_mb;
  uint64_t pinned_max_mb;
  uint32_t device_event_batch;
  uint32_t pinned_event_batch;
  uint32_t pinned_wait_ms;
  uint32_t backend; /**< lade_device_backend */
  uint64_t pinned_segment_mb;
  uint64_t pinned_magazine_mb;
  uint32_t pinned_max_idle_ms;
  uint32_t pinned_threads;
  uint32_t pinned_numa_strict;
  uint32_t pinned_background;
  uint32_t pinned_sources; /**< pinned_source, as lade_pinned_options.sources; 0: not said */
  uint32_t pinned_debug;
  uint32_t pinned_reference; /**< pinned_policy; 0: default, 1: reference */
  uint32_t pinned_device_mapped;
  uint64_t max_non_split_rounding_mb;         /**< 0: 20 */
  double per_process_memory_fraction;         /**< 0: no limit */
  uint64_t pinned_register_chunk_mb;          /**< 0: all at once */
  uint32_t device_uncached;                   /**< LADE_DEVICE_UNCACHED */
  uint32_t storage;                           /**< lade_storage */
  uint32_t device_expandable_pools;           /**< LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS */
  uint32_t device_expandable_ipc;             /**< LADE_DEVICE_EXPANDABLE_IPC */
  uint64_t large_segment_size_mb;             /**< 0: 20 */
  uint32_t device_reference;                  /**< device_policy; 0: default, 1: reference, 2: threads */
  uint32_t device_newest_pool;                /**< LADE_DEVICE_NEWEST_POOL */
  uint32_t device_streams_are_retired;        /**< LADE_DEVICE_STREAMS_ARE_RETIRED */
  uint32_t throw_on_cudamalloc_oom;           /**< LADE_DEVICE_REFUSE_BEYOND_LIMIT */
  uint32_t graph_capture_record_stream_reuse; /**< LADE_DEVICE_CAPTURE_REUSE */
  uint32_t reserved;                          /**< 0 */
  uint32_t pinned_budget;                     /**< lade_pinned_budget_mode */
  uint32_t pinned_budget_share;               /**< lade_pinned_budget_share */
  uint64_t pinned_budget_mb;
  uint64_t pinned_budget_part_mb;
  uint32_t pinned_local_ranks; /**< 0: not said */
  uint32_t reserved_2;         /**< 0 */
  char pinned_budget_name[64]; /**< "": the user's */
} lade_config;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_config_init(lade_config *config) {
  const lade_config zero = LADE_ZERO;
  *config = zero;
  config->struct_size = sizeof(lade_config);
}

/**
 * Read settings over those that `config` holds; keys that the text does not name keep their values.
 *
 * @param text    Borrowed for the call. Empty (or blanks) changes nothing.
 * @param config  [in,out] Set up by lade_config_init(). Untouched on error.
 *
 * Threads: any. Waits: never.
 * Errors: LADE_ERR_CONFIG for an unknown key, a key given twice, or a bad value; the error text names key, value and
 * position (from 1) in the text. LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_config_parse(const char *text, lade_config *config);

/**
 * Read the environment: settings, and what the library writes about itself.
 *
 * The settings come from the first of these variables that is set:
 *
 *   LADE_ALLOC_CONF            as lade_config_parse()
 *   PYTORCH_ALLOC_CONF         the same, but a key that lade does not know, or does not serve, is passed over: the log names it
 *   PYTORCH_CUDA_ALLOC_CONF    once per process, at LADE_LOG_WARN; a bad value of a key that lade knows is an error. As in
 *                              PyTorch a comma may stand at the end, and of a key given twice the last counts
 *
 * PYTORCH_NO_CUDA_MEMORY_CACHING, of whatever value, means device_uncached:True.
 *
 * LADE_BUDGET=off, on, or KEY:VALUE[,KEY:VALUE...] with the keys name, mb, share and part_mb: the settings pinned_budget and
 * pinned_budget_KEY, in place of those above.
 *
 * What launchers say of the processes of the job on this machine means pinned_local_ranks, where no settings say it: torchrun's
 * LOCAL_WORLD_SIZE, DeepSpeed's LOCAL_SIZE, Open MPI's OMPI_COMM_WORLD_LOCAL_SIZE, MPICH's MPI_LOCALNRANKS, PALS' PMI_LOCAL_SIZE,
 * Slurm's SLURM_STEP_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE, PMI_SIZE of MPICH's gforker, each with the process's rank on the
 * machine beside it. The first of them counts. A value that makes no sense, or LOCAL_RANK without a count (Lightning), is no
 * error: the process is taken for the only one, and the log says so at LADE_LOG_WARN.
 *
 * LADE_LOG=error|warn|info|debug[:FILE] begins the log (lade/log.h), on standard error or at the end of FILE; `off` does not.
 * The first call of the process that finds it set does that, unless the program has set a callback of its own.
 *
 * LADE_STATS=exit[:FILE] writes a line for each pool, allocator and pipeline that is alive when the process exits.
 *
 * @param config  [in,out] Set up by lade_config_init(). Untouched on error.
 *
 * Threads: as getenv().
 * Errors: as lade_config_parse(), naming the variable too; LADE_ERR_CONFIG for a LADE_LOG or LADE_STATS that is none of these, LADE_ERR_IO for a
 * file that cannot be opened.
 */
LADE_API lade_status lade_config_from_env(lade_config *config);

/** Put the settings of the device cache into its options; fields without a key stay. Threads: any. */
LADE_API void lade_config_apply_device(const lade_config *config, lade_device_options *options);

/** Put the settings of the pinned pool into its options; fields without a key stay. options->budget_name is `config`'s own: it
 * must outlive the options. Threads: any. */
LADE_API void lade_config_apply_pinned(const lade_config *config, lade_pinned_options *options);

/** Put the settings of transfers into a pipeline's options; fields without a key stay. Threads: any. */
LADE_API void lade_config_apply_pipeline(const lade_config *config, lade_pipeline_options *options);

#ifdef __cplusplus
}
#endif
#endif /* LADE_CONFIG_H */
