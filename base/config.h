/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text, KEY:VALUE[,KEY:VALUE...]: the parser, and the tables of keys that drive it.
 *
 * Each room owns the table of its keys; base knows none of them. config/ joins the tables.
 */
#ifndef LADE_BASE_CONFIG_H
#define LADE_BASE_CONFIG_H

#include <stdbool.h>

#include "lade/status.h"

/* The kind of a value, and the type of its field. */
typedef enum ladei_setting_kind {
  LADEI_SETTING_NUMBER,       /* uint32_t or uint64_t, from low to high */
  LADEI_SETTING_POWER_OF_TWO, /* the same, and a power of two */
  LADEI_SETTING_THRESHOLD,    /* double above 0 and below 1 */
  LADEI_SETTING_FRACTION,     /* double from 0 to 1 */
  LADEI_SETTING_WORD,         /* uint32_t: the number of one of the words */
  LADEI_SETTING_WORD_SET,     /* uint32_t: the numbers of some words, which bars separate, joined by "or" */
  LADEI_SETTING_NAME,         /* char[]: letters, digits, '-', '_', '.', terminated by a 0 */
  LADEI_SETTING_DIVISIONS     /* uint64_t[16]: steps per power of two, by size (lade/config.h) */
} ladei_setting_kind;

/* The project that a key comes from. */
typedef enum ladei_setting_origin {
  LADEI_SETTING_OF_LADE,
  LADEI_SETTING_OF_PYTORCH,      /* known to the PyTorch version that traces are compared with */
  LADEI_SETTING_OF_LATER_PYTORCH /* known to later versions of PyTorch only */
} ladei_setting_origin;

/* A word that stands for a number. A list of words ends with NULL. */
typedef struct ladei_setting_word {
  const char *word;
  uint32_t number;
  bool of_lade; /* unknown if only PyTorch's keys are read */
} ladei_setting_word;

typedef struct ladei_setting {
  const char *key;
  ladei_setting_kind kind;
  ladei_setting_origin origin;
  size_t offset; /* of the field in the struct that is read into */
  size_t bytes;  /* size of the field */
  uint64_t low;
  uint64_t high;
  const ladei_setting_word *words;
  const char *unit;          /* NULL: none */
  const char *default_value; /* behaviour without the key, in words */
  const char *option;        /* the field or flag of the room's options that the setting changes; NULL: none */
  const char *help;          /* one line */
} ladei_setting;

/* The keys of one room. */
typedef struct ladei_settings_table {
  const char *room;    /* its folder */
  const char *title;   /* subject of its settings */
  const char *options; /* the public struct of its options */
  const ladei_setting *settings;
  size_t count; /* at most LADEI_SETTINGS_MAX */
} ladei_settings_table;

/* Limits on tables that are read together; each place that defines a table asserts them at compile time. */
enum { LADEI_SETTINGS_MAX = 64, LADEI_SETTINGS_TABLE_MAX = 8 };

/* Initialisers of a setting: of a field in the struct `type`; of all values of a switch; of a number. */
extern const ladei_setting_word ladei_setting_true_false[]; /* True 1, False 0 */
#define LADEI_SETTING_FIELD(type, field) .offset = offsetof(type, field), .bytes = sizeof(((type *)0)->field)
#define LADEI_SETTING_SWITCH(type, field)                                                                              \
  .kind = LADEI_SETTING_WORD, LADEI_SETTING_FIELD(type, field), .words = ladei_setting_true_false,                     \
  .default_value = "False"
#define LADEI_SETTING_RANGE(type, field, min, max)                                                                     \
  .kind = LADEI_SETTING_NUMBER, LADEI_SETTING_FIELD(type, field), .low = (min), .high = (max)

/* 2^40 MiB are 2^60 bytes, the limit of every size. */
#define LADEI_SETTING_MIB_MAX ((UINT64_C(1) << 40) - 1)

/* The settings that were skipped because unknown keys are no error. Keeps the first ones; `count` counts all. */
enum { LADEI_SETTINGS_SKIPS_MAX = 32 };
typedef struct ladei_settings_skip {
  const char *key; /* in the text */
  int key_bytes;
} ladei_settings_skip;
typedef struct ladei_settings_skips {
  size_t count;
  ladei_settings_skip first[LADEI_SETTINGS_SKIPS_MAX];
} ladei_settings_skips;

/*
 * Reads `text` by the tables into the struct `fields`. Fields of keys that the text does not name stay unchanged.
 *
 * With `pytorch_only` only the keys of LADEI_SETTING_OF_PYTORCH are known. With `skips` (may be NULL) a setting with an
 * unknown key is noted there and skipped, a comma may end the text, and the last value of a key that is given twice
 * counts. On error some fields may have been written, so the caller reads into a copy. Errors: LADE_ERR_CONFIG; the
 * message names key, value, position (from 1) and what is expected.
 */
lade_status ladei_settings_read(const ladei_settings_table *const tables[], size_t table_count, const char *text,
                                bool pytorch_only, ladei_settings_skips *skips, void *fields);

/* Writes which values a setting takes, in words, for messages and `lade settings`; cut to `text_bytes`. */
void ladei_setting_values(const ladei_setting *setting, bool pytorch_only, char *text, size_t text_bytes);

#endif /* LADE_BASE_CONFIG_H */
