/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text: one reader per kind of value, driven by tables of keys.
 *
 *   text --comma--> settings --first colon--> key, value --kind of the key--> field of the caller's struct
 */
#include "base/config.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/decimal.h"
#include "base/error.h"
#include "base/size.h"

enum { DIVISION_COUNT = 16, VALUES_TEXT_BYTES = 160 };

const ladei_setting_word ladei_setting_true_false[] = {{"True", 1, false}, {"False", 0, false}, {NULL, 0, false}};

/* A piece of the text. */
typedef struct config_part {
  const char *begin;
  const char *end;
} config_part;

typedef struct parser {
  const ladei_settings_table *const *tables;
  size_t table_count;
  const char *text;
  bool pytorch_only;
  ladei_settings_skips
      *skips; /* NULL: an unknown key is an error. Otherwise the text is one that PyTorch reads: Note [Commas] */
  bool seen[LADEI_SETTINGS_TABLE_MAX][LADEI_SETTINGS_MAX];
  char *fields;
} parser;

/*
 * Note [Commas]
 * PyTorch's parser allows one comma after the last setting, or after the last pair of a list. It reads a key that is
 * given twice both times, so the last value counts; a second list changes only the entries that it names. In lade's own
 * texts all of this is an error.
 */

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

/* Newlines too: a text that was a block of a file ends with one. */
static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

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

/* Moves the text before `separator` (outside brackets), trimmed, into *head. False if there is no separator: *head is
 * all the rest. */
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

/* ---- Expected values -------------------------------------------------------------------------------------------- */

static bool word_known(const ladei_setting_word *word, bool pytorch_only) { return !pytorch_only || !word->of_lade; }

/* "a, b or c" for one of them; "some of a, b, c, with bars between" for a set. */
static void words_list(const ladei_setting *s, bool pytorch_only, char *text, size_t text_bytes) {
  bool set = s->kind == LADEI_SETTING_WORD_SET;
  size_t length = (size_t)snprintf(text, text_bytes, "%s", set ? "some of " : "");
  const char *separator = "";
  for (const ladei_setting_word *word = s->words; word->word != NULL; word++) {
    if (!word_known(word, pytorch_only) || length >= text_bytes) continue;
    length += (size_t)snprintf(text + length, text_bytes - length, "%s%s", separator, word->word);
    bool before_last = word[1].word != NULL && word_known(&word[1], pytorch_only) && word[2].word == NULL;
    separator = before_last && !set ? " or " : ", ";
  }
  if (set && length < text_bytes) snprintf(text + length, text_bytes - length, ", with bars between");
}

void ladei_setting_values(const ladei_setting *s, bool pytorch_only, char *text, size_t text_bytes) {
  unsigned long long low = s->low;
  unsigned long long high = s->high;
  switch (s->kind) {
  case LADEI_SETTING_NUMBER: snprintf(text, text_bytes, "a number from %llu to %llu", low, high); return;
  case LADEI_SETTING_POWER_OF_TWO: snprintf(text, text_bytes, "a power of two from %llu to %llu", low, high); return;
  case LADEI_SETTING_THRESHOLD: snprintf(text, text_bytes, "a number above 0 and below 1"); return;
  case LADEI_SETTING_FRACTION: snprintf(text, text_bytes, "a number from 0 to 1"); return;
  case LADEI_SETTING_NAME:
    snprintf(text, text_bytes, "1 to %zu letters, digits, '-', '_' or '.'", s->bytes - 1);
    return;
  case LADEI_SETTING_DIVISIONS:
    snprintf(text, text_bytes, "a power of two, or [A:D,...,>:D] with powers of two");
    return;
  default: words_list(s, pytorch_only, text, text_bytes);
  }
}

static lade_status value_error(const parser *p, const ladei_setting *s, config_part value) {
  char expected[VALUES_TEXT_BYTES];
  ladei_setting_values(s, p->pytorch_only, expected, sizeof expected);
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: bad value \"%.*s\" at position %zu: expected %s", s->key,
                     piece_length(value), value.begin, (size_t)(value.begin - p->text) + 1, expected);
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
  /* Any number of digits counts; the text after the value (a comma, a blank, the end) is not part of a number. */
  *out = ladei_decimal_read(value.begin);
  return true;
}

static bool number_in_range(const ladei_setting *s, config_part value, void *field) {
  uint64_t number;
  if (!number_read(value, &number) || number < s->low || number > s->high) return false;
  if (s->kind == LADEI_SETTING_POWER_OF_TWO && !ladei_is_power_of_two(number)) return false;
  if (s->bytes == sizeof(uint64_t))
    *(uint64_t *)field = number;
  else
    *(uint32_t *)field = (uint32_t)number;
  return true;
}

static bool fraction_in_range(const ladei_setting *s, config_part value, double *field) {
  double number;
  if (!fraction_read(value, &number)) return false;
  bool threshold = s->kind == LADEI_SETTING_THRESHOLD;
  if (threshold ? !(number > 0.0 && number < 1.0) : !(number >= 0.0 && number <= 1.0)) return false;
  *field = number;
  return true;
}

static bool word_read(const parser *p, const ladei_setting *s, config_part value, uint32_t *out) {
  for (const ladei_setting_word *word = s->words; word->word != NULL; word++) {
    if (!word_known(word, p->pytorch_only) || !piece_is(value, word->word)) continue;
    *out = word->number;
    return true;
  }
  return false;
}

