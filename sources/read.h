/* SPDX-License-Identifier: Apache-2.0 */
/* One range of an object, on its way into memory, or one request that sends; and the limits of requests. */
#ifndef LADE_SOURCES_READ_H
#define LADE_SOURCES_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "lade/status.h"
#include "sources/sign.h"

typedef struct ladei_source_client ladei_source_client;
typedef struct ladei_source_object ladei_source_object;
typedef struct ladei_source_exchange ladei_source_exchange;
typedef struct ladei_source_read ladei_source_read;

/* Limits; 0: lade's choice. */
typedef struct ladei_source_options {
  uint32_t connect_ms; /* until a connection is there; 10 s */
  uint32_t stall_s;    /* without a KiB in a second; 30 */
  uint32_t attempts;   /* for one range; 10 */
  uint32_t pause_ms;   /* after the first failure, twice as long after each further one, up to 50 times; 200 */
  uint32_t requests;   /* of one host, under way at once; 64 */
} ladei_source_options;

/* Where a part of a range goes. */
typedef struct ladei_source_place {
  size_t skip;  /* bytes in front of it that are not kept */
  size_t bytes; /* not 0 */
  char *memory;
} ladei_source_place;

/* A request that sends, and what of its answer says that it was taken. */
typedef struct ladei_source_sending {
  const char *what; /* for messages: "part 3" */
  ladei_source_wording wording;
  const void *body; /* whose MD5 the wording has */
  size_t bytes;
  bool begins;  /* makes something anew each time: over a new connection, since libcurl repeats what it sent over an old
                          one that ends without an answer */
  bool patient; /* the server may work for minutes before it answers */
  const char *expects; /* in the body of the answer; NULL: an ETag is expected: of a body that is not keyed `md5` */
  char md5[33];        /* in hexadecimal */
  char etag[96];       /* of the answer, with its quotes, if nothing else is expected */
} ladei_source_sending;

struct ladei_source_read {
  /* Set by the caller; the rest is zero. */
  ladei_source_object *object;
  uint64_t offset;
  size_t bytes;                     /* not 0. With may_end, once it is over: those that there are */
  char *buffer;                     /* for all of them; NULL: `places` */
  const ladei_source_place *places; /* in order; their bytes, with those skipped, are all of the range */
  bool may_end;                     /* the object may end within the range, not before it */
  /* NULL: it reads. Else `buffer` gets the first bytes of the answer's body and a zero, and `offset` counts for nothing. The
   * object is one of s3. */
  ladei_source_sending *sends;
  /* The end, on the client's thread with no lock held; lade_last_error() describes a failure. The read is the callee's
   * again. LADE_ERR_IO, LADE_ERR_TRUNCATED, LADE_ERR_CANCELLED, LADE_ERR_OUT_OF_HOST_MEMORY. */
  void (*complete)(ladei_source_read *read, lade_status status);
  void *user;

  size_t done;             /* bytes that are there */
  ladei_source_place rest; /* of the place at hand */
  unsigned attempt;
  bool refused;                    /* a server says that the credentials are over */
  uint64_t again_ns;               /* of the next attempt */
  ladei_source_exchange *exchange; /* NULL: none is under way */
  bool over;                       /* of a run; guarded by the client's lock */
  TAILQ_ENTRY(ladei_source_read) link;
};

TAILQ_HEAD(ladei_source_reads, ladei_source_read);

#endif /* LADE_SOURCES_READ_H */
