/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Checkpoints in the safetensors format: opened and checked, loaded to one device or several, saved from devices.
 *
 * A file is an 8-byte length, a JSON header and the bytes of the tensors, one after the other. A checkpoint is one such
 * file, or several with a `model.safetensors.index.json` that says which tensor is in which. Several files that lade has
 * saved carry the id of their save, and so does their index ("lade_save" in the metadata of each): files of two saves are
 * never opened as one checkpoint.
 *
 *   lade_safetensors *file;
 *   lade_tensor_load *load;
 *   lade_load_target target = lade_load_target_pair(pair, stream);
 *   lade_safetensors_open("model.safetensors", &file);
 *   lade_safetensors_load(file, &target, 1, NULL, &load);            // starts; does not wait
 *   lade_tensor_load_address(load, 0, &weights, NULL);               // known at once
 *   lade_tensor_load_stream_wait(load, 0, stream);                   // work queued from here on sees tensor 0
 *   if (lade_tensor_load_wait(load, LADE_LOAD_ALL, LADE_WAIT_FOREVER) != LADE_OK) ...
 *   lade_tensor_load_destroy(load, false);                           // frees the memory
 *   lade_safetensors_close(file);
 *
 * Rules shared by the calls below
 *   - An opened checkpoint does not change: any thread may read it. Tensors are numbered in the order of their bytes,
 *     file by file.
 *   - A file that breaks a rule of the format is refused with LADE_ERR_FORMAT, and lade_last_error() says which rule and
 *     which tensor: a header that is too long, no JSON, not UTF-8, or has a name twice; an entry that is not made of
 *     dtype, shape and data_offsets; an unknown dtype; numbers that overflow; bytes that do not fit dtype and shape;
 *     tensors that overlap, leave a hole, or do not end with the file; metadata that is not text; a file of another save
 *     than its index.
 *   - A thread that is cancelled (pthread_cancel) in a call brings the call to its end first. So callbacks of the program run with
 *     cancellation disabled, too.
 *   - Bytes go from the file into pinned memory and from there to the device, and back: no other copy on the host.
 */
#ifndef LADE_SAFETENSORS_H
#define LADE_SAFETENSORS_H

#include "lade/device.h"
#include "lade/dtype.h"
#include "lade/group.h"
#include "lade/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A checkpoint that is open. */
typedef struct lade_safetensors lade_safetensors;
/** Tensors on their way to devices, and their memory there. */
typedef struct lade_tensor_load lade_tensor_load;

/** One tensor of an opened checkpoint. Pointers are valid until it is closed. */
typedef struct lade_tensor_info {
  size_t struct_size;
  const char *name;      /**< UTF-8, terminated. */
  const uint64_t *shape; /**< `rank` numbers, outermost dimension first; row-major. */
  uint64_t rank;         /**< 0: one element. */
  uint64_t bytes;        /**< May be 0. */
  uint64_t file;         /**< Which of the checkpoint's files. */
  uint64_t offset;       /**< Of its first byte, from the start of that file. */
  int32_t dtype;         /**< lade_dtype */
  int32_t reserved;      /**< 0. */
} lade_tensor_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_tensor_info_init(lade_tensor_info *info) { LADE_INIT(info); }

/**
 * Open a checkpoint: read and check the headers. Reads no tensor.
 *
 * Up to a quarter of the process's limit on descriptors its files stay open; of these a load reads what was opened, even
 * if a save replaces the checkpoint meanwhile. Files beyond are opened again by loads, which fail with LADE_ERR_IO if such
 * a file is gone or another one.
 *
 * @param path  A file in the format; or, when its name ends in ".json", an index whose files lie in its folder or below. Of those
 *              files the tensors that the index names belong to the checkpoint. If a save replaces the index while its
 *              files are opened, the new one is read. Experimental: or the URL of either (lade_endpoint_url()); the files of
 *              an index have its query. All loads read the versions of the objects that were opened: one that is replaced
 *              is LADE_ERR_IO with ESTALE, as far as its server tells versions apart.
 * @param out   [out] Caller owns it until lade_safetensors_close(). Untouched on error.
 *
 * Threads: any. Waits: for the reads. Stream order: none.
 * Errors: LADE_ERR_FORMAT, see above; LADE_ERR_IO; LADE_ERR_TRUNCATED; LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_INVALID_ARGUMENT. Of a URL also LADE_ERR_UNSUPPORTED: libcurl.so.4 is not there, or older than 7.85.
 * Source: docs/pipeline.md "Checkpoints", docs/sources.md.
 */
