/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/deflate.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/library_functions.h"

/* zlib's stream and constants, as its ABI has had them since version 1.2. */
typedef struct zlib_stream {
  const unsigned char *next_in;
  unsigned avail_in;
  unsigned long total_in;
  unsigned char *next_out;
  unsigned avail_out;
  unsigned long total_out;
  const char *msg;
  void *state;
  void *zalloc, *zfree, *opaque;
  int data_type;
  unsigned long adler, reserved;
} zlib_stream;
enum { ZLIB_OK = 0, ZLIB_STREAM_END = 1, ZLIB_NO_FLUSH = 0, ZLIB_FINISH = 4, ZLIB_DEFLATED = 8, ZLIB_GZIP = 15 + 16 };

struct ladei_deflate {
  void *library;
  int (*deflate)(zlib_stream *, int);
  int (*end)(zlib_stream *);
  zlib_stream stream;
  ladei_output *plain, *to;
};

/* All of the stream's input, and at the end the bytes that it keeps. */
static lade_status stream_run(ladei_deflate *d, int flush) {
  int result;
  do {
    enum { ROOM = 4096 };
    d->stream.next_out = (unsigned char *)ladei_output_room(d->to, ROOM);
    d->stream.avail_out = ROOM;
    result = d->deflate(&d->stream, flush);
    assert(d->stream.avail_out <= ROOM);
    d->to->used += ROOM - d->stream.avail_out;
    if (result != ZLIB_OK && result != ZLIB_STREAM_END)
      return ladei_error(LADE_ERR_INTERNAL, result, "zlib: deflate gives %d", result);
  } while (d->stream.avail_in > 0 || (flush == ZLIB_FINISH && result != ZLIB_STREAM_END));
  return d->to->status;
}

static lade_status plain_write(void *user, const void *data, size_t bytes) {
  ladei_deflate *d = user;
  d->stream.next_in = data;
  assert(d->stream.avail_in == 0 && bytes <= UINT32_MAX);
  d->stream.avail_in = (unsigned)bytes; /* the buffer of an output, or one text: below 2^32 */
  return stream_run(d, ZLIB_NO_FLUSH);
}

static lade_status library_open(ladei_deflate *d) {
  enum { LEVEL = 1, MEMORY_LEVEL = 8, STRATEGY = 0 };
  d->library = dlopen("libz.so.1", RTLD_NOW | RTLD_LOCAL);
  if (d->library == NULL) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "libz.so.1 cannot be opened: %s", dlerror());
  int (*init)(zlib_stream *, int, int, int, int, int, const char *, int);
  bool whole = ladei_library_function_find(d->library, "deflateInit2_", &init);
  whole = ladei_library_function_find(d->library, "deflate", &d->deflate) && whole;
  whole = ladei_library_function_find(d->library, "deflateEnd", &d->end) && whole;
  if (!whole) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "libz.so.1 has no deflateInit2_, deflate or deflateEnd");
  int result =
      init(&d->stream, LEVEL, ZLIB_DEFLATED, ZLIB_GZIP, MEMORY_LEVEL, STRATEGY, "1.2.11", (int)sizeof d->stream);
  if (result == ZLIB_OK) return LADE_OK;
  d->end = NULL;
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, result, "zlib: deflateInit2 gives %d", result);
}

static void deflate_free(ladei_deflate *d) {
  if (d->end != NULL && d->stream.state != NULL) d->end(&d->stream);
  if (d->library != NULL) dlclose(d->library);
  free(d);
}

lade_status ladei_deflate_begin(ladei_deflate **out, ladei_output *plain, ladei_output *to) {
  ladei_deflate *d = calloc(1, sizeof *d);
  if (d == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory to compress with");
  d->plain = plain;
  d->to = to;
  lade_status status = library_open(d);
  if (status != LADE_OK) {
    deflate_free(d);
    return status;
  }
  ladei_output_init(plain, plain_write, d);
  *out = d;
  return LADE_OK;
}

lade_status ladei_deflate_end(ladei_deflate *d, lade_status status) {
  if (status == LADE_OK) status = ladei_output_flush(d->plain);
  d->stream.next_in = NULL;
  d->stream.avail_in = 0;
  if (status == LADE_OK) status = stream_run(d, ZLIB_FINISH);
  deflate_free(d);
  return status;
}
