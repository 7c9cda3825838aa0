/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text, KEY:VALUE[,KEY:VALUE...]: the parser, and the tables of keys that it works from.
 *
 * Each room owns the table of its keys; base knows none of them. config/ joins the tables.
 */
#ifndef LADE_BASE_CONFIG_H
#define LADE_BASE_CONFIG_H

#include <stdbool.h>

#include "lade/status.h"

/* What a value is, and the type of the field that takes it. */
typedef enum ladei_setting_kind {
  LADEI_SETTING_NUMBER,       /* uint32_t or uint64_t, from low to high */
  LADEI_SETTING_POWER_OF_TWO, /* the same, and a power of two */
  LADEI_SETTING_THRESHOLD,    /* double above 0 and below 1 */
  LADEI_SETTING_FRACTION,     /* double from 0 to 1 */
  LADEI_SETTING_WORD,         /* uint32_t: the number of one of the words */
  LADEI_SETTING_WORD_SET,     /* uint32_t: the numbers of some words, with bars between, joined by "or" */
  LADEI_SETTING_NAME,         /* char[]: letters, digits, '-', '_', '.', ended by a 0 */
  LADEI_SETTING_DIVISIONS     /* uint64_t[16]: steps per power of two, by size (lade/config.h) */
} ladei_setting_kind;

/* Whose key it is. */
typedef enum ladei_setting_origin {
  LADEI_SETTING_OF_LADE,
  LADEI_SETTING_OF_PYTORCH,      /* known to the PyTorch that traces are compared with */
  LADEI_SETTING_OF_LATER_PYTORCH /* known to later versions of PyTorch only */
} ladei_setting_origin;

/* A word that stands for a number. A list of them ends with a word that is NULL. */
typedef struct ladei_setting_word {
  const char *word;
  uint32_t number;
  bool of_lade; /* unknown where only PyTorch's keys are read */
} ladei_setting_word;

typedef struct ladei_setting {
  const char *key;
  ladei_setting_kind kind;
  ladei_setting_origin origin;
  size_t offset; /* of the field, from the begin of the struct that is read into */
  size_t bytes;  /* size of the field */
  uint64_t low;
  uint64_t high;
  const ladei_setting_word *words;
  const char *unit;          /* NULL: none */
  const char *default_value; /* what the library does where the key is not given, in words */
  const char *option;        /* the field or flag of the room's options that the setting changes; NULL: none */
  const char *help;          /* one line */
} ladei_setting;

/* The keys of one room. */
typedef struct ladei_settings_table {
  const char *room;    /* its folder */
  const char *title;   /* what its settings are about */
  const char *options; /* the public struct of its options */
  const ladei_setting *settings;
  size_t count; /* at most LADEI_SETTINGS_MAX */
} ladei_settings_table;

/* Limits on tables that are read together; the places that define them assert it at compile time. */
enum { LADEI_SETTINGS_MAX = 64, LADEI_SETTINGS_TABLE_MAX = 8 };

/* Initialisers of a setting: its field in the struct `type`; all of a switch's values; all of a number's. */
extern const ladei_setting_word ladei_setting_true_false[]; /* True 1, False 0 */
#define LADEI_SETTING_FIELD(type, field) .offset = offsetof(type, field), .bytes = sizeof(((type *)0)->field)
#define LADEI_SETTING_SWITCH(type, field)                                                                              \
  .kind = LADEI_SETTING_WORD, LADEI_SETTING_FIELD(type, field), .words = ladei_setting_true_false,                     \
  .default_value = "False"
#define LADEI_SETTING_RANGE(type, field, min, max)                                                                     \
  .kind = LADEI_SETTING_NUMBER, LADEI_SETTING_FIELD(type, field), .low = (min), .high = (max)

/* 2^40 MiB are 2^60 bytes, the limit of every size. */
#define LADEI_SETTING_MIB_MAX ((UINT64_C(1) << 40) - 1)

/* Where unknown keys do not make the text bad: the settings that were passed over. The first ones; `count` counts all. */
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
 * Reads `text` by the tables into the struct `fields`. Keys that the text does not name leave their fields alone.
 *
 * With `pytorch_only` keys other than those of LADEI_SETTING_OF_PYTORCH are unknown. With `skips` (NULL: without) a setting
 * whose key is unknown is noted there and passed over, a comma may stand at the end, and of a key given twice the last counts. On error some fields may be written:
 * the caller reads into a copy. Errors: LADE_ERR_CONFIG; the message names key, value, position (from 1) and what is
 * expected.
 */
lade_status ladei_settings_read(const ladei_settings_table *const tables[], size_t table_count, const char *text,
                                bool pytorch_only, ladei_settings_skips *skips, void *fields);

/* Writes what values a setting takes, in words, as messages and `lade settings` tell it; cut to `text_bytes`. */
void ladei_setting_values(const ladei_setting *setting, bool pytorch_only, char *text, size_t text_bytes);

#endif /* LADE_BASE_CONFIG_H */
