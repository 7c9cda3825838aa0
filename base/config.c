/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text: one table of keys, one reader per kind of value.
 *
 *   text --comma--> settings --first colon--> key, value --kind of the key--> field of lade_config
 *
 * C1  The caller's struct is written once, after the whole text was understood.
 */
#include "base/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "base/size.h"

typedef enum value_kind {
  VALUE_BACKEND,
  VALUE_BOOL,      /* uint32_t: 0, 1 */
  VALUE_OFF,       /* False alone; no field */
  VALUE_CHOICE,    /* uint32_t: 1 for True, 2 for False */
  VALUE_NUMBER_32, /* within low .. high */
  VALUE_NUMBER_64, /* within low .. high */
  VALUE_POWER_32,  /* the same, a power of two */
  VALUE_THRESHOLD, /* double above 0, below 1 */
  VALUE_FRACTION,  /* double from 0 to 1 */
  VALUE_DIVISIONS,
  VALUE_POLICY,  /* uint32_t: 0 default, 1 reference */
  VALUE_SOURCES, /* uint32_t: set of lade_pinned_source bits */
  VALUE_STORAGE, /* uint32_t: lade_storage */
} value_kind;

typedef struct setting {
  const char *key;
  value_kind kind;
  size_t offset; /* of the field in lade_config */
  uint64_t low;
  uint64_t high;
  bool own; /* lade's or of later versions, unknown to the reference */
} setting;

/* 2^40 MiB are 2^60 bytes, the limit of every size. */
#define MB_LIMIT ((UINT64_C(1) << 40) - 1)