LADE_API lade_status lade_safetensors_open(const char *path, lade_safetensors **out);

/** Close a checkpoint; NULL does nothing. No load of it is under way. Threads: excludes other calls on it. */
LADE_API void lade_safetensors_close(lade_safetensors *file);

/** Number of tensors. Threads: any. */
LADE_API uint64_t lade_safetensors_count(const lade_safetensors *file);
/** Number of entries in the files' metadata, without the id of a save. Threads: any. */
LADE_API uint64_t lade_safetensors_metadata_count(const lade_safetensors *file);

/** Path or URL of one of its files; NULL for a number that is none. Valid until it is closed. Threads: any. */
LADE_API const char *lade_safetensors_file_path(const lade_safetensors *file, uint64_t index);

/**
 * Describe a tensor.
 *
 * @param info  [in,out] struct_size set by lade_tensor_info_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_safetensors_tensor(const lade_safetensors *file, uint64_t index, lade_tensor_info *info);

/**
 * Find a tensor by name. Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, naming it, if there is none.
 */
LADE_API lade_status lade_safetensors_find(const lade_safetensors *file, const char *name, uint64_t *out_index);

/**
 * Read an entry of the metadata, file by file. Strings are valid until the checkpoint is closed.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_safetensors_metadata(const lade_safetensors *file, uint64_t index, const char **out_key,
                                               const char **out_value);

/**
 * Make the bytes of a tensor a transfer's source, to read parts of it. They are those of the file that was opened, even if
 * a save has replaced it; see lade_safetensors_open() for files beyond.
 *
 * @param index       Number of the tensor.
 * @param offset      In its bytes. The range that is read from there on ends within the tensor.
 * @param file_flags  lade_file_flags; of a URL not used.
 * @param out         [out] Valid until the checkpoint is closed, which is not before the transfer is over.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT; LADE_ERR_IO, "the checkpoint has changed since it was
 * opened".
 */
LADE_API lade_status lade_safetensors_endpoint(const lade_safetensors *file, uint64_t index, uint64_t offset,
                                               uint32_t file_flags, lade_endpoint *out);

/** A device to load to, or to save from. All borrowed; they outlive the load. */
typedef struct lade_load_target {
  lade_pipeline *pipeline;          /**< Of that device. */
  lade_device_allocator *allocator; /**< Of that device. Not used for saving, nor with options.memory. */
  lade_stream stream;               /**< Loading: memory is allocated on it, and copies come after what is queued there.
                                         Saving: copies come after what is queued there. */
} lade_load_target;

/** Which part of a tensor a rank of a group gets. */
typedef enum lade_load_spread {
  LADE_SPREAD_REPLICATE = 0, /**< Each rank the whole tensor. */
  /** Each rank its slice along one dimension: rank r of n gets elements r * size / n to (r + 1) * size / n of it. For tensor
   * parallelism: the first dimension of a linear layer's weight is its outputs (column-parallel), the second its inputs
   * (row-parallel). */
  LADE_SPREAD_SLICE = 1,
  LADE_SPREAD_RANK = 2, /**< One rank the whole tensor, as for pipeline or expert parallelism. */
  /** The same, and the rank is chosen: neighbours stay together, with about the same number of bytes on each rank. */
  LADE_SPREAD_BALANCE = 3,
} lade_load_spread;

