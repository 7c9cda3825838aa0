/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings as text, KEY:VALUE[,KEY:VALUE...]: reading and writing, driven by tables of keys.
 *
 * Each room owns the table of its keys, whose rows point into the public struct of its options; base knows none of them.
 * config/ joins the tables. Several rooms may have the same key: each takes the value.
 */
#ifndef LADE_BASE_CONFIG_H
#define LADE_BASE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "base/bounded_text.h"
#include "lade/status.h"

/* The kind of a value, and the type of its field. */
typedef enum ladei_setting_kind {
  LADEI_SETTING_NUMBER,       /* uint32_t or uint64_t, from low to high */
  LADEI_SETTING_POWER_OF_TWO, /* the same, and a power of two */
  LADEI_SETTING_THRESHOLD,    /* double above 0 and below 1 */
  LADEI_SETTING_FRACTION,     /* double from 0 to 1 */
  LADEI_SETTING_FLAG,         /* bits of a uint32_t, `mask`: True sets them */
  LADEI_SETTING_WORD,         /* uint32_t, or the bits `mask` of one: the number of one of the words */
  LADEI_SETTING_WORD_SET,     /* uint32_t: the numbers of some words, which bars separate, joined by "or" */
  LADEI_SETTING_NAME,         /* const char *: letters, digits, '-', '_', '.'; one row of all tables at most */
  LADEI_SETTING_DIVISIONS,    /* uint64_t[16]: steps per power of two, by size (lade/config.h) */
  LADEI_SETTING_PASSED        /* any text: of another allocator's, without effect here and without a field */
} ladei_setting_kind;

/* The project that a key comes from. */
typedef enum ladei_setting_origin {
  LADEI_SETTING_OF_LADE,
  LADEI_SETTING_OF_PYTORCH,      /* known to the PyTorch versions of traces of version 1 */
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
  size_t offset; /* of the field in the room's options */
  size_t bytes;  /* size of the field; 0: there is none, the value is read and has no effect */
  uint32_t mask; /* 0: the whole field */
  uint64_t low;
  uint64_t high;
  uint64_t scale;        /* the field is so many times the number; 0: once */
  const char *yields_to; /* a key of the same field: in a text that has both this one has no effect. NULL: none */
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

/* Initialisers of a setting: of a field in the struct `type`; of a switch without effect, of a field, of a bit of a field;
 * of a number; of a number of MiB whose field is in bytes. */
extern const ladei_setting_word ladei_setting_true_false[]; /* True 1, False 0 */
#define LADEI_SETTING_PLACE(type, field)  .offset = offsetof(type, field), .bytes = sizeof(((type *)0)->field)
#define LADEI_SETTING_FIELD(type, field)  LADEI_SETTING_PLACE(type, field), .option = #field
#define LADEI_SETTING_NO_EFFECT           .kind = LADEI_SETTING_WORD, .words = ladei_setting_true_false, .default_value = "False"
#define LADEI_SETTING_SWITCH(type, field) LADEI_SETTING_NO_EFFECT, LADEI_SETTING_FIELD(type, field)
#define LADEI_SETTING_BIT(type, field, bit)                                                                            \
  .kind = LADEI_SETTING_FLAG, .words = ladei_setting_true_false, .default_value = "False",                             \
  LADEI_SETTING_PLACE(type, field), .mask = (bit), .option = #bit
#define LADEI_SETTING_RANGE(type, field, min, max)                                                                     \
  .kind = LADEI_SETTING_NUMBER, LADEI_SETTING_FIELD(type, field), .low = (min), .high = (max)
#define LADEI_SETTING_MIB(type, field, min, max)                                                                       \
  LADEI_SETTING_RANGE(type, field, min, max), .scale = UINT64_C(1) << 20, .unit = "MiB"

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

/* Which keys and words a text may have. */
typedef enum ladei_settings_known {
  LADEI_SETTINGS_ALL,
  LADEI_SETTINGS_OF_PYTORCH,      /* keys of LADEI_SETTING_OF_PYTORCH, words that are not lade's own */
  LADEI_SETTINGS_OF_LATER_PYTORCH /* also keys of LADEI_SETTING_OF_LATER_PYTORCH */
} ladei_settings_known;

/* How a text is read. */
typedef struct ladei_settings_source {
  const ladei_settings_table *const *tables;
  size_t table_count;
  const char *prefix; /* left out of the keys in the text, as in LADE_BUDGET; "": nothing */
  ladei_settings_known known;
  /* NULL: an unknown key is an error. Otherwise it is noted here and skipped, a comma may end the text, and the last value
   * of a key that is given twice counts. */
  ladei_settings_skips *skips;
} ladei_settings_source;

enum { LADEI_SETTING_NAME_BYTES = 64 };

/*
 * Reads `text` into the options of the rooms, `options[i]` by table i. Fields of keys that the text does not name stay
 * unchanged. The text of a name goes into `name`, and its field points there.
 *
 * On error some fields may have been written, so the caller reads into copies. Errors: LADE_ERR_CONFIG; the message names
 * key, value, position (from 1) and what is expected.
 */
lade_status ladei_settings_read(const ladei_settings_source *source, const char *text, void *const options[],
                                char name[LADEI_SETTING_NAME_BYTES]);

/* Writes the settings of a room that are not 0 as text that reads back as them. Sizes are rounded down to whole units; a
 * number outside the range of its key is left out. */
void ladei_settings_write(const ladei_settings_table *table, const void *options, ladei_bounded_text *text);

/* Writes which values a setting takes, in words, for messages and `lade settings`; cut to `text_bytes`. */
void ladei_setting_values(const ladei_setting *setting, ladei_settings_known known, char *text, size_t text_bytes);

#endif /* LADE_BASE_CONFIG_H */
