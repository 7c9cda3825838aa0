/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a plain header: what header.c reads by way of a JSON tree, some fifteen times as fast. A file of 20,000 tensors has
 * 2 MB of header, which the tree takes as long for as the link takes for all their bytes.
 *
 *   text     {"a.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}
 *   names    a.weight 0 ...       shapes   2 3 ...       entries   one after another, in the order of the text
 *
 * Plain: names and texts are printable ASCII without a backslash, numbers are digits, an object of the metadata has few
 * keys, and no name is given twice. This file refuses nothing: what is not plain, or breaks a rule, is read again by
 * header.c, which names the rule.
 *
 * I1  What is read here is what header.c would read of the same text; tests/fuzz/safetensors_fuzz.c compares the two.
 * I2  `names` has room: each text in it was one in the header, whose two quotes are more than its final zero.
 * Locks: none.
 */
#include "loaders/header_parse.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "loaders/names.h"

enum {
  METADATA_MOST = 32,     /* each key is compared with all others */
  ENTRY_BYTES_LEAST = 49, /* "":{"dtype":"U8","shape":[],"data_offsets":[0,0]} has 50 with its comma or brace */
};

static const char metadata_name[] = "__metadata__";

typedef struct header_reader {
  const char *at, *end;
  char *names, *name_end; /* name_end: where the next one goes */
  ladei_loader_header *out;
  size_t shape_count;
  lade_dtype dtype; /* of the entry before */
  bool has_metadata;
} header_reader;

/* --- words -------------------------------------------------------------------------------------------------------- */

static void blanks_skip(header_reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

/* Takes a sign of JSON, with blanks around. */
static bool sign_take(header_reader *r, char sign) {
  blanks_skip(r);
  if (r->at == r->end || *r->at != sign) return false;
  r->at++;
  blanks_skip(r);
  return true;
}

/* Takes a text, its quotes not among *out; it ends at *out + *out_bytes. */
static bool text_take(header_reader *r, const char **out, size_t *out_bytes) {
  if (r->at == r->end || *r->at != '"') return false;
  const char *begin = ++r->at;
  for (; r->at < r->end && *r->at != '"'; r->at++)
    if ((unsigned char)*r->at < ' ' || (unsigned char)*r->at >= 0x80 || *r->at == '\\') return false;
  if (r->at == r->end) return false;
  *out = begin;
  *out_bytes = (size_t)(r->at++ - begin);
  return true;
}

/* The same, kept in `names`. */
static bool text_keep(header_reader *r, const char **out) {
  const char *text;
  size_t bytes;
  if (!text_take(r, &text, &bytes)) return false;
  memcpy(r->name_end, text, bytes);
  r->name_end[bytes] = '\0';
  *out = r->name_end;
  r->name_end += bytes + 1;
  return true;
}

static bool number_take(header_reader *r, uint64_t *out) {
  const char *begin = r->at;
  uint64_t value = 0;
  for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
    uint64_t digit = (uint64_t)(*r->at - '0');
    if (value > (INT64_MAX - digit) / 10) return false;
    value = value * 10 + digit;
  }
  *out = value;
  return r->at > begin && (*begin != '0' || r->at == begin + 1);
}

static bool is_text(const char *text, size_t bytes, const char *wanted) {
  return strlen(wanted) == bytes && memcmp(text, wanted, bytes) == 0;
}

/* --- one entry ---------------------------------------------------------------------------------------------------- */

static bool dtype_take(header_reader *r, ladei_loader_entry *entry) {
  const char *text;
  size_t bytes;
  if (!text_take(r, &text, &bytes)) return false;
  const char *before = lade_dtype_name(r->dtype);
  if ((before == NULL || !is_text(text, bytes, before)) && !ladei_loader_dtype_find(text, bytes, &r->dtype))
    return false;
  entry->dtype = r->dtype;
  return true;
}

static bool shape_take(header_reader *r, ladei_loader_entry *entry) {
  if (!sign_take(r, '[')) return false;
  entry->shape = r->out->shapes + r->shape_count;
  if (sign_take(r, ']')) return true;
  do {
    if (!number_take(r, &r->out->shapes[r->shape_count++])) return false;
    entry->rank++;
  } while (sign_take(r, ','));
  return sign_take(r, ']');
}

static bool offsets_take(header_reader *r, ladei_loader_entry *entry) {
  return sign_take(r, '[') && number_take(r, &entry->begin) && sign_take(r, ',') && number_take(r, &entry->end) &&
         sign_take(r, ']') && entry->end >= entry->begin;
}

/* Three keys in any order, each once. */
static bool entry_take(header_reader *r, const char *name) {
  ladei_loader_entry *entry = &r->out->entries[r->out->entry_count];
  unsigned seen = 0;
  uint64_t bytes;
  *entry = (ladei_loader_entry){.name = name};
  if (!sign_take(r, '{')) return false;
  do {
    const char *key;
    size_t key_bytes;
    if (!text_take(r, &key, &key_bytes) || !sign_take(r, ':')) return false;
    unsigned bit = is_text(key, key_bytes, "dtype") ? 1 : is_text(key, key_bytes, "shape") ? 2 : 4;
    if ((seen & bit) != 0 || (bit == 4 && !is_text(key, key_bytes, "data_offsets"))) return false;
    seen |= bit;
    if (!(bit == 1 ? dtype_take(r, entry) : bit == 2 ? shape_take(r, entry) : offsets_take(r, entry))) return false;
  } while (sign_take(r, ','));
  if (!sign_take(r, '}') || seen != 7) return false;
  r->out->entry_count++;
  return ladei_loader_tensor_bytes(entry->dtype, entry->shape, entry->rank, &bytes) == NULL &&
         bytes == entry->end - entry->begin;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static bool metadata_pair_take(header_reader *r) {
  ladei_loader_header *out = r->out;
  lade_metadata pair;
  if (!text_keep(r, &pair.key) || !sign_take(r, ':') || !text_keep(r, &pair.value)) return false;
  bool is_id = strcmp(pair.key, LADEI_LOADER_SAVE_ID_KEY) == 0;
  if (is_id && out->save_id != NULL) return false;
  for (size_t i = 0; i < out->metadata_count; i++)
    if (strcmp(out->metadata[i].key, pair.key) == 0) return false;
  if (is_id)
    out->save_id = pair.value;
  else if (out->metadata_count < METADATA_MOST)
    out->metadata[out->metadata_count++] = pair;
  else
    return false;
  return true;
}

static bool metadata_take(header_reader *r) {
  if (r->has_metadata || !sign_take(r, '{')) return false;
  r->has_metadata = true;
  if (sign_take(r, '}')) return true;
  do {
    if (!metadata_pair_take(r)) return false;
  } while (sign_take(r, ','));
  return sign_take(r, '}');
}

static bool header_take(header_reader *r) {
  if (!sign_take(r, '{')) return false;
  if (sign_take(r, '}')) return r->at == r->end;
  do {
    const char *name;
    if (!text_keep(r, &name) || !sign_take(r, ':')) return false;
    if (!(strcmp(name, metadata_name) == 0 ? metadata_take(r) : entry_take(r, name))) return false;
  } while (sign_take(r, ','));
  return sign_take(r, '}') && r->at == r->end;
}

/* *out_twice: a name is given twice. */
static lade_status names_check(const ladei_loader_header *header, bool *out_twice) {
  ladei_loader_names names;
  LADEI_TRY(ladei_loader_names_make(&names, header->entry_count));
  for (size_t i = 0; i < header->entry_count && !*out_twice; i++)
    *out_twice = !ladei_loader_names_add(&names, header->entries[i].name, i);
  ladei_loader_names_dispose(&names);
  return LADE_OK;
}

/* *out_plain false: the header is not plain, or breaks a rule of an entry; *out is empty then. */
static lade_status plain_read(const char *text, size_t text_bytes, ladei_loader_header *out, bool *out_plain) {
  ladei_loader_header header = {0};
  header.entries = calloc(text_bytes / ENTRY_BYTES_LEAST + 1, sizeof *header.entries);
  header.shapes = calloc(text_bytes / 2 + 1, sizeof *header.shapes); /* a number has a sign after it */
  header.metadata = calloc(METADATA_MOST, sizeof *header.metadata);
  header.names = malloc(text_bytes + 1);
  lade_status status = LADE_OK;
  bool plain = false, twice = false;
  if (header.entries == NULL || header.shapes == NULL || header.metadata == NULL || header.names == NULL) {
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a header of %zu bytes", text_bytes);
  } else {
    header_reader r = {
        .at = text, .end = text + text_bytes, .names = header.names, .name_end = header.names, .out = &header};
    plain = header_take(&r);
    assert(r.name_end <= header.names + text_bytes + 1); /* I2 */
    if (plain) status = names_check(&header, &twice);
  }
  *out_plain = plain && !twice && status == LADE_OK;
  if (!*out_plain) ladei_loader_header_dispose(&header);
  *out = header;
  return status;
}

lade_status ladei_loader_header_parse(const char *text, size_t text_bytes, uint64_t data_bytes,
                                      ladei_loader_header *out) {
  bool plain = false;
  lade_status status = plain_read(text, text_bytes, out, &plain);
  if (status == LADE_OK && !plain) return ladei_loader_header_parse_json(text, text_bytes, data_bytes, out);
  return ladei_loader_header_finish(out, status, data_bytes);
}