static const setting settings[] = {
    {"backend", VALUE_BACKEND, offsetof(lade_config, backend), 0, 0, false},
    {"max_split_size_mb", VALUE_NUMBER_64, offsetof(lade_config, max_split_size_mb), 21, MB_LIMIT, false},
    {"garbage_collection_threshold", VALUE_THRESHOLD, offsetof(lade_config, garbage_collection_threshold), 0, 0, false},
    {"expandable_segments", VALUE_BOOL, offsetof(lade_config, expandable_segments), 0, 0, false},
    {"roundup_power2_divisions", VALUE_DIVISIONS, offsetof(lade_config, roundup_power2_divisions), 0, 0, false},
    {"release_lock_on_cudamalloc", VALUE_BOOL, offsetof(lade_config, release_lock_on_cudamalloc), 0, 0, false},
    {"pinned_use_cuda_host_register", VALUE_CHOICE, offsetof(lade_config, pinned_use_cuda_host_register), 0, 0, false},
    {"pinned_num_register_threads", VALUE_POWER_32, offsetof(lade_config, pinned_num_register_threads), 1, 128, false},
    {"max_non_split_rounding_mb", VALUE_NUMBER_64, offsetof(lade_config, max_non_split_rounding_mb), 21, MB_LIMIT,
     true},
    {"large_segment_size_mb", VALUE_NUMBER_64, offsetof(lade_config, large_segment_size_mb), 11, MB_LIMIT, true},
    {"graph_capture_record_stream_reuse", VALUE_OFF, 0, 0, 0, true},
    {"throw_on_cudamalloc_oom", VALUE_OFF, 0, 0, 0, true},
    {"per_process_memory_fraction", VALUE_FRACTION, offsetof(lade_config, per_process_memory_fraction), 0, 0, true},
    {"pinned_use_background_threads", VALUE_BOOL, offsetof(lade_config, pinned_background), 0, 0, true},
    {"device_expandable_pools", VALUE_BOOL, offsetof(lade_config, device_expandable_pools), 0, 0, true},
    {"device_expandable_ipc", VALUE_BOOL, offsetof(lade_config, device_expandable_ipc), 0, 0, true},
    {"device_newest_pool", VALUE_BOOL, offsetof(lade_config, device_newest_pool), 0, 0, true},
    {"device_uncached", VALUE_BOOL, offsetof(lade_config, device_uncached), 0, 0, true},
    {"device_policy", VALUE_POLICY, offsetof(lade_config, device_reference), 0, 0, true},
    {"device_max_mb", VALUE_NUMBER_64, offsetof(lade_config, device_max_mb), 0, MB_LIMIT, true},
    {"device_event_batch", VALUE_NUMBER_32, offsetof(lade_config, device_event_batch), 0, 65536, true},
    {"pinned_max_mb", VALUE_NUMBER_64, offsetof(lade_config, pinned_max_mb), 0, MB_LIMIT, true},
    {"pinned_event_batch", VALUE_NUMBER_32, offsetof(lade_config, pinned_event_batch), 0, 65536, true},
    {"pinned_wait_ms", VALUE_NUMBER_32, offsetof(lade_config, pinned_wait_ms), 0, UINT32_MAX, true},
    {"pinned_segment_mb", VALUE_NUMBER_64, offsetof(lade_config, pinned_segment_mb), 0, UINT64_C(1) << 20, true},
    {"pinned_reserve_segment_size_mb", VALUE_NUMBER_64, offsetof(lade_config, pinned_segment_mb), 0, UINT64_C(1) << 20,
     true},
    {"pinned_magazine_mb", VALUE_NUMBER_64, offsetof(lade_config, pinned_magazine_mb), 0, MB_LIMIT, true},
    {"pinned_max_idle_ms", VALUE_NUMBER_32, offsetof(lade_config, pinned_max_idle_ms), 0, UINT32_MAX, true},
    {"pinned_threads", VALUE_NUMBER_32, offsetof(lade_config, pinned_threads), 0, 1024, true},
    {"pinned_numa_strict", VALUE_BOOL, offsetof(lade_config, pinned_numa_strict), 0, 0, true},
    {"pinned_background", VALUE_BOOL, offsetof(lade_config, pinned_background), 0, 0, true},
    {"pinned_policy", VALUE_POLICY, offsetof(lade_config, pinned_reference), 0, 0, true},
    {"pinned_debug", VALUE_BOOL, offsetof(lade_config, pinned_debug), 0, 0, true},
    {"pinned_device_mapped", VALUE_BOOL, offsetof(lade_config, pinned_device_mapped), 0, 0, true},
    {"pinned_register_chunk_mb", VALUE_NUMBER_64, offsetof(lade_config, pinned_register_chunk_mb), 0, UINT64_C(1) << 20,
     true},
    {"pinned_source", VALUE_SOURCES, offsetof(lade_config, pinned_sources), 0, 0, true},
    {"storage", VALUE_STORAGE, offsetof(lade_config, storage), 0, 0, true},
};

enum { SETTING_COUNT = sizeof settings / sizeof settings[0], DIVISION_COUNT = 16 };

/* A piece of the text. */
typedef struct config_part {
  const char *begin;
  const char *end;
} config_part;

typedef struct parser {
  const char *text;
  bool reference_only;
  bool seen[SETTING_COUNT];
  lade_config config;
} parser;

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static config_part piece_trim(config_part p) {
  while (p.begin < p.end && is_blank(*p.begin)) p.begin++;
  while (p.begin < p.end && is_blank(p.end[-1])) p.end--;
  return p;
}

static int piece_length(config_part p) { return (int)(p.end - p.begin); }

static bool piece_is(config_part p, const char *word) {
  size_t length = strlen(word);
  return (size_t)(p.end - p.begin) == length && memcmp(p.begin, word, length) == 0;
}

/* Moves what comes before `separator` (outside brackets), trimmed, into *head. False where there is no separator: *head
 * has all the rest. */
static bool piece_cut(config_part *rest, char separator, config_part *head) {
  const char *at = rest->begin;
  for (int depth = 0; at < rest->end && (depth > 0 || *at != separator); at++) {
    if (*at == '[') depth++;
    if (*at == ']' && depth > 0) depth--;
  }
  bool found = at < rest->end;
  *head = piece_trim((config_part){rest->begin, at});
  rest->begin = found ? at + 1 : at;
  return found;
}

