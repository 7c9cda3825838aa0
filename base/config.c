/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text: one reader and one writer per kind of value, driven by tables of keys.
 *
 *   text --comma--> settings --first colon--> key, value --kind of the key--> field of the room's options
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
  const ladei_settings_source *source; /* with skips the text is one that PyTorch reads: Note [Commas] */
  const char *text;
  bool seen[LADEI_SETTINGS_TABLE_MAX][LADEI_SETTINGS_MAX];
  void *const *options;
  char *name;
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

static bool word_known(const ladei_setting_word *word, ladei_settings_known known) {
  return known == LADEI_SETTINGS_ALL || !word->of_lade;
}

/* "a, b or c" for one of them; "some of a, b, c, with bars between" for a set. */
static void words_list(const ladei_setting *s, ladei_settings_known known, char *text, size_t text_bytes) {
  bool set = s->kind == LADEI_SETTING_WORD_SET;
  size_t length = (size_t)snprintf(text, text_bytes, "%s", set ? "some of " : "");
  const char *separator = "";
  for (const ladei_setting_word *word = s->words; word->word != NULL; word++) {
    if (!word_known(word, known) || length >= text_bytes) continue;
    length += (size_t)snprintf(text + length, text_bytes - length, "%s%s", separator, word->word);
    bool before_last = word[1].word != NULL && word_known(&word[1], known) && word[2].word == NULL;
    separator = before_last && !set ? " or " : ", ";
  }
  if (set && length < text_bytes) snprintf(text + length, text_bytes - length, ", with bars between");
}

void ladei_setting_values(const ladei_setting *s, ladei_settings_known known, char *text, size_t text_bytes) {
  unsigned long long low = s->low;
  unsigned long long high = s->high;
  switch (s->kind) {
  case LADEI_SETTING_NUMBER: snprintf(text, text_bytes, "a number from %llu to %llu", low, high); return;
  case LADEI_SETTING_POWER_OF_TWO: snprintf(text, text_bytes, "a power of two from %llu to %llu", low, high); return;
  case LADEI_SETTING_THRESHOLD: snprintf(text, text_bytes, "a number above 0 and below 1"); return;
  case LADEI_SETTING_FRACTION: snprintf(text, text_bytes, "a number from 0 to 1"); return;
  case LADEI_SETTING_NAME:
    snprintf(text, text_bytes, "1 to %d letters, digits, '-', '_' or '.'", LADEI_SETTING_NAME_BYTES - 1);
    return;
  case LADEI_SETTING_DIVISIONS:
    snprintf(text, text_bytes, "a power of two, or [A:D,...,>:D] with powers of two");
    return;
  case LADEI_SETTING_PASSED: snprintf(text, text_bytes, "any text"); return;
  default: words_list(s, known, text, text_bytes);
  }
}

static lade_status value_error(const parser *p, const ladei_setting *s, config_part value) {
  char expected[VALUES_TEXT_BYTES];
  ladei_setting_values(s, p->source->known, expected, sizeof expected);
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %s: bad value \"%.*s\" at position %zu: expected %s",
                     s->key + strlen(p->source->prefix), piece_length(value), value.begin,
                     (size_t)(value.begin - p->text) + 1, expected);
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
  if (s->scale != 0) number *= s->scale;
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
    if (!word_known(word, p->source->known) || !piece_is(value, word->word)) continue;
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
  return p->source->skips != NULL && !more && count > 0 && piece.begin == piece.end;
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

static bool name_read(const parser *p, config_part value, const char **field) {
  size_t length = (size_t)(value.end - value.begin);
  if (length == 0 || length >= LADEI_SETTING_NAME_BYTES) return false;
  for (const char *at = value.begin; at < value.end; at++)
    if (!isalnum((unsigned char)*at) && strchr("-_.", *at) == NULL) return false;
  memset(p->name, 0, LADEI_SETTING_NAME_BYTES);
  memcpy(p->name, value.begin, length);
  *field = p->name;
  return true;
}

/* One word, or several; into the bits of the row. */
static bool words_store(const parser *p, const ladei_setting *s, config_part value, uint32_t *field) {
  uint32_t number;
  bool good = s->kind == LADEI_SETTING_WORD_SET ? word_set_read(p, s, value, &number) : word_read(p, s, value, &number);
  if (!good || s->bytes == 0) return good;
  if (s->kind == LADEI_SETTING_FLAG) number = number != 0 ? s->mask : 0;
  *field = (s->mask == 0 ? 0 : *field & ~s->mask) | number;
  return true;
}

