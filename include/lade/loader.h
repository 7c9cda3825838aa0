/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Records of files, in batches, in device memory: data sets for training and for inference over many inputs.
 *
 * An index says where the records are. A loader goes through it, in order or shuffled, packs records into batches, stages
 * a few batches ahead and hands them out on the consumer's stream. A batch that is given back is used again when that
 * stream has passed.
 *
 *   lade_record_index *index;
 *   lade_index_create("jpg,cls", &index);                // a sample has these two fields
 *   lade_index_add_tar(index, "shard-000000.tar", NULL);
 *
 *   lade_loader_options options;
 *   lade_loader_options_init(&options);
 *   options.batch_records = 256;
 *   options.shuffle = 1;
 *   options.epochs = 1;
 *   lade_loader_create(index, pipeline, allocator, &options, &loader);
 *   lade_batch batch;
 *   lade_batch_init(&batch);
 *   while (lade_loader_next(loader, stream, LADE_WAIT_FOREVER, &batch) == LADE_OK && batch.count > 0) {
 *     ... queue work on `stream` that reads batch.memory + batch.offsets[i], batch.lengths[i] bytes ...
 *     lade_loader_return(loader, &batch, stream);        // at once: reuse waits for the stream, nothing else does
 *   }
 *
 * Rules shared by the calls below
 *   - The order of records depends on the index, the seed, the epoch, rank and world size alone: not on the number of
 *     readers, their speed, or the batches.
 *   - An index is built by one thread, and does not change while a loader uses it, which it outlives.
 *   - A thread that is cancelled (pthread_cancel) in a call brings the call to its end first.
 *   - A batch is handed out whole or not at all. After an error of lade_loader_next() the next call tries the same batch
 *     again. With options.skip_unreadable it is handed out without the records that cannot be read instead.
 */
#ifndef LADE_LOADER_H
#define LADE_LOADER_H

#include "lade/device.h"
#include "lade/pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which records there are, and where the bytes of each lie. */
typedef struct lade_record_index lade_record_index;
/** Batches of an index's records, on their way to a device. */
typedef struct lade_loader lade_loader;

/** Where one field of a record lies. */
typedef struct lade_range {
  uint64_t file;   /**< As lade_index_add_file() numbered it. */
  uint64_t offset; /**< Of its first byte. */
  uint64_t bytes;  /**< May be 0. */
} lade_range;

/* --- index -------------------------------------------------------------------------------------------------------- */

/**
 * Create an empty index.
 *
 * @param fields  Names of the fields that each record has, with commas between them: file extensions for tar shards, with
 *                ';' between those that mean the same field ("jpg;jpeg;png,cls"). NULL: one field without name. At
 *                most 64.
 * @param out     [out] Caller owns it until lade_index_destroy(). Untouched on error.
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT for an empty name or one given twice;
 * LADE_ERR_OUT_OF_HOST_MEMORY. Source: docs/pipeline.md "Records in batches".
 */
LADE_API lade_status lade_index_create(const char *fields, lade_record_index **out);

/** Destroy an index; NULL does nothing. No loader uses it. Threads: excludes other calls on it. */
LADE_API void lade_index_destroy(lade_record_index *index);

/**
 * Add a file. A file may be added twice.
 *
 * The first ones, up to a quarter of the process's limit on open files, stay open as long as the index. Those beyond are
 * opened again when they are read, and are refused by then if their name means another file. Experimental: a path may be the
 * URL of an object (lade_endpoint_url()), here and below. Records are of the version that the object has now: one that is
 * replaced is LADE_ERR_IO with ESTALE, as far as its server tells versions apart.
 *
 * Threads: one. Waits: for the file system, or the server. Errors: LADE_ERR_IO; LADE_ERR_INVALID_ARGUMENT if it is no
 * regular file; LADE_ERR_UNSUPPORTED: a URL without libcurl; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_index_add_file(lade_record_index *index, const char *path, uint64_t *out_file);

/**
 * Add a record.
 *
 * @param key     Copied; NULL: none.
 * @param fields  As many ranges as the index has fields, within files added before.
 *
 * Threads: one. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, naming the field, for a range beyond its file;
 * LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_index_add(lade_record_index *index, const char *key, const lade_range *fields);

/**
 * Add a file of records that all have the same size, for an index of one field.
 *
 * @param skip_bytes    Of a header before the first record.
 * @param record_bytes  Not 0.
 *
 * Threads: one. Waits: for the file system. Errors: LADE_ERR_FORMAT when the last record is not whole; those of
 * lade_index_add_file(). After an error the index is as before.
 */
