/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of allocation traces, one operation at a time (docs/formats.md).
 *
 *   trace_reader *reader = trace_reader_create(file, "run.trace");
 *   trace_op op;
 *   while ((result = trace_read(reader, &op)) == READ_ITEM) { ... }
 *   if (result == READ_BAD) fprintf(stderr, "%s\n", trace_error(reader));     // "run.trace:7: unknown operation ..."
 *
 * The reader checks each line by itself and against declarations: number of fields, numbers and their ranges,
 * declarations twice or too late, unknown streams, an `at` without its alloc. Checks that depend on the replay (live
 * IDs, pools) are the replay's. Memory does not grow with the length of the trace.
 */
#ifndef LADE_TOOLS_REPLAY_TRACE_H
#define LADE_TOOLS_REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/common/reader_frame.h"

typedef enum trace_kind {
  TRACE_DEVICE, /* number[0] capacity */
  TRACE_CONF,   /* text */
  TRACE_STREAM, /* number[0] stream */
  TRACE_ALLOC,  /* id, bytes, stream */
  TRACE_FREE,   /* id */
  TRACE_RECORD, /* id, stream */
  TRACE_COMPLETE,
  TRACE_EMPTY_CACHE,
  TRACE_FRACTION,    /* fraction */
  TRACE_POOL_CREATE, /* pool, set of trace_pool_flag */
  TRACE_POOL_BEGIN,  /* pool; streams */
  TRACE_POOL_END,
  TRACE_POOL_RELEASE,
  TRACE_POOL_TRIM,
  TRACE_CHECKPOINT, /* pool, key */
  TRACE_RESTORE,    /* pool, key */
  TRACE_RESET_PEAK,
  TRACE_RESET_ACCUMULATED,
  TRACE_HALLOC,  /* id, bytes */
  TRACE_HFREE,   /* id */
  TRACE_HRECORD, /* id, stream */
  TRACE_HEMPTY,
  TRACE_SNAPSHOT, /* text */
  TRACE_AT,       /* never given: its address comes with the alloc that follows */
  TRACE_KIND_COUNT
} trace_kind;

typedef enum trace_pool_flag { TRACE_POOL_NO_SPLIT = 1 << 0, TRACE_POOL_USE_ON_OOM = 1 << 1 } trace_pool_flag;

/* Versions of the format that there are: from 1 to this. */
enum { TRACE_VERSION = 2 };

/* Addresses of driver memory are multiples of it. */
#define TRACE_ADDRESS_ALIGN (UINT64_C(2) << 20)

typedef struct trace_op {
  trace_kind kind;
  uint64_t line; /* from 1 */
  uint64_t number[3];
  uint64_t at; /* TRACE_ALLOC: where driver memory that it gets begins; 0: not said */
  double fraction;
  const char *text;        /* valid until the next read */
  const uint64_t *streams; /* valid until the next read */
  size_t stream_count;
} trace_op;

typedef struct trace_reader trace_reader;

/* Borrows the file; copies the name, which error messages begin with. NULL when there is no memory. */
trace_reader *trace_reader_create(FILE *file, const char *name);
void trace_reader_destroy(trace_reader *reader);

/* The next operation or declaration. READ_BAD, READ_FAILED: see trace_error(); every later read answers it again. */
read_result trace_read(trace_reader *reader, trace_op *out);

/* Of the format, once its first line was read; 0 before. */
unsigned trace_version(const trace_reader *reader);

/* "FILE:LINE: what". */
const char *trace_error(const trace_reader *reader);

/* Where errors that only the replay can see are noted. */
reader_frame *trace_frame(trace_reader *reader);

/* Operation's word in a trace. */
const char *trace_kind_name(trace_kind kind);

#endif /* LADE_TOOLS_REPLAY_TRACE_H */