/** How the tensors of some names are spread over a group. Fields are appended only. */
typedef struct lade_load_rule {
  /** Of names, whole ones, as fnmatch(3) without flags: '*' any text, '?' any character. NULL: all. Not looked at when
   * a callback fills the rule. */
  const char *pattern;
  int32_t spread; /**< lade_load_spread */
  int32_t dim;    /**< SLICE: the dimension; from the last one if negative: -1 is the last. */
  uint32_t rank;  /**< RANK */
  /** SLICE: 0: a size that the ranks do not divide is refused. 1: cut as torch.chunk() does: slices of the size divided by the
   * ranks and rounded up, of which the last ones are shorter, or empty. */
  uint32_t uneven;
} lade_load_rule;

/**
 * Fills the rule of one tensor, which is all zero (LADE_SPREAD_REPLICATE) at the call. Called once for each tensor of a load, by
 * the thread that loads, and must say the same on all ranks. Any status but LADE_OK ends the load, on all ranks, with
 * LADE_ERR_CALLBACK. C++ exceptions must not leave it.
 */
typedef lade_status (*lade_load_rule_callback)(void *user, const lade_tensor_info *tensor, lade_load_rule *rule);

/** A part of a tensor along one dimension. */
typedef struct lade_load_part {
  uint64_t begin, end; /**< Elements [begin, end) along the dimension. Both 0: the whole tensor. */
  int32_t dim;         /**< The dimension; from the last one if negative: -1 is the last. */
  int32_t reserved;    /**< 0 */
} lade_load_part;

/** Options of lade_safetensors_load; all zero means all defaults. */
typedef struct lade_load_options {
  size_t struct_size;
  const uint64_t *tensors;   /**< Which to load, none twice; NULL: all. Their place here is their number in the load. */
  uint64_t tensor_count;     /**< Of `tensors`. */
  const uint32_t *target_of; /**< Target of each of them. NULL: spread over all targets in their order, so that each
                                  gets about the same number of bytes. */
  uint64_t alignment;        /**< Of each tensor's address; a power of two up to 512. 0: 256. */
  uint32_t per_tensor;       /**< 1: one allocation for each tensor. 0: one for each target. */
  uint32_t file_flags;       /**< How files are read: LADE_FILE_DIRECT, LADE_FILE_CACHED, or 0: as the pipeline's
                                  options.load_cache says. */
  /** Experimental: the ranks that load together; see lade_safetensors_load(). NULL: this process loads alone. */
  lade_group *group;
  const lade_load_rule *rules;     /**< With a group: the first whose pattern fits counts. No rule fits: REPLICATE. */
  uint64_t rule_count;             /**< Of `rules`. */
  lade_load_rule_callback rule_of; /**< With a group, instead of `rules`: not both. */
  void *rule_user;                 /**< Its first argument. */
  /** With a group: bytes that one rank reads and hands on at once, about. From 4 KiB to 1 GiB. 0: 64 MiB, less for loads of
   * less than eight such parts for each rank. Device memory for five of them beside what is loaded. The same on all ranks. */
  uint64_t part_bytes;
  /** Where the tensors go: device memory of the caller's, by number in the load, on the target of each; of a tensor without bytes any
   * value. Nothing is allocated then: targets need no allocator, and alignment and per_tensor do not count. It must stay until the
   * load is destroyed. Each has room for its tensor, and none overlaps another. After an error it holds some bytes, not all. Not with a group.
   * Borrowed for the call; NULL: allocated. */
  void *const *memory;
  /** Experimental: the part of each of them that is loaded, row-major, by number in the load. The rest is not read. Parts begin
   * and end at bytes. Not with a group, whose rules say it. Borrowed for the call; NULL: all whole. */
  const lade_load_part *parts;
  /** Experimental: the lade_dtype of each of them in memory, by number in the load; 0: as in the file. Of F32, F16, BF16, F8_E5M2 and
   * F8_E4M3 each is converted to each other on its way (transfer.host_dtype in lade/pipeline.h): no device memory is taken for that,
   * and bytes counted are the file's. The first such load of a device loads the kernel, as lade_copy_prepare() does. Addresses in
   * `memory` are multiples of the size of an element. Not with a group. Borrowed for the call; NULL: all as in the file. */
  const int32_t *dtypes;
} lade_load_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_load_options_init(lade_load_options *options) { LADE_INIT(options); }

