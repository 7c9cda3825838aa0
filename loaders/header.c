/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading the header of a safetensors file, with every rule of the format checked.
 *
 *   {"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, ...}   with blanks around
 *
 * A header as programs write it is read by header_parse.c. Any other goes through jansson, which refuses text that is not
 * UTF-8, names given twice, numbers beyond 63 bits, and nesting without end; all other rules are checked here.
 *
 * I1  entries[0].begin = 0, entries[i].begin = entries[i - 1].end, and the last end is where the file ends.
 * I2  Each entry's bytes are those that its dtype and shape ask for.
 * Locks: none; a header is constant once it is parsed.
 */
#include "loaders/header.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"
#include "loaders/text.h"

static const char metadata_name[] = "__metadata__";

bool ladei_loader_dtype_find(const char *name, size_t name_bytes, lade_dtype *out) {
  static const lade_dtype all[] = {
#define DTYPE_VALUE(name, number, bits) LADE_DTYPE_##name,
      LADE_DTYPE_TABLE(DTYPE_VALUE)
#undef DTYPE_VALUE
  };
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    const char *known = lade_dtype_name(all[i]);
    if (strlen(known) == name_bytes && memcmp(known, name, name_bytes) == 0) {
      *out = all[i];
      return true;
    }
  }
  return false;
}

const char *ladei_loader_name_text(const char *name, char out[LADEI_LOADER_NAME_TEXT_BYTES]) {
  static const char cut[] = "...";
  size_t length = strlen(name);
  size_t shown = ladei_size_min(length, LADEI_LOADER_NAME_TEXT_BYTES - sizeof cut);
  while (shown < length && shown > 0 && ((unsigned char)name[shown] & 0xc0) == 0x80)
    shown--; /* not within a character */
  memcpy(out, name, shown);
  out[shown] = '\0';
  ladei_text_tame(out);
  strcpy(out + shown, shown < length ? cut : "");
  return out;
}

const char *ladei_loader_tensor_bytes(lade_dtype dtype, const uint64_t *shape, uint64_t rank, uint64_t *out_bytes) {
  size_t bits = lade_dtype_bits(dtype);
  for (uint64_t i = 0; i < rank; i++)
    if (!ladei_size_mul(bits, shape[i], &bits)) return "too large";
  if (bits % 8 != 0) return "not of whole bytes";
  *out_bytes = bits / 8;
  return NULL;
}

/* --- one entry ---------------------------------------------------------------------------------------------------- */

static lade_status entry_error(const char *name, const char *what) {
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  return ladei_error(LADE_ERR_FORMAT, 0, "tensor \"%s\": %s", ladei_loader_name_text(name, shown), what);
}

/* Numbers of the format are not negative and have no fraction. */
static bool number_read(const json_t *value, uint64_t *out) {
  if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
  *out = (uint64_t)json_integer_value(value);
  return true;
}

static lade_status shape_read(const json_t *array, ladei_loader_entry *entry, uint64_t *numbers) {
  entry->shape = numbers;
  entry->rank = json_array_size(array);
  for (size_t i = 0; i < entry->rank; i++)
    if (!number_read(json_array_get(array, i), &numbers[i]))
      return entry_error(entry->name, "its shape has an element that is no whole number");
  return LADE_OK;
}

static lade_status offsets_read(const json_t *array, ladei_loader_entry *entry) {
  if (!json_is_array(array) || json_array_size(array) != 2 || !number_read(json_array_get(array, 0), &entry->begin) ||
      !number_read(json_array_get(array, 1), &entry->end))
    return entry_error(entry->name, "its data_offsets are not two whole numbers");
  return entry->end < entry->begin ? entry_error(entry->name, "its data_offsets end before they begin") : LADE_OK;
}

static lade_status bytes_check(const ladei_loader_entry *entry) {
  uint64_t bytes;
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  const char *reason = ladei_loader_tensor_bytes(entry->dtype, entry->shape, entry->rank, &bytes);
  if (reason != NULL) {
    return ladei_error(LADE_ERR_FORMAT, 0, "tensor \"%s\": its shape is %s", ladei_loader_name_text(entry->name, shown),
                       reason);
  }
  if (bytes != entry->end - entry->begin) {
    return ladei_error(LADE_ERR_FORMAT, 0, "tensor \"%s\": %llu bytes in the file, but dtype %s and shape ask for %llu",
                       ladei_loader_name_text(entry->name, shown), (unsigned long long)(entry->end - entry->begin),
                       lade_dtype_name(entry->dtype), (unsigned long long)bytes);
  }
  return LADE_OK;
}