static lade_status value_error(const parser *p, const setting *s, config_part value, const char *wanted) {
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: bad value \"%.*s\" at position %zu: %s", s->key,
                     piece_length(value), value.begin, (size_t)(value.begin - p->text) + 1, wanted);
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

/* Decimal digits only, at most 64 bits. */
static bool number_read(config_part value, uint64_t *out) {
  uint64_t number = 0;
  if (value.begin == value.end) return false;
  for (const char *at = value.begin; at < value.end; at++) {
    if (*at < '0' || *at > '9') return false;
    if (__builtin_mul_overflow(number, (uint64_t)10, &number)) return false;
    if (__builtin_add_overflow(number, (uint64_t)(*at - '0'), &number)) return false;
  }
  *out = number;
  return true;
}

/* Digits, optionally a point and digits, as the nearest double. */
static bool fraction_read(config_part value, double *out) {
  size_t length = (size_t)(value.end - value.begin);
  bool point = false;
  if (length == 0) return false;
  for (size_t i = 0; i < length; i++) {
    char c = value.begin[i];
    bool inner_point = c == '.' && !point && i > 0 && i + 1 < length;
    if (!inner_point && !isdigit((unsigned char)c)) return false;
    point = point || c == '.';
  }
  /* Any number of digits counts; what follows the value (a comma, a blank, the end) is no part of a number. */
  *out = strtod(value.begin, NULL);
  return true;
}

static lade_status threshold_read(const parser *p, const setting *s, config_part value, double *out) {
  double number;
  if (!fraction_read(value, &number) || !(number > 0.0 && number < 1.0)) {
    return value_error(p, s, value, "a number above 0 and below 1 is meant");
  }
  *out = number;
  return LADE_OK;
}

static lade_status share_read(const parser *p, const setting *s, config_part value, double *out) {
  double number;
  if (!fraction_read(value, &number) || !(number >= 0.0 && number <= 1.0)) {
    return value_error(p, s, value, "a number from 0 to 1 is meant");
  }
  *out = number;
  return LADE_OK;
}

static lade_status bool_read(const parser *p, const setting *s, config_part value, uint32_t if_false, uint32_t *out) {
  if (!piece_is(value, "True") && !piece_is(value, "False")) {
    return value_error(p, s, value, "True or False is meant");
  }
  *out = piece_is(value, "True") ? 1 : if_false;
  return LADE_OK;
}

/* What only later versions can do. Saying that it is not wanted is no error. */
static lade_status off_read(const parser *p, const setting *s, config_part value) {
  if (piece_is(value, "False")) return LADE_OK;
  return value_error(p, s, value, "lade cannot do it; False is meant");
}

static lade_status range_read(const parser *p, const setting *s, config_part value, uint64_t *out) {
  uint64_t number;
  bool power = s->kind == VALUE_POWER_32;
  if (!number_read(value, &number) || number < s->low || number > s->high ||
      (power && !ladei_is_power_of_two(number))) {
    return ladei_error(LADE_ERR_CONFIG, 0,
                       "configuration: %s: bad value \"%.*s\" at position %zu: %s from %llu to %llu is meant", s->key,
                       piece_length(value), value.begin, (size_t)(value.begin - p->text) + 1,
                       power ? "a power of two" : "a number", (unsigned long long)s->low, (unsigned long long)s->high);
  }
  *out = number;
  return LADE_OK;
}