/** How far a load is. */
typedef struct lade_load_info {
  size_t struct_size;
  uint64_t bytes;
  uint64_t bytes_done;
  uint64_t transfers; /**< Into which the load was divided. */
  /** Of `bytes`, those that are read past the page cache, as far as the file system can. */
  uint64_t direct_bytes;
  /** Of `bytes`, those that the page cache had before the load, by a sample. 0 where that made no difference to it. */
  uint64_t cached_bytes;
} lade_load_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_load_info_init(lade_load_info *info) { LADE_INIT(info); }

/** This rank's part of a tensor, or that of options.parts, which is told as SLICE. */
typedef struct lade_load_slice {
  size_t struct_size;
  uint64_t begin; /**< SLICE: elements [begin, end) along the dimension. Else 0 and its size, or 0 and 0 if not here. */
  uint64_t end;
  uint64_t bytes;    /**< In memory: those of the slice, row-major. 0: nothing of it is here. */
  int32_t spread;    /**< lade_load_spread */
  int32_t dim;       /**< SLICE: from 0 on. Else 0. */
  uint32_t rank;     /**< RANK, BALANCE: the rank that has it. */
  uint32_t reserved; /**< 0 */
} lade_load_slice;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_load_slice_init(lade_load_slice *slice) { LADE_INIT(slice); }

/**
 * Start to load tensors.
 *
 * Allocates their memory (unless options.memory says where they go) and submits transfers in the order of the file; tensors that follow each other in the file and
 * in memory go together. The first transfers are small, so that the first tensors are there early.
 *
 * @param file     Borrowed until the load is destroyed.
 * @param targets  Borrowed for the call; what they name, until the load is destroyed.
 * @param options  Borrowed for the call; NULL for defaults.
 * @param out      [out] Caller owns it until lade_tensor_load_destroy(). Untouched on error.
 *
 * Threads: any. Waits: while a pipeline has no room for the transfers; after an error, for those that had begun.
 * Stream order: after the work queued on the targets' streams.
 * Errors: LADE_ERR_INVALID_ARGUMENT; those of lade_device_alloc() and lade_pipeline_submit(), LADE_NOT_READY with a
 * pipeline of options.no_wait; with options.dtypes those of lade_copy_prepare(). Errors of the transfers come out of the waits below; with a group, out of this call, as those of
 * lade_group_broadcast(). LADE_ERR_PEER: ranks disagree.
 * Source: docs/pipeline.md "Checkpoints", "Checkpoints read once".
 */
LADE_API lade_status lade_safetensors_load(lade_safetensors *file, const lade_load_target *targets,
                                           uint64_t target_count, const lade_load_options *options,
                                           lade_tensor_load **out);

/**
 * Where a tensor is, or will be.
 *
 * @param index       Its number in the load.
 * @param out_memory  [out] Device address; of a tensor without bytes NULL.
 * @param out_target  [out] NULL if not wanted.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_tensor_load_address(const lade_tensor_load *load, uint64_t index, void **out_memory,
                                              uint32_t *out_target);

/**
 * Get the part of a tensor that this rank has. Without a group: all of it, or what options.parts says.
 *
 * @param index  Its number in the load.
 * @param slice  [in,out] struct_size set by lade_load_slice_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_tensor_load_slice(const lade_tensor_load *load, uint64_t index, lade_load_slice *slice);

/** For lade_tensor_load_wait(): all tensors. */
#define LADE_LOAD_ALL UINT64_MAX

/**
 * Wait until a tensor, or all of them, have arrived.
 *
 * @param index  Number of the tensor, which may have arrived long before the rest; LADE_LOAD_ALL.
 *
 * @return LADE_OK; LADE_ERR_TIMEOUT: not yet; else the first error of a transfer, as lade_ticket_wait() gives it; or
 * LADE_ERR_IO, "the checkpoint has changed since it was opened": by size and time of modification a file was written to,
 * so what arrived may be of two states of it. (A file that was replaced by renaming is still read, if it is open.)
 *
 * Threads: any. Waits: yes. On "sim": moves the clock. Errors: also LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_tensor_load_wait(lade_tensor_load *load, uint64_t index, uint64_t timeout_ns);

/**
 * Let work queued on `stream` from now on see a tensor. As lade_stream_wait_ticket(): waits for its reads, not for its
 * copies. Threads: any.
 */