LADE_API lade_status lade_index_add_fixed(lade_record_index *index, const char *path, uint64_t skip_bytes,
                                          uint64_t record_bytes);

/** How lade_index_add_tar() reads an archive. All zero means the defaults. */
typedef struct lade_tar_options {
  size_t struct_size;
  /** 1: blocks of zeros are skipped, as by GNU tar's --ignore-zeros: of several archives in one file all are read.
   * Damage that looks like zeros is skipped too. 0: the first block of zeros where a member could begin is the end
   * mark, and anything but zeros after it is an error: several archives in one file, or a header that was wiped. */
  uint32_t ignore_zeros;
  uint32_t reserved; /**< 0. */
} lade_tar_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_tar_options_init(lade_tar_options *options) {
  const lade_tar_options defaults = {sizeof(lade_tar_options), 0, 0};
  *options = defaults;
}

/**
 * Add a tar shard in the manner of WebDataset: files that follow each other with the same key are one record. The key is
 * the path up to the first dot of its last part, the field's name what comes after that dot, in lower case. Fields that
 * the index does not have are left out, as are records without any that it has, folders, files without extension, and
 * those in folders named `__x__`. So are links and sparse members that are not fields of the index.
 * lade_index_info counts those that may have been meant as fields.
 *
 * The members are those that GNU tar and Python's tarfile see, or there is an error: nothing of a shard is lost silently.
 *
 * @param options  Borrowed for the call; NULL for defaults.
 *
 * Threads: one. Waits: for the reads of the tar headers. Errors: LADE_ERR_FORMAT, naming the byte, and the member if
 * there is one, when the archive is damaged, truncated, compressed, without end mark or goes on after it, a field is
 * sparse, a link or continued in another volume, a global header names members or gives their size, a record lacks a
 * field or has one twice; LADE_ERR_INVALID_ARGUMENT where the index has a field without a name, or with capitals or a
 * '/' in all of its names, and for a wrong option; LADE_ERR_IO when it cannot be read; those of lade_index_add_file().
 * After an error the index is as before.
 * Source: docs/pipeline.md "Records in batches".
 */
LADE_API lade_status lade_index_add_tar(lade_record_index *index, const char *path, const lade_tar_options *options);

/**
 * Experimental: keep an index in a file, which appears all at once, in place of any other. docs/formats.md has the format.
 *
 * Paths of files are kept as they were given. URLs with a query are refused, since that may be a secret.
 *
 * Threads: any. Waits: until the file is on the disk. Errors: LADE_ERR_UNSUPPORTED for such a URL; LADE_ERR_IO;
 * LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_index_save(const lade_record_index *index, const char *path);

/**
 * Experimental: open an index that lade_index_save() has kept. No shard is read: a file must have the size and the time that it
 * had when it was added; an object that was replaced since is found out by the first read of it.
 *
 * @param out  [out] Caller owns it until lade_index_destroy(). Untouched on error.
 *
 * Threads: any. Waits: for the file system. Errors: LADE_ERR_FORMAT; LADE_ERR_IO, with ESTALE for a file that has changed;
 * LADE_ERR_INVALID_ARGUMENT where it is no regular file; LADE_ERR_TRUNCATED; LADE_ERR_OUT_OF_HOST_MEMORY.
 */
LADE_API lade_status lade_index_open(const char *path, lade_record_index **out);

/**
 * Contents of an index, and the members of its tar shards that are in no record, though their names end as those of a
 * field's members do. The first of each kind is logged with its name. Fields are appended only.
 */