/* One pair A:D of the list. `*named` is the entry named last, -1 before the first. */
static bool division_read(config_part pair, uint64_t table[DIVISION_COUNT], int *named, bool *closed) {
  config_part divisions = pair;
  config_part size;
  uint64_t d;
  if (*closed || !piece_cut(&divisions, ':', &size)) return false;
  divisions = piece_trim(divisions);
  if (!number_read(divisions, &d) || (d != 0 && !ladei_is_power_of_two(d))) return false;
  int first;
  int last;
  if (piece_is(size, ">")) {
    first = *named < 0 ? 0 : *named;
    last = DIVISION_COUNT - 1;
    *closed = true;
  } else {
    uint64_t mib;
    if (!number_read(size, &mib) || !ladei_is_power_of_two(mib)) return false;
    last = (int)ladei_log2_floor(mib);
    if (last > DIVISION_COUNT - 1) last = DIVISION_COUNT - 1;
    first = *named < 0 ? 0 : last;
    *named = last;
  }
  for (int i = first; i <= last; i++) table[i] = d;
  return true;
}

static lade_status divisions_read(const parser *p, const setting *s, config_part value, uint64_t out[DIVISION_COUNT]) {
  static const char wanted[] = "a power of two, or [A:D,...,>:D] with powers of two is meant";
  uint64_t table[DIVISION_COUNT] = {0};
  uint64_t d;
  if (number_read(value, &d)) {
    if (!ladei_is_power_of_two(d)) return value_error(p, s, value, wanted);
    for (int i = 0; i < DIVISION_COUNT; i++) table[i] = d;
  } else {
    if (value.end - value.begin < 2 || *value.begin != '[' || value.end[-1] != ']') {
      return value_error(p, s, value, wanted);
    }
    config_part rest = {value.begin + 1, value.end - 1};
    int named = -1;
    bool closed = false;
    for (bool more = true; more;) {
      config_part pair;
      more = piece_cut(&rest, ',', &pair);
      if (!division_read(pair, table, &named, &closed)) return value_error(p, s, value, wanted);
    }
  }
  memcpy(out, table, sizeof table);
  return LADE_OK;
}

/* Traces are about the cache of the reference alone. */
static lade_status backend_read(const parser *p, const setting *s, config_part value, uint32_t *out) {
  bool async = !p->reference_only && piece_is(value, "cudaMallocAsync");
  if (!async && !piece_is(value, "native")) {
    return value_error(p, s, value, p->reference_only ? "native is meant" : "native or cudaMallocAsync is meant");
  }
  *out = async ? LADE_DEVICE_CUDA_MALLOC_ASYNC : LADE_DEVICE_NATIVE;
  return LADE_OK;
}

static lade_status policy_read(const parser *p, const setting *s, config_part value, uint32_t *out) {
  if (!piece_is(value, "default") && !piece_is(value, "reference")) {
    return value_error(p, s, value, "default or reference is meant");
  }
  *out = piece_is(value, "reference") ? 1 : 0;
  return LADE_OK;
}

/* Names between bars: register|driver. */
static lade_status sources_read(const parser *p, const setting *s, config_part value, uint32_t *out) {
  static const struct {
    const char *name;
    lade_pinned_source source;
  } names[] = {{"register", LADE_PINNED_SOURCE_REGISTER},
               {"driver", LADE_PINNED_SOURCE_DRIVER},
               {"pool", LADE_PINNED_SOURCE_POOL},
               {"pageable", LADE_PINNED_SOURCE_PAGEABLE}};
  uint32_t sources = 0;
  config_part rest = value, name;
  for (bool more = true; more;) {
    size_t i = 0;
    more = piece_cut(&rest, '|', &name);
    while (i < sizeof names / sizeof names[0] && !piece_is(name, names[i].name)) i++;
    if (i == sizeof names / sizeof names[0]) {
      return value_error(p, s, value, "some of register, driver, pool, pageable, with bars between, are meant");
    }
    sources |= (uint32_t)names[i].source;
  }
  *out = sources;
  return LADE_OK;
}