/* `again`: the text has already given this key. False if the setting does not take the value. */
static bool value_read(const parser *p, const ladei_setting *s, config_part value, bool again, void *field) {
  switch (s->kind) {
  case LADEI_SETTING_NUMBER:
  case LADEI_SETTING_POWER_OF_TWO: return number_in_range(s, value, field);
  case LADEI_SETTING_THRESHOLD:
  case LADEI_SETTING_FRACTION: return fraction_in_range(s, value, field);
  case LADEI_SETTING_DIVISIONS: return divisions_read(p, value, again, field);
  case LADEI_SETTING_NAME: return name_read(p, value, field);
  case LADEI_SETTING_PASSED: return value.begin < value.end;
  default: return words_store(p, s, value, field);
  }
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static bool key_known(const ladei_setting *s, ladei_settings_known known) {
  return known == LADEI_SETTINGS_ALL || s->origin == LADEI_SETTING_OF_PYTORCH ||
         (known == LADEI_SETTINGS_OF_LATER_PYTORCH && s->origin == LADEI_SETTING_OF_LATER_PYTORCH);
}

static bool key_is(const parser *p, config_part key, const ladei_setting *s) {
  size_t prefix = strlen(p->source->prefix);
  return strncmp(s->key, p->source->prefix, prefix) == 0 && piece_is(key, s->key + prefix) &&
         key_known(s, p->source->known);
}

/* The number of the key's row in a table; the table's count where it has none. */
static size_t row_find(const parser *p, size_t t, config_part key) {
  const ladei_settings_table *table = p->source->tables[t];
  size_t row = 0;
  while (row < table->count && !key_is(p, key, &table->settings[row])) row++;
  return row;
}

static bool key_seen(const parser *p, size_t t, const char *key) {
  const ladei_settings_table *table = p->source->tables[t];
  for (size_t i = 0; i < table->count; i++)
    if (p->seen[t][i] && strcmp(table->settings[i].key, key) == 0) return true;
  return false;
}

/* True: the setting is skipped. A key without a name, or a list without an end, is an error for any key. */
static bool setting_skip(const parser *p, config_part whole, config_part key) {
  int depth = 0;
  for (const char *at = whole.begin; at < whole.end; at++) depth += *at == '[' ? 1 : *at == ']' && depth > 0 ? -1 : 0;
  ladei_settings_skips *skips = p->source->skips;
  if (skips == NULL || key.begin == key.end || depth > 0) return false;
  if (skips->count < LADEI_SETTINGS_SKIPS_MAX)
    skips->first[skips->count] = (ladei_settings_skip){key.begin, piece_length(key)};
  skips->count++;
  return true;
}

/* `row` of table t has the key. */
static lade_status row_read(parser *p, size_t t, size_t row, config_part value) {
  const ladei_setting *s = &p->source->tables[t]->settings[row];
  void *field = (char *)p->options[t] + s->offset;
  bool yields = s->yields_to != NULL && key_seen(p, t, s->yields_to);
  uint64_t before = 0;
  if (yields) memcpy(&before, field, s->bytes);
  bool good = value_read(p, s, value, p->seen[t][row], field);
  if (yields) memcpy(field, &before, s->bytes);
  p->seen[t][row] = true;
  return good ? LADE_OK : value_error(p, s, value);
}

static lade_status setting_read(parser *p, config_part whole) {
  config_part value = whole, key;
  bool colon = piece_cut(&value, ':', &key), known = false;
  size_t position = (size_t)(key.begin - p->text) + 1;
  value = piece_trim(value);
  for (size_t t = 0; t < p->source->table_count; t++) {
    size_t row = row_find(p, t, key);
    if (row == p->source->tables[t]->count) continue;
    known = true;
    if (p->seen[t][row] && p->source->skips == NULL)
      return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %.*s: given a second time at position %zu",
                         piece_length(key), key.begin, position);
    if (!colon)
      return ladei_error(LADE_ERR_CONFIG, 0, "configuration: %.*s: no value at position %zu", piece_length(key),
                         key.begin, position);
    LADEI_TRY(row_read(p, t, row, value));
  }
  if (known || setting_skip(p, whole, key)) return LADE_OK;
  return ladei_error(LADE_ERR_CONFIG, 0, "configuration: unknown key \"%.*s\" at position %zu", piece_length(key),
                     key.begin, position);
}