typedef struct lade_index_info {
  size_t struct_size;
  uint64_t records;
  uint64_t fields;          /**< Of each record. */
  uint64_t dotted;          /**< "a.b.jpg": "b.jpg" is no field, "jpg" is one. A key has no dot. */
  uint64_t private_folders; /**< In a folder named `__x__`. */
  uint64_t other_types;     /**< Pipes, sockets, devices. */
} lade_index_info;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_index_info_init(lade_index_info *info) { LADE_INIT(info); }

/**
 * Read what an index has.
 *
 * @param info  [in,out] struct_size set by lade_index_info_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT.
 */
LADE_API lade_status lade_index_info_get(const lade_record_index *index, lade_index_info *info);

/** Number of records. Threads: any. */
LADE_API uint64_t lade_index_count(const lade_record_index *index);

/** Read where a field of a record lies. Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT. */
LADE_API lade_status lade_index_range(const lade_record_index *index, uint64_t record, uint64_t field, lade_range *out);

/** Name of a field, the first one where several mean it; NULL if it has none or there is no such field. Threads: any. */
LADE_API const char *lade_index_field(const lade_record_index *index, uint64_t field);

/** Key of a record; NULL if it has none or there is no such record. Valid until the index changes. Threads: any. */
LADE_API const char *lade_index_key(const lade_record_index *index, uint64_t record);

/* --- loader ------------------------------------------------------------------------------------------------------- */

/** Where in its data set a loader is: enough to go on exactly there, in another process too. Keep it as bytes. */
typedef struct lade_loader_state {
  size_t struct_size;
  uint64_t epoch;    /**< From 0. */
  uint64_t position; /**< Records of this rank in that epoch that were handed out. */
  uint64_t batches;  /**< Handed out in all. */
  /** The order of records depends on these: a loader with other values does not resume from this state. */
  uint64_t seed;
  uint64_t record_count;
  uint32_t shuffle;
  uint32_t rank;
  uint32_t world_size;
  uint32_t equal_ranks;
  /** Hashes of the files' names (without folders) and sizes, in their order and in any, and of the records' ranges and
   * keys. 0: not known, as in states of earlier versions; then shards added in another order go unnoticed. */
  uint64_t files;
  uint64_t files_in_any_order;
  uint64_t records;
} lade_loader_state;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_loader_state_init(lade_loader_state *state) { LADE_INIT(state); }

/** Options of lade_loader_create. All zero is not enough: batch_records or batch_bytes must be given. */
typedef struct lade_loader_options {
  size_t struct_size;
  uint64_t batch_records; /**< Records of a batch; 0: as many as batch_bytes allows. At most 2^24. */
  uint64_t batch_bytes; /**< Bytes of a batch as it lies in device memory, without its tables, at most; 0: no limit. */
  uint64_t seed;
  uint64_t epochs;                 /**< 0: without end. */
  uint64_t return_timeout_ns;      /**< How long lade_loader_next() waits, at most, while the consumer has all batches.
                                   0: 60 s. */
  const lade_loader_state *resume; /**< Borrowed for the call. NULL: from the start. */
  /** The memory of batches is allocated on it; it must outlive the loader. Loaders that follow each other on one stream
   * find the memory of those before in the allocator's cache. NULL: a stream of the loader's own. */
  lade_stream stream;
  uint32_t rank;        /**< Below world_size. Rank r gets records r, r + world_size, ... of the order. */
  uint32_t world_size;  /**< 0: 1. */
  uint32_t prefetch;    /**< Batches staged or handed out, at most. 0: 4. At most 64. */
  uint32_t alignment;   /**< Of each field of a record in a batch; a power of two up to 512. 0: 64. */
  uint32_t padded;      /**< 1: all records take the room of the largest one of the index, filled up with zeros. */
  uint32_t shuffle;     /**< 1: each epoch in an order of its own. */
  uint32_t equal_ranks; /**< 1: leave out the last records of each epoch (fewer than world_size) that would make some
                             ranks' share larger. */
  uint32_t drop_last;   /**< 1: leave out the last batch of an epoch if it has fewer than batch_records. */
  /** 1: records that cannot be read (LADE_ERR_IO, LADE_ERR_TRUNCATED: an error of the file system, a file that became
   * shorter or was replaced; an object that is gone or was replaced, but no other trouble with its server) are left out of their batch, which then has fewer records. A batch without any record left is
   * left out itself, with its number. Each epoch tries them again; where epochs have no end and a call finds none in as
   * many records as an epoch has, it reports the last error. Counted and listed: lade_loader_stats_get(),
   * lade_loader_skip_get(). 0: lade_loader_next() reports such a batch as an error, at each call. */
  uint32_t skip_unreadable;
  uint32_t reserved; /**< 0. */
} lade_loader_options;