static lade_status storage_read(const parser *p, const setting *s, config_part value, uint32_t *out) {
  static const char *const names[] = {[LADE_STORAGE_AUTO] = "auto",
                                      [LADE_STORAGE_PREAD] = "pread",
                                      [LADE_STORAGE_URING] = "uring",
                                      [LADE_STORAGE_CUFILE] = "cufile"};
  for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (piece_is(value, names[i])) {
      *out = i;
      return LADE_OK;
    }
  }
  return value_error(p, s, value, "auto, uring, pread or cufile is meant");
}

static lade_status value_read(parser *p, const setting *s, config_part value) {
  char *field = (char *)&p->config + s->offset;
  uint64_t number = 0;
  lade_status status;
  switch (s->kind) {
  case VALUE_BACKEND: return backend_read(p, s, value, (uint32_t *)(void *)field);
  case VALUE_BOOL: return bool_read(p, s, value, 0, (uint32_t *)(void *)field);
  case VALUE_OFF: return off_read(p, s, value);
  case VALUE_CHOICE: return bool_read(p, s, value, 2, (uint32_t *)(void *)field);
  case VALUE_THRESHOLD: return threshold_read(p, s, value, (double *)(void *)field);
  case VALUE_FRACTION: return share_read(p, s, value, (double *)(void *)field);
  case VALUE_POLICY: return policy_read(p, s, value, (uint32_t *)(void *)field);
  case VALUE_STORAGE: return storage_read(p, s, value, (uint32_t *)(void *)field);
  case VALUE_SOURCES: return sources_read(p, s, value, (uint32_t *)(void *)field);
  case VALUE_DIVISIONS: return divisions_read(p, s, value, (uint64_t *)(void *)field);
  case VALUE_NUMBER_64:
    status = range_read(p, s, value, &number);
    if (status == LADE_OK) *(uint64_t *)(void *)field = number;
    return status;
  default:
    status = range_read(p, s, value, &number);
    if (status == LADE_OK) *(uint32_t *)(void *)field = (uint32_t)number;
    return status;
  }
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static lade_status setting_read(parser *p, config_part whole) {
  config_part value = whole;
  config_part key;
  bool colon = piece_cut(&value, ':', &key);
  size_t position = (size_t)(key.begin - p->text) + 1;
  for (size_t i = 0; i < SETTING_COUNT; i++) {
    const setting *s = &settings[i];
    if (!piece_is(key, s->key) || (s->own && p->reference_only)) continue;
    if (p->seen[i]) {
      return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: given a second time at position %zu", s->key,
                         position);
    }
    if (!colon) {
      return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: no value at position %zu", s->key, position);
    }
    p->seen[i] = true;
    return value_read(p, s, piece_trim(value));
  }
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: unknown key \"%.*s\" at position %zu", piece_length(key),
                     key.begin, position);
}

static lade_status text_read(parser *p) {
  config_part rest = piece_trim((config_part){p->text, p->text + strlen(p->text)});
  if (rest.begin == rest.end) return LADE_OK;
  for (bool more = true; more;) {
    config_part whole;
    more = piece_cut(&rest, ',', &whole);
    lade_status status = setting_read(p, whole);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}

static lade_status parse(const char *text, bool reference_only, lade_config *config) {
  if (text == NULL || config == NULL) {
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "configuration: text or config is NULL");
  }
  parser p = {.text = text, .reference_only = reference_only};
  lade_status status = ladei_options_read("lade_config", config, &p.config, sizeof p.config);
  if (status == LADE_OK) status = text_read(&p);
  return status == LADE_OK ? ladei_stats_write("lade_config", &p.config, sizeof p.config, config) : status;
}

lade_status lade_config_parse(const char *text, lade_config *config) { return parse(text, false, config); }

lade_status ladei_config_parse_reference(const char *text, lade_config *config) { return parse(text, true, config); }

/* The reference takes the presence of this variable, whatever its value, for the uncached mode. */
static lade_status uncached_from_env(lade_config *config) {
  lade_config own;
  if (getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == NULL) return LADE_OK;
  lade_status status = ladei_options_read("lade_config", config, &own, sizeof own);
  own.device_uncached = 1;
  return status == LADE_OK ? ladei_stats_write("lade_config", &own, sizeof own, config) : status;
}