LADE_API lade_status lade_tensor_load_stream_wait(lade_tensor_load *load, uint64_t index, lade_stream stream);

/**
 * Ask how far it is.
 *
 * @param info  [in,out] struct_size set by lade_load_info_init().
 * @return LADE_NOT_READY while it is under way, else as lade_tensor_load_wait().
 *
 * Threads: any. Waits: never.
 */
LADE_API lade_status lade_tensor_load_query(lade_tensor_load *load, lade_load_info *info);

/**
 * End a load. Transfers under way are cancelled and waited for. NULL does nothing.
 *
 * @param load         Taken on success.
 * @param keep_memory  Of no account with options.memory, which stays the caller's. false: the memory is freed. Streams other than the targets' that used it must have been recorded
 *                     (lade_device_record_stream) or be done. true: it becomes the caller's; each address is then freed
 *                     with lade_device_free(): that of every tensor with bytes when options.per_tensor, else that of
 *                     the first tensor with bytes of each target, in the order of the checkpoint's numbers. Ignored,
 *                     the memory freed, if the load failed or was not finished.
 *
 * Threads: excludes other calls on it. Waits: for transfers. Errors: LADE_ERR_TIMEOUT on "sim" when a transfer can
 * never end, LADE_ERR_FORKED: the load stays.
 */
LADE_API lade_status lade_tensor_load_destroy(lade_tensor_load *load, bool keep_memory);

/** As lade_tensor.target: the tensor is in host memory. */
#define LADE_TARGET_HOST UINT32_MAX

/** A tensor to save. */
typedef struct lade_tensor {
  const char *name;      /**< UTF-8; not "__metadata__". */
  const uint64_t *shape; /**< `rank` numbers. */
  uint64_t rank;
  void *memory;    /**< On the device of its target; NULL if it has no bytes. */
  uint32_t target; /**< Which of the targets; LADE_TARGET_HOST: the calling thread writes it from where it is. */
  int32_t dtype;   /**< lade_dtype */
} lade_tensor;

/** An entry of the metadata. */
typedef struct lade_metadata {
  const char *key;   /**< UTF-8 */
  const char *value; /**< UTF-8 */
} lade_metadata;

/** Called from time to time with the progress of a save; any status but LADE_OK ends it with LADE_ERR_CANCELLED. In a save that
 * goes on by itself it is called on a thread of lade, and must not wait for that save. */
typedef lade_status (*lade_save_progress)(void *user, uint64_t bytes_done, uint64_t bytes);

/** Options of lade_safetensors_save and lade_safetensors_save_begin; all zero means all defaults. */
typedef struct lade_save_options {
  size_t struct_size;
  const lade_metadata *metadata; /**< Written in this order, into each file. */
  uint64_t metadata_count;
  uint64_t max_shard_bytes; /**< Of tensors in one file; when there are more, several files and an index are written. A
                                 larger tensor gets a file of its own. 0: one file. */
  lade_save_progress progress;
  void *user;      /**< Its first argument. */
  int32_t no_sync; /**< 1: do not wait until the files are on stable storage before they get their names. */
  /** 1: the header of one file without metadata has an empty "__metadata__", as the `safetensors` package writes it of an empty
   * dict. 0: it has none. */
  int32_t empty_metadata;
  /** lade_safetensors_save_begin() alone: pinned memory that copies of tensors may wait in until they are written, at most, for all
   * targets together; 8 KiB for each at least, 16 GiB at most. 0: as much as the tensors of devices need, at most half of the cap of a
   * pool. */
  uint64_t stage_bytes;
} lade_save_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_save_options_init(lade_save_options *options) { LADE_INIT(options); }