/** Sets struct_size and the defaults, which are zero, of all other fields. Threads: any. */
LADE_INLINE void lade_loader_options_init(lade_loader_options *options) { LADE_INIT(options); }

/**
 * A batch. Field f of its record i lies at memory + offsets[f * count + i], lengths[f * count + i] bytes long: each field
 * is a block of its own, and a dense array when padded. Everything in it is valid until the batch is returned.
 */
typedef struct lade_batch {
  size_t struct_size;
  uint64_t number; /**< From 0, over all epochs, also after resuming. */
  uint64_t epoch;
  uint64_t count; /**< Records. 0: the last epoch is over, nothing was handed out. */
  uint64_t field_count;
  void *memory; /**< On the device, aligned to 256 bytes. */
  uint64_t bytes;
  const uint64_t *offsets;        /**< field_count * count, in bytes. */
  const uint64_t *lengths;        /**< The same. */
  const uint64_t *records;        /**< count numbers of the index. */
  const uint64_t *device_offsets; /**< The two tables again, in device memory. */
  const uint64_t *device_lengths;
  lade_ticket *ticket; /**< Of its transfer, borrowed: for streams besides the one given to lade_loader_next(). */
} lade_batch;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_batch_init(lade_batch *batch) { LADE_INIT(batch); }

/**
 * Create a loader, and begin to stage its first batches.
 *
 * @param index      Borrowed; must outlive the loader.
 * @param pipeline   Borrowed; must outlive the loader. Its device is where batches go.
 * @param allocator  Borrowed; must outlive the loader. Of the same device; batches live in its memory.
 * @param options    Borrowed for the call.
 * @param out        [out] Caller owns it until lade_loader_destroy(). Untouched on error.
 *
 * Threads: any. Waits: while the pipeline has no room for its transfers. Stream order: none.
 * Errors: LADE_ERR_INVALID_ARGUMENT, naming the option; also when the index is empty, an epoch would have no batch, a record
 * is larger than batch_bytes, or options.resume is of another order, of other files or records, or of the same files added in another
 * order, and says which. Those of lade_stream_create() and lade_device_alloc();
 * LADE_ERR_OUT_OF_HOST_MEMORY. Errors of the first reads come out of lade_loader_next().
 * Source: docs/pipeline.md "Records in batches".
 */
LADE_API lade_status lade_loader_create(const lade_record_index *index, lade_pipeline *pipeline,
                                        lade_device_allocator *allocator, const lade_loader_options *options,
                                        lade_loader **out);

/**
 * Destroy a loader; transfers under way are cancelled. NULL does nothing.
 *
 * @param loader  Taken on success.
 *
 * Threads: excludes other calls on it. Waits: for its transfers. Errors: LADE_ERR_BUSY, naming one, while batches are
 * handed out; LADE_ERR_TIMEOUT on "sim" when a transfer can never end; LADE_ERR_FORKED.
 */
LADE_API lade_status lade_loader_destroy(lade_loader *loader);

