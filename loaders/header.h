/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file: text to table, table to text. Touches no file and no device. */
#ifndef LADE_LOADERS_HEADER_H
#define LADE_LOADERS_HEADER_H

#include <jansson.h>

#include "lade/safetensors.h"

/* Of the text alone; the format's own limit. */
#define LADEI_LOADER_HEADER_MAX_BYTES UINT64_C(100000000)
/* The length in front of it. */
#define LADEI_LOADER_HEADER_PREFIX_BYTES UINT64_C(8)

/* The entry of the metadata that says of which save a file is: of several files, and of their index. Lade's own. */
#define LADEI_LOADER_SAVE_ID_KEY "lade_save"

/* A tensor of one file. */
typedef struct ladei_loader_entry {
  const char *name;
  const uint64_t *shape;
  uint64_t rank;
  uint64_t begin, end; /* its bytes, from the end of the header */
  lade_dtype dtype;
} ladei_loader_entry;

typedef struct ladei_loader_header {
  json_t *root; /* owns names and metadata, or else ... */
  char *names;  /* ... this does */
  uint64_t *shapes;
  ladei_loader_entry *entries; /* in the order of their bytes: they follow each other from 0 on, without gap */
  size_t entry_count;
  lade_metadata *metadata; /* without lade's own */
  size_t metadata_count;
  const char *save_id; /* NULL: none */
} ladei_loader_header;

/*
 * Reads and checks a header by way of JSON; `data_bytes` follow it in the file. On failure *out is empty:
 * LADE_ERR_FORMAT with the cause in the text, or LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_loader_header_parse_json(const char *text, size_t text_bytes, uint64_t data_bytes,
                                           ladei_loader_header *out);
/* Orders entries that are read, and checks their places; after a failure, also that of `status`, *header is empty. */
lade_status ladei_loader_header_finish(ladei_loader_header *header, lade_status status, uint64_t data_bytes);
/* Of one that was parsed, or is all zero. */
void ladei_loader_header_dispose(ladei_loader_header *header);

/* The dtype of a name that may go on after its bytes. */
bool ladei_loader_dtype_find(const char *name, size_t name_bytes, lade_dtype *out);

/* Reads one JSON object, of `what`, blanks around; json_decref() it. LADE_ERR_FORMAT, LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_loader_json_read(const char *text, size_t text_bytes, const char *what, json_t **out);

/* A name in one line of limited length, for messages. */
enum { LADEI_LOADER_NAME_TEXT_BYTES = 72 };
const char *ladei_loader_name_text(const char *name, char out[LADEI_LOADER_NAME_TEXT_BYTES]);

/* Stores the bytes of a tensor and returns NULL; or returns the error of its shape, as a static text. */
const char *ladei_loader_tensor_bytes(lade_dtype dtype, const uint64_t *shape, uint64_t rank, uint64_t *out_bytes);

/*
 * The first bytes of a file, prefix included, as the safetensors package writes them: entries in the order given. Names
 * and metadata are UTF-8; metadata that is not NULL is written, even if it is empty. LADE_ERR_OUT_OF_HOST_MEMORY;
 * LADE_ERR_INVALID_ARGUMENT beyond the format's limit.
 */
lade_status ladei_loader_header_write(const ladei_loader_entry *entries, size_t entry_count,
                                      const lade_metadata *metadata, size_t metadata_count, char **out_text,
                                      size_t *out_bytes);

#endif /* LADE_LOADERS_HEADER_H */