/**
 * Save tensors. One file is the one that the `safetensors` package writes of the same tensors and metadata, byte for
 * byte. So is each of several files, with this metadata: the caller's, "format": "pt" unless the caller gives a
 * "format" (loaders of shards refuse metadata without one), and the id of the save.
 *
 * A save replaces an older checkpoint of the same path at one moment: one file by renaming, several by renaming the index.
 * Whenever it fails, or its process is killed, either the old checkpoint or the new one can be opened, whole. After an
 * error it is the old one, except where the new one is in place and could not be flushed or closed (LADE_ERR_IO).
 * Without options.no_sync that holds for a loss of power, too.
 *
 * Several files get names that no other save uses: "model.safetensors" gives "model-7-00001-of-00003.safetensors" and so
 * on, 7 being one more than the number of the save that "model.safetensors.index.json" names before. Once the new index
 * is in place the files of the save that it replaces are removed: those alone that carry its id. Keep a copy of all files,
 * or hard links in another folder, to keep an older save; the index alone keeps nothing. An index that lade did not write,
 * or files without an id, are never removed.
 *
 * While several files are saved, ".model.safetensors.index.json.lade-lock" is locked (flock): one save of a checkpoint
 * runs at a time. The lock ends with its process. The next save removes leftovers of a killed one: files of its id,
 * and temporary files (LADE_FILE_ATOMIC). Where a file system has no locks, nothing of that is removed, and two saves at
 * once of several files must be kept apart by the caller: a mixture is not opened, but the checkpoint is lost.
 *
 * Experimental: the path may be an s3:// URL. Then an object is there, whole, at one moment; options.no_sync, rights and locks do not
 * count. Several objects have random numbers in their names, and those of the save before stay. After an error
 * no upload of this save is left open, as docs/sources.md "Saving" says. The limits of requests are those of the first target's pipeline.
 * LADE_ERR_IO names object, part, HTTP status and attempt; LADE_ERR_UNSUPPORTED: other URLs, or libcurl.so.4 is not there.
 *
 * @param path     Of the file. With several files theirs begin as its name does, which must be UTF-8, as the index is;
 *                 tensors go there in the order given, and the index is called path + ".index.json". Another file of a
 *                 name, or a link to one, is replaced and gives the new one its rights, as with LADE_FILE_ATOMIC. Several files
 *                 get those of the one that allows others least: a file that the index before names, that index, the file `path`.
 * @param targets  The devices; borrowed for the call. None are needed for tensors of LADE_TARGET_HOST.
 * @param tensors  Borrowed for the call.
 * @param options  Borrowed for the call; NULL for defaults.
 *
 * Threads: any. Waits: until all is written. Stream order: reads the tensors after the work queued on their targets'
 * streams.
 * Errors: LADE_ERR_INVALID_ARGUMENT, naming the tensor: a name twice or not UTF-8, a shape too large, sub-byte elements
 * that do not fill bytes; metadata with a key twice, or "lade_save"; LADE_ERR_BUSY: another save of this checkpoint is
 * under way; LADE_ERR_IO, such as ENOSPC, and before anything is read a path that could not be replaced;
 * LADE_ERR_CANCELLED; those of lade_pipeline_submit() and lade_ticket_wait(); LADE_ERR_OUT_OF_HOST_MEMORY.
 * Source: docs/pipeline.md "Checkpoints".
 */
LADE_API lade_status lade_safetensors_save(const char *path, const lade_load_target *targets, uint64_t target_count,
                                           const lade_tensor *tensors, uint64_t tensor_count,
                                           const lade_save_options *options);

/** A save that goes on by itself. */
typedef struct lade_save lade_save;

/** How far a save is. */
typedef enum lade_save_mark {
  LADE_SAVE_STAGED = 1,  /**< The tensors may change, and be freed: lade has all their bytes, or has written them. */
  LADE_SAVE_DURABLE = 2, /**< The new checkpoint is in place; without options.no_sync on stable storage. */
} lade_save_mark;

