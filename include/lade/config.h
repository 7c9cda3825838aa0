/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Settings as one line of text, in the syntax that PyTorch users know from PYTORCH_ALLOC_CONF.
 *
 *   KEY:VALUE[,KEY:VALUE...]          blanks and line ends around keys, values and commas are allowed
 *
 * `lade settings` and docs/tuning.md list the keys: for each its values, the field of lade_device_options, lade_pinned_options or
 * lade_pipeline_options that it is, what holds without it, and what it does. Among them are all keys of PyTorch 2.11.
 *
 * roundup_power2_divisions:D, or [A:D,A:D,...,>:D]
 *
 * D is a power of two, in the list also 0 (off); A is a size in MiB, a power of two. The list fills a table of 16
 * entries, for sizes from 1 MiB, 2 MiB, ..., 32 GiB up, all off at first: A names the entry of its size (the last, if
 * it is larger); the first A also fills the entries below its own; `>` fills from the entry named last, that one
 * included.
 *
 * The program calls these; the library never reads the environment by itself.
 *
 *   lade_device_options options;
 *   lade_device_options_init(&options);
 *   lade_config config;
 *   lade_config_init(&config);
 *   config.device = &options;
 *   if (lade_config_from_env(&config) != LADE_OK) ...
 */
#ifndef LADE_CONFIG_H
#define LADE_CONFIG_H

#include "lade/device.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Where settings go. Fields are appended only, in 8-byte steps. */
typedef struct lade_config {
  size_t struct_size;
  /** Borrowed for each call, and set up by their own init functions before. NULL: settings of that room are read, and checked, and have
   * no effect. */
  lade_device_options *device;
  lade_pinned_options *pinned;
  lade_pipeline_options *pipeline;
  /** The text of pinned->budget_name after a setting named it; outlives the use of those options. */
  char budget_name[64];
} lade_config;

/** Sets struct_size, and the other fields to NULL and "". Threads: any. */
LADE_INLINE void lade_config_init(lade_config *config) { LADE_INIT(config); }

/**
 * Read settings into options; fields of keys that the text does not name stay.
 *
 * @param text    Borrowed for the call. Empty (or blanks) changes nothing.
 * @param config  [in,out] Set up by lade_config_init(). Untouched on error, as are the options.
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
 * If neither settings nor options give pinned_local_ranks, it comes from a launcher's count of the job's processes on
 * this machine: torchrun's LOCAL_WORLD_SIZE, DeepSpeed's LOCAL_SIZE, Open MPI's OMPI_COMM_WORLD_LOCAL_SIZE, MPICH's
 * MPI_LOCALNRANKS, PALS' PMI_LOCAL_SIZE, Slurm's SLURM_STEP_TASKS_PER_NODE, else SLURM_NTASKS_PER_NODE, PMI_SIZE of
 * MPICH's gforker, each with the process's rank on the machine beside it. The first of them counts. A value that makes
 * no sense, or LOCAL_RANK without a count (Lightning), is no error: the process is taken for the only one, and the log
 * says so at LADE_LOG_WARN.
 *
 * LADE_LOG=error|warn|info|debug[:FILE] begins the log (lade/log.h), on standard error or at the end of FILE; `off` does not.
 * The first call of the process that finds it set does that, unless the program has set a callback of its own.
 *
 * LADE_STATS=exit[:FILE] writes a line for each pool, allocator and pipeline that is alive when the process exits.
 *
 * @param config  [in,out] Set up by lade_config_init(). Untouched on error, as are the options.
 *
 * Threads: as getenv().
 * Errors: as lade_config_parse(), naming the variable too; LADE_ERR_CONFIG for a LADE_LOG or LADE_STATS that is none of these, LADE_ERR_IO for a
 * file that cannot be opened.
 */
LADE_API lade_status lade_config_from_env(lade_config *config);

#ifdef __cplusplus
}
#endif
#endif /* LADE_CONFIG_H */