/* Words separated by bars: register|driver. */
static bool word_set_read(const parser *p, const ladei_setting *s, config_part value, uint32_t *out) {
  uint32_t set = 0;
  config_part rest = value;
  for (bool more = true; more;) {
    config_part word;
    uint32_t number;
    more = piece_cut(&rest, '|', &word);
    if (!word_read(p, s, word, &number)) return false;
    set |= number;
  }
  *out = set;
  return true;
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

/* PyTorch's texts may end with a separator: nothing follows it. */
static bool is_end(const parser *p, config_part piece, bool more, size_t count) {
  return p->skips != NULL && !more && count > 0 && piece.begin == piece.end;
}

/* The list between the brackets. */
static bool division_list_read(const parser *p, config_part list, uint64_t table[DIVISION_COUNT]) {
  int named = -1;
  bool closed = false, more = true;
  for (size_t count = 0; more; count++) {
    config_part pair;
    more = piece_cut(&list, ',', &pair);
    if (!is_end(p, pair, more, count) && !division_read(pair, table, &named, &closed)) return false;
  }
  return true;
}

static bool divisions_read(const parser *p, config_part value, bool again, uint64_t out[DIVISION_COUNT]) {
  uint64_t table[DIVISION_COUNT] = {0};
  uint64_t d;
  if (again) memcpy(table, out, sizeof table);
  if (number_read(value, &d)) {
    if (!ladei_is_power_of_two(d)) return false;
    for (int i = 0; i < DIVISION_COUNT; i++) table[i] = d;
  } else {
    if (value.end - value.begin < 2 || *value.begin != '[' || value.end[-1] != ']') return false;
    if (!division_list_read(p, (config_part){value.begin + 1, value.end - 1}, table)) return false;
  }
  memcpy(out, table, sizeof table);
  return true;
}

static bool name_read(const ladei_setting *s, config_part value, char *field) {
  size_t length = (size_t)(value.end - value.begin);
  if (length == 0 || length >= s->bytes) return false;
  for (const char *at = value.begin; at < value.end; at++)
    if (!isalnum((unsigned char)*at) && strchr("-_.", *at) == NULL) return false;
  memset(field, 0, s->bytes);
  memcpy(field, value.begin, length);
  return true;
}

/* `again`: the text has already given this key. False if the setting does not take the value. */
static bool value_read(const parser *p, const ladei_setting *s, config_part value, bool again) {
  void *field = p->fields + s->offset;
  switch (s->kind) {
  case LADEI_SETTING_THRESHOLD:
  case LADEI_SETTING_FRACTION: return fraction_in_range(s, value, field);
  case LADEI_SETTING_WORD: return word_read(p, s, value, field);
  case LADEI_SETTING_WORD_SET: return word_set_read(p, s, value, field);
  case LADEI_SETTING_DIVISIONS: return divisions_read(p, value, again, field);
  case LADEI_SETTING_NAME: return name_read(s, value, field);
  default: return number_in_range(s, value, field);
  }
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

/* The setting of this key, and the mark that it was seen; NULL if the key is unknown. */
static const ladei_setting *setting_find(parser *p, config_part key, bool **out_seen) {
  for (size_t t = 0; t < p->table_count; t++) {
    for (size_t i = 0; i < p->tables[t]->count; i++) {
      const ladei_setting *s = &p->tables[t]->settings[i];
      if (!piece_is(key, s->key) || (p->pytorch_only && s->origin != LADEI_SETTING_OF_PYTORCH)) continue;
      *out_seen = &p->seen[t][i];
      return s;
    }
  }
  return NULL;
}

/* True: the setting is skipped. A key without a name, or a list without an end, is an error for any key. */
static bool setting_skip(parser *p, config_part whole, config_part key) {
  int depth = 0;
  for (const char *at = whole.begin; at < whole.end; at++) depth += *at == '[' ? 1 : *at == ']' && depth > 0 ? -1 : 0;
  if (p->skips == NULL || key.begin == key.end || depth > 0) return false;
  if (p->skips->count < LADEI_SETTINGS_SKIPS_MAX)
    p->skips->first[p->skips->count] = (ladei_settings_skip){key.begin, piece_length(key)};
  p->skips->count++;
  return true;
}

static lade_status setting_read(parser *p, config_part whole) {
  config_part value = whole;
  config_part key;
  bool *seen;
  bool colon = piece_cut(&value, ':', &key);
  size_t position = (size_t)(key.begin - p->text) + 1;
  const ladei_setting *s = setting_find(p, key, &seen);
  if (s == NULL && setting_skip(p, whole, key)) return LADE_OK;
  if (s == NULL) {
    return ladei_error(LADE_ERR_CONFIG, 0, "configuration: unknown key \"%.*s\" at position %zu", piece_length(key),
                       key.begin, position);
  }
  bool again = *seen;
  if (again && p->skips == NULL)
    return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: given a second time at position %zu", s->key, position);
  if (!colon) return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: no value at position %zu", s->key, position);
  *seen = true;
  value = piece_trim(value);
  return value_read(p, s, value, again) ? LADE_OK : value_error(p, s, value);
}

lade_status ladei_settings_read(const ladei_settings_table *const tables[], size_t table_count, const char *text,
                                bool pytorch_only, ladei_settings_skips *skips, void *fields) {
  parser p = {.tables = tables,
              .table_count = table_count,
              .text = text,
              .pytorch_only = pytorch_only,
              .skips = skips,
              .fields = fields};
  config_part rest = piece_trim((config_part){text, text + strlen(text)});
  if (rest.begin == rest.end) return LADE_OK;
  bool more = true;
  for (size_t count = 0; more; count++) {
    config_part whole;
    more = piece_cut(&rest, ',', &whole);
    lade_status status = is_end(&p, whole, more, count) ? LADE_OK : setting_read(&p, whole);
    if (status != LADE_OK) return status;
  }
  return LADE_OK;
}