/* `numbers` has room for the shape. */
static lade_status entry_read(const char *name, const json_t *value, uint64_t *numbers, ladei_loader_entry *out) {
  const json_t *dtype = json_object_get(value, "dtype");
  const json_t *shape = json_object_get(value, "shape");
  const json_t *offsets = json_object_get(value, "data_offsets");
  *out = (ladei_loader_entry){.name = name};
  if (dtype == NULL || shape == NULL || offsets == NULL || json_object_size(value) != 3)
    return entry_error(name, "it is not made of dtype, shape and data_offsets");
  if (!json_is_string(dtype) ||
      !ladei_loader_dtype_find(json_string_value(dtype), json_string_length(dtype), &out->dtype))
    return entry_error(name, "its dtype is unknown");
  if (!json_is_array(shape)) return entry_error(name, "its shape is no array");
  lade_status status = shape_read(shape, out, numbers);
  if (status == LADE_OK) status = offsets_read(offsets, out);
  return status == LADE_OK ? bytes_check(out) : status;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static lade_status metadata_read(const json_t *object, ladei_loader_header *header) {
  if (json_is_null(object)) return LADE_OK; /* as the safetensors package has it */
  if (!json_is_object(object)) return ladei_error(LADE_ERR_FORMAT, 0, "%s is no object", metadata_name);
  header->metadata = calloc(json_object_size(object) + 1, sizeof *header->metadata);
  if (header->metadata == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the metadata");
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {
    if (!json_is_string(value)) {
      char shown[LADEI_LOADER_NAME_TEXT_BYTES];
      return ladei_error(LADE_ERR_FORMAT, 0, "metadata \"%s\" is no text", ladei_loader_name_text(key, shown));
    }
    if (strcmp(key, LADEI_LOADER_SAVE_ID_KEY) == 0)
      header->save_id = json_string_value(value);
    else
      header->metadata[header->metadata_count++] = (lade_metadata){key, json_string_value(value)};
  }
  return LADE_OK;
}

/* An upper bound of the numbers in all shapes. */
static size_t shapes_count(const json_t *root) {
  size_t count = 0;
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)root, key, value) {
    count += json_array_size(json_object_get(value, "shape"));
  }
  return count;
}

static lade_status entries_read(ladei_loader_header *header) {
  const char *name;
  json_t *value;
  header->entries = calloc(json_object_size(header->root) + 1, sizeof *header->entries);
  header->shapes = calloc(shapes_count(header->root) + 1, sizeof *header->shapes);
  if (header->entries == NULL || header->shapes == NULL)
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %zu tensors", json_object_size(header->root));
  uint64_t *numbers = header->shapes;
  json_object_foreach(header->root, name, value) {
    ladei_loader_entry *entry = &header->entries[header->entry_count];
    bool is_metadata = strcmp(name, metadata_name) == 0;
    LADEI_TRY(is_metadata ? metadata_read(value, header) : entry_read(name, value, numbers, entry));
    assert(is_metadata || entry->shape == numbers || entry->rank == 0);
    numbers += is_metadata ? 0 : entry->rank;
    header->entry_count += is_metadata ? 0 : 1;
  }
  return LADE_OK;
}

/* By place. Tensors without bytes come before the one that begins where they lie. */
static int entry_compare(const void *a, const void *b) {
  const ladei_loader_entry *left = a, *right = b;
  if (left->begin != right->begin) return left->begin < right->begin ? -1 : 1;
  return left->end != right->end ? (left->end < right->end ? -1 : 1) : strcmp(left->name, right->name);
}