/**
 * Hand out the next batch.
 *
 * @param stream      Work queued on it from now on sees the batch.
 * @param timeout_ns  Longest time to wait: for a batch to be returned, if the consumer has all of them (then
 *                    options.return_timeout_ns is a limit too), and for the batch's bytes, also while records that
 *                    cannot be read are left out. LADE_WAIT_FOREVER: no limit, and the wait is for the reads only,
 *                    `stream` waits for the copies.
 * @param batch       [in,out] struct_size set by lade_batch_init().
 *
 * Threads: any. Waits: yes. Stream order: see `stream`.
 * Errors: LADE_ERR_TIMEOUT, naming the batch that is not returned or not there; the errors of lade_ticket_wait() for its
 * transfer, naming file and offset; those of lade_device_alloc() and lade_pipeline_submit() where it had to be begun
 * again; LADE_ERR_FORKED. Nothing is handed out then.
 */
LADE_API lade_status lade_loader_next(lade_loader *loader, lade_stream stream, uint64_t timeout_ns, lade_batch *batch);

/**
 * Give a batch back. Its memory is used again when the work queued on `stream` so far is done; the next batch is read
 * meanwhile.
 *
 * @param batch   As handed out; only its number is read.
 * @param stream  Whose work used the batch last. Work on other streams must be done, or `stream` wait for it.
 *
 * Threads: any. Waits: for the batch's own copies, and while the pipeline has no room.
 * Errors: LADE_ERR_INVALID_ARGUMENT if that batch is not handed out, LADE_ERR_FORKED, those of lade_device_record_stream(): the
 * batch stays handed out. Any other error is that of the batch's copies, found late: its bytes were wrong, and it is given back
 * nevertheless. An error that prevents the next batch from starting comes out of lade_loader_next().
 */
LADE_API lade_status lade_loader_return(lade_loader *loader, const lade_batch *batch, lade_stream stream);

/** Counters of a loader since its creation. Fields are appended only. */
typedef struct lade_loader_stats {
  size_t struct_size;
  uint64_t batches;         /**< Handed out. */
  uint64_t records;         /**< In them. */
  uint64_t skipped_records; /**< Left out because they cannot be read (options.skip_unreadable), each time. */
  uint64_t skipped_batches; /**< Of which no record was left. */
  uint64_t skips_listed; /**< Different records that lade_loader_skip_get() shows; at most LADE_LOADER_SKIPS_LISTED. */
} lade_loader_stats;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_loader_stats_init(lade_loader_stats *stats) { LADE_INIT(stats); }

/**
 * Read the counters.
 *
 * @param stats  [in,out] struct_size set by lade_loader_stats_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_loader_stats_get(lade_loader *loader, lade_loader_stats *stats);

/** Most different records that are listed as left out; further ones are only counted. */
#define LADE_LOADER_SKIPS_LISTED 1024

/** A record that was left out. */
typedef struct lade_loader_skip {
  size_t struct_size;
  uint64_t record; /**< Of the index: lade_index_key() names it. */
  uint64_t count;  /**< How often it was left out. */
  /** The failure, at which byte of which file. Valid until the loader is destroyed; "" if there was no memory for
   * it. */
  const char *text;
} lade_loader_skip;

/** Sets struct_size, so that the library knows how much it may write, and clears the rest. Threads: any. */
LADE_INLINE void lade_loader_skip_init(lade_loader_skip *skip) { LADE_INIT(skip); }

/**
 * Read which record was left out: number `index`, below lade_loader_stats.skips_listed, in the order in which they were
 * found.
 *
 * @param skip  [in,out] struct_size set by lade_loader_skip_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_loader_skip_get(lade_loader *loader, uint64_t index, lade_loader_skip *skip);

/**
 * Where the loader is: after the batch that was handed out last.
 *
 * @param state  [in,out] struct_size set by lade_loader_state_init().
 *
 * Threads: any. Waits: never. Errors: LADE_ERR_INVALID_ARGUMENT, LADE_ERR_FORKED.
 */
LADE_API lade_status lade_loader_state_get(lade_loader *loader, lade_loader_state *state);

#ifdef __cplusplus
}
#endif
#endif /* LADE_LOADER_H */