lade_status lade_config_from_env(lade_config *config) {
  static const char *const variables[] = {"LADE_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *text = getenv(variables[i]);
    if (text == NULL) continue;
    lade_status status = lade_config_parse(text, config);
    return status == LADE_OK ? uncached_from_env(config) : ladei_error_prefix(status, "%s: ", variables[i]);
  }
  return uncached_from_env(config);
}

/* ---- Use --------------------------------------------------------------------------------------------------------- */

void lade_config_apply_device(const lade_config *config, lade_device_options *options) {
  options->max_split_bytes = config->max_split_size_mb * LADEI_MIB;
  options->collection_threshold = config->garbage_collection_threshold;
  options->expandable_segments = config->expandable_segments;
  memcpy(options->roundup_divisions, config->roundup_power2_divisions, sizeof options->roundup_divisions);
  options->max_unsplit_slack_bytes = config->max_non_split_rounding_mb * LADEI_MIB;
  options->large_segment_bytes = config->large_segment_size_mb * LADEI_MIB;
  options->backend = config->backend;
  options->flags = config->device_uncached != 0 ? (uint32_t)LADE_DEVICE_UNCACHED : 0;
  options->flags |= config->device_expandable_pools != 0 ? (uint32_t)LADE_DEVICE_EXPANDABLE_PRIVATE_POOLS : 0;
  options->flags |= config->device_expandable_ipc != 0 ? (uint32_t)LADE_DEVICE_EXPANDABLE_IPC : 0;
  options->flags |= config->device_newest_pool != 0 ? (uint32_t)LADE_DEVICE_NEWEST_POOL : 0;
  options->flags |= config->device_reference != 0 ? (uint32_t)LADE_DEVICE_REFERENCE : 0;
  options->memory_fraction = config->per_process_memory_fraction;
  options->max_bytes = config->device_max_mb * LADEI_MIB;
  options->event_batch = config->device_event_batch;
}

void lade_config_apply_pinned(const lade_config *config, lade_pinned_options *options) {
  if (config->pinned_use_cuda_host_register == 1) options->sources = LADE_PINNED_SOURCE_REGISTER;
  if (config->pinned_use_cuda_host_register == 2) options->sources = LADE_PINNED_SOURCE_DRIVER;
  options->max_bytes = config->pinned_max_mb * LADEI_MIB;
  options->event_batch = config->pinned_event_batch;
  options->wait_ms = config->pinned_wait_ms;
  options->segment_bytes = config->pinned_segment_mb * LADEI_MIB;
  options->magazine_bytes = config->pinned_magazine_mb * LADEI_MIB;
  options->max_idle_ms = config->pinned_max_idle_ms;
  options->prefault_threads =
      config->pinned_threads != 0 ? config->pinned_threads : config->pinned_num_register_threads;
  options->flags = config->pinned_numa_strict != 0 ? (uint32_t)LADE_PINNED_NUMA_STRICT : 0;
  options->flags |= config->pinned_background != 0 ? (uint32_t)LADE_PINNED_BACKGROUND : 0;
  options->flags |= config->pinned_debug != 0 ? (uint32_t)LADE_PINNED_DEBUG : 0;
  options->flags |= config->pinned_reference != 0 ? (uint32_t)LADE_PINNED_REFERENCE : 0;
  options->flags |= config->pinned_device_mapped != 0 ? (uint32_t)LADE_PINNED_DEVICE_MAPPED : 0;
  options->register_chunk_bytes = config->pinned_register_chunk_mb * LADEI_MIB;
  if (config->pinned_sources != 0) options->sources = config->pinned_sources;
}

void lade_config_apply_pipeline(const lade_config *config, lade_pipeline_options *options) {
  options->storage = (int32_t)config->storage;
}