lade_status ladei_settings_read(const ladei_settings_source *source, const char *text, void *const options[],
                                char name[LADEI_SETTING_NAME_BYTES]) {
  parser p = {.source = source, .text = text, .options = options, .name = name};
  config_part rest = piece_trim((config_part){text, text + strlen(text)});
  if (rest.begin == rest.end) return LADE_OK;
  bool more = true;
  for (size_t count = 0; more; count++) {
    config_part whole;
    more = piece_cut(&rest, ',', &whole);
    LADEI_TRY(is_end(&p, whole, more, count) ? LADE_OK : setting_read(&p, whole));
  }
  return LADE_OK;
}

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

enum { VALUE_BYTES = 384 };

static uint64_t number_of(const ladei_setting *s, const void *field) {
  return s->bytes == sizeof(uint64_t) ? *(const uint64_t *)field : *(const uint32_t *)field;
}

static bool number_print(const ladei_setting *s, const void *field, char *value) {
  uint64_t number = number_of(s, field) / (s->scale == 0 ? 1 : s->scale);
  snprintf(value, VALUE_BYTES, "%llu", (unsigned long long)number);
  return number != 0 && number >= s->low && number <= s->high;
}

/* As few digits as read back as the value, without an exponent: the configuration takes none. */
static bool fraction_print(double fraction, char *value) {
  enum { MOST_PLACES = 340 };
  if (!(fraction > 0.0)) return false;
  int places = 0;
  do ladei_decimal_print(value, VALUE_BYTES, "%.*f", places, fraction);
  while (ladei_decimal_read(value) != fraction && ++places <= MOST_PLACES);
  return true;
}

static bool words_print(const ladei_setting *s, const void *field, char *value) {
  uint32_t number = (uint32_t)number_of(s, field) & (s->mask == 0 ? UINT32_MAX : s->mask);
  size_t length = 0;
  if (number == 0) return false;
  if (s->kind == LADEI_SETTING_FLAG) number = 1;
  for (const ladei_setting_word *word = s->words; word->word != NULL; word++) {
    bool set = s->kind == LADEI_SETTING_WORD_SET;
    if (set ? (number & word->number) == 0 : number != word->number) continue;
    length += (size_t)snprintf(value + length, VALUE_BYTES - length, "%s%s", length == 0 ? "" : "|", word->word);
  }
  return length > 0;
}

static bool divisions_print(const uint64_t *divisions, char *value) {
  size_t length = 0;
  bool any = false;
  for (size_t i = 0; i < DIVISION_COUNT && length < VALUE_BYTES; i++) {
    any = any || divisions[i] != 0;
    length += (size_t)snprintf(value + length, VALUE_BYTES - length, "%s%llu:%llu", i == 0 ? "[" : ",", 1ull << i,
                               (unsigned long long)divisions[i]);
  }
  if (length < VALUE_BYTES) snprintf(value + length, VALUE_BYTES - length, "]");
  return any;
}

/* False: it is 0, or no text says it. */
static bool value_print(const ladei_setting *s, const void *field, char *value) {
  switch (s->kind) {
  case LADEI_SETTING_NUMBER:
  case LADEI_SETTING_POWER_OF_TWO: return number_print(s, field, value);
  case LADEI_SETTING_THRESHOLD:
  case LADEI_SETTING_FRACTION: return fraction_print(*(const double *)field, value);
  case LADEI_SETTING_DIVISIONS: return divisions_print(field, value);
  case LADEI_SETTING_NAME:
    snprintf(value, VALUE_BYTES, "%s", *(const char *const *)field == NULL ? "" : *(const char *const *)field);
    return value[0] != '\0';
  default: return words_print(s, field, value);
  }
}

/* Whether it is a second name: it yields to the first, or a row before it has the same bits. */
static bool is_alias(const ladei_settings_table *table, size_t row) {
  const ladei_setting *s = &table->settings[row], *other = table->settings;
  if (s->yields_to != NULL) return true;
  while (other < s && (other->offset != s->offset || other->mask != s->mask || other->bytes == 0 ||
                       is_alias(table, (size_t)(other - table->settings))))
    other++;
  return other < s;
}

void ladei_settings_write(const ladei_settings_table *table, const void *options, ladei_bounded_text *text) {
  for (size_t i = 0; i < table->count; i++) {
    char value[VALUE_BYTES];
    const ladei_setting *s = &table->settings[i];
    if (s->bytes == 0 || is_alias(table, i) || !value_print(s, (const char *)options + s->offset, value)) continue;
    ladei_bounded_text_add(text, "%s%s:%s", text->length == 0 ? "" : ",", s->key, value);
  }
}