/**
 * Begin a save that goes on by itself: the same files as lade_safetensors_save(), with the same promise that the old checkpoint or
 * the new one can be opened, whole, at every moment.
 *
 *   lade_save *save;
 *   lade_safetensors_save_begin("model.safetensors", &target, 1, tensors, count, NULL, &save);
 *   forward_and_backward(stream);         // reads the tensors
 *   lade_stream_wait_save(stream, save);  // or lade_save_wait(save, LADE_SAVE_STAGED, ...)
 *   optimizer_step(stream);               // changes them
 *   ...
 *   lade_save_wait(save, LADE_SAVE_DURABLE, LADE_WAIT_FOREVER);
 *   lade_save_destroy(save, false);
 *
 * Experimental: the path may be an s3:// URL. Then the stage has blocks of 8 MiB, one at least; "sim" waits for requests in
 * real time, whatever a call's limit is; lade_stream_wait_save() returns when the save is staged.
 *
 * Copies go to pinned memory as fast as the link allows, up to options.stage_bytes ahead of the writes, and at their pace from then
 * on. That memory comes from the pools of the targets' pipelines, and stays in their caches for the next save. Tensors of
 * LADE_TARGET_HOST are written from where they are, before the save is staged.
 *
 * @param path     As of lade_safetensors_save(). A copy is kept.
 * @param targets  The devices. Each gets a pipeline of the save's own, with pool, device and storage of that given here, whose pool and
 *                 runtime must outlive the save.
 * @param tensors  Borrowed for the call; their memory must stay as it is until the save is staged.
 * @param options  Borrowed for the call; NULL for defaults. options.user is used until the save is over.
 * @param out      [out] Caller owns it until lade_save_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the creation of files and threads; with more files than may be open at a time (a quarter of the process's
 * limit on descriptors) until the first ones are written. Stream order: reads the tensors after the work queued on their targets'
 * streams before the call.
 * Errors: those of lade_safetensors_save() that are known by then, with nothing written; those of lade_pipeline_create(). Others come
 * out of lade_save_wait().
 * Source: docs/pipeline.md "Checkpoints".
 */
LADE_API lade_status lade_safetensors_save_begin(const char *path, const lade_load_target *targets,
                                                 uint64_t target_count, const lade_tensor *tensors,
                                                 uint64_t tensor_count, const lade_save_options *options,
                                                 lade_save **out);

/**
 * Wait until a save is so far.
 *
 * @param mark        How far.
 * @param timeout_ns  Longest time to wait, by the runtime's clock; LADE_WAIT_FOREVER for no limit; 0 asks only.
 * @return LADE_OK; LADE_ERR_TIMEOUT: not yet; the save goes on. Else the error of the save, which is over then: nothing uses
 *         the tensors any more, and the checkpoint is as lade_safetensors_save() leaves it after an error.
 *
 * Threads: any; not options.progress. Waits: yes. On "sim" the save goes on in this call alone.
 * Errors: LADE_ERR_INVALID_ARGUMENT; those of lade_safetensors_save(); LADE_ERR_FORKED.
 */
LADE_API lade_status lade_save_wait(lade_save *save, lade_save_mark mark, uint64_t timeout_ns);

/**
 * Let work queued on `stream` from now on wait until the copies of the device tensors are over: it may overwrite them.
 *
 * @param stream  Any stream of the runtime.
 *
 * Threads: any; not options.progress. Waits: until the last copy has been queued. Stream order: after the copies.
 * Errors: those of lade_stream_wait_ticket(), and of the save, if it has failed.
 */
LADE_API lade_status lade_stream_wait_save(lade_stream stream, lade_save *save);

/**
 * Give a save back. NULL does nothing.
 *
 * @param save    Taken on success.
 * @param cancel  false: it comes to its end first. true: it is given up, unless its files are being named already; the checkpoint is
 *                the old one then.
 *
 * Threads: excludes other calls on it; not options.progress. Waits: for its end. Errors: LADE_ERR_TIMEOUT on "sim" when that can never
 * come, LADE_ERR_DRIVER where a stream cannot be destroyed, LADE_ERR_FORKED: the save stays.
 */
LADE_API lade_status lade_save_destroy(lade_save *save, bool cancel);

#ifdef __cplusplus
}
#endif
#endif /* LADE_SAFETENSORS_H */