static lade_status layout_check(const ladei_loader_header *header, uint64_t data_bytes) {
  uint64_t at = 0;
  char shown[LADEI_LOADER_NAME_TEXT_BYTES];
  for (size_t i = 0; i < header->entry_count; i++) {
    const ladei_loader_entry *entry = &header->entries[i];
    const char *reason = entry->end > data_bytes ? "ends beyond the end of the file"
                         : entry->begin < at     ? "overlaps the tensor before it"
                         : entry->begin > at     ? "leaves a hole before it"
                                                 : NULL;
    if (reason != NULL) {
      return ladei_error(LADE_ERR_FORMAT, 0, "tensor \"%s\", bytes %llu to %llu of %llu, %s",
                         ladei_loader_name_text(entry->name, shown), (unsigned long long)entry->begin,
                         (unsigned long long)entry->end, (unsigned long long)data_bytes, reason);
    }
    at = entry->end;
  }
  if (at != data_bytes) {
    return ladei_error(LADE_ERR_FORMAT, 0, "the tensors end at byte %llu, the file at byte %llu",
                       (unsigned long long)at, (unsigned long long)data_bytes);
  }
  return LADE_OK;
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

/* Text that jansson reads byte by byte. It does not report failed allocations as such, and ignores some: a name then
 * lacks a character. So errno is checked before each byte, as malloc() has left it. */
typedef struct json_source {
  const char *text;
  size_t bytes, at;
  bool no_memory;
} json_source;

static bool memory_has_failed(json_source *source) {
  source->no_memory = source->no_memory || errno == ENOMEM;
  return source->no_memory;
}

static size_t source_read(void *buffer, size_t room, void *user) {
  json_source *source = user;
  if (memory_has_failed(source) || source->at == source->bytes || room == 0) return 0;
  *(char *)buffer = source->text[source->at++];
  return 1;
}

static lade_status json_error(const json_error_t *error, const char *what, size_t before) {
  char text[JSON_ERROR_TEXT_LENGTH]; /* it quotes the source, which may hold anything */
  size_t length = 0;
  for (; error->text[length] != '\0' && length + 1 < sizeof text; length++)
    text[length] = (unsigned char)error->text[length] < ' ' ? '?' : error->text[length];
  text[length] = '\0';
  return ladei_error(LADE_ERR_FORMAT, 0, "%s is no JSON: byte %zu: %s", what, before + (size_t)error->position, text);
}

/* The blanks of JSON: as the safetensors package has it, they may stand before and after the object. */
static size_t blanks_end(const char *text, size_t bytes, size_t at) {
  while (at < bytes && text[at] != '\0' && strchr(" \t\n\r", text[at]) != NULL) at++;
  return at;
}

lade_status ladei_loader_json_read(const char *text, size_t text_bytes, const char *what, json_t **out) {
  json_error_t error;
  size_t begin = blanks_end(text, text_bytes, 0);
  if (begin == text_bytes || text[begin] != '{')
    return ladei_error(LADE_ERR_FORMAT, 0, "%s does not begin with '{'", what);
  json_source source = {.text = text, .bytes = text_bytes, .at = begin};
  errno = 0;
  json_t *root = json_load_callback(source_read, &source, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &error);
  if (memory_has_failed(&source)) {
    json_decref(root);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for %s", what);
  }
  if (root == NULL) return json_error(&error, what, begin);
  size_t end = blanks_end(text, text_bytes, begin + (size_t)error.position);
  if (end < text_bytes) {
    json_decref(root);
    return ladei_error(LADE_ERR_FORMAT, 0, "%s goes on after its end, at byte %zu", what, end);
  }
  *out = root;
  return LADE_OK;
}

/* Most files have their tensors in order. */
static void entries_sort(ladei_loader_header *header) {
  for (size_t i = 1; i < header->entry_count; i++) {
    if (entry_compare(&header->entries[i - 1], &header->entries[i]) > 0) {
      qsort(header->entries, header->entry_count, sizeof *header->entries, entry_compare);
      return;
    }
  }
}

lade_status ladei_loader_header_finish(ladei_loader_header *header, lade_status status, uint64_t data_bytes) {
  if (status == LADE_OK) entries_sort(header);
  if (status == LADE_OK) status = layout_check(header, data_bytes);
  if (status != LADE_OK) ladei_loader_header_dispose(header);
  return status;
}

lade_status ladei_loader_header_parse_json(const char *text, size_t text_bytes, uint64_t data_bytes,
                                           ladei_loader_header *out) {
  *out = (ladei_loader_header){0};
  lade_status status = ladei_loader_json_read(text, text_bytes, "the header", &out->root);
  if (status == LADE_OK) status = entries_read(out);
  return ladei_loader_header_finish(out, status, data_bytes);
}

void ladei_loader_header_dispose(ladei_loader_header *header) {
  json_decref(header->root);
  free(header->names);
  free(header->shapes);
  free(header->entries);
  free(header->metadata);
  *header = (ladei_loader_header){0};
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

static void metadata_put(ladei_loader_text *t, const lade_metadata *metadata, size_t count) {
  ladei_loader_text_put_quoted(t, metadata_name, false);
  ladei_loader_text_put_string(t, ":{");
  for (size_t i = 0; i < count; i++) {
    ladei_loader_text_put_string(t, i > 0 ? "," : "");
    ladei_loader_text_put_quoted(t, metadata[i].key, false);
    ladei_loader_text_put_string(t, ":");
    ladei_loader_text_put_quoted(t, metadata[i].value, false);
  }
  ladei_loader_text_put_string(t, "}");
}

static void entry_put(ladei_loader_text *t, const ladei_loader_entry *entry) {
  assert(entry->begin <= entry->end);
  ladei_loader_text_put_quoted(t, entry->name, false);
  ladei_loader_text_put_string(t, ":{\"dtype\":\"");
  ladei_loader_text_put_string(t, lade_dtype_name(entry->dtype));
  ladei_loader_text_put_string(t, "\",\"shape\":[");
  for (uint64_t i = 0; i < entry->rank; i++) {
    ladei_loader_text_put_string(t, i > 0 ? "," : "");
    ladei_loader_text_put_number(t, entry->shape[i]);
  }
  ladei_loader_text_put_string(t, "],\"data_offsets\":[");
  ladei_loader_text_put_number(t, entry->begin);
  ladei_loader_text_put_string(t, ",");
  ladei_loader_text_put_number(t, entry->end);
  ladei_loader_text_put_string(t, "]}");
}

static lade_status header_size_error(uint64_t bytes) {
  char expected[64];
  (void)snprintf(expected, sizeof expected, "at most %llu bytes, the format's limit",
                 (unsigned long long)LADEI_LOADER_HEADER_MAX_BYTES);
  return ladei_error_argument("lade_safetensors_save", "the header of a file", expected, "%llu bytes",
                              (unsigned long long)bytes);
}

lade_status ladei_loader_header_write(const ladei_loader_entry *entries, size_t entry_count,
                                      const lade_metadata *metadata, size_t metadata_count, char **out_text,
                                      size_t *out_bytes) {
  ladei_loader_text t = {0};
  ladei_loader_text_put(&t, "\0\0\0\0\0\0\0\0", LADEI_LOADER_HEADER_PREFIX_BYTES);
  ladei_loader_text_put_string(&t, "{");
  if (metadata != NULL) metadata_put(&t, metadata, metadata_count);
  for (size_t i = 0; i < entry_count; i++) {
    ladei_loader_text_put_string(&t, i > 0 || metadata != NULL ? "," : "");
    entry_put(&t, &entries[i]);
  }
  ladei_loader_text_put_string(&t, "}");
  ladei_loader_text_put(&t, "       ", (8 - t.length % 8) % 8);
  uint64_t bytes = t.length - LADEI_LOADER_HEADER_PREFIX_BYTES;
  if (t.failed || bytes > LADEI_LOADER_HEADER_MAX_BYTES) {
    free(t.bytes);
    return t.failed ? ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a header of %zu tensors", entry_count)
                    : header_size_error(bytes);
  }
  for (unsigned i = 0; i < LADEI_LOADER_HEADER_PREFIX_BYTES; i++)
    t.bytes[i] = (char)(bytes >> (8 * i)); /* lowest byte first */
  assert(t.length % 8 == 0 && t.length >= LADEI_LOADER_HEADER_PREFIX_BYTES);
  *out_text = t.bytes;
  *out_bytes = t.length;
  return LADE_OK;
}
