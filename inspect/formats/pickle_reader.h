/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine that runs the opcodes of a pickle that make plain data. It builds no tree of them: a map is folded into a
 * row as soon as its items are set, and a list keeps runs of rows.
 *
 *   {action: alloc, addr: 7, ...}  -->  row 12 of events      [e, e, e]  -->  events 12 to 14
 *
 * M1  Every value is of 16 bytes. Maps and lists are numbers of records: the memo may name one that still grows.
 * M2  A map has a kind from its first items on, given by its keys; other maps are MAP, and keep their items.
 * M3  A list that was used as a stack does not grow any more.
 * M4  Memory of the machine itself stays below 2 x the file and 64 MiB, that of rows below 8 x the file and 64 MiB:
 *     references of 2 bytes to a row of 72, or a file of marks, end there.
 * M5  Marks do not descend, and none is above the values on the stack. `at`, where reading goes on, lies within the file.
 * Nothing recurses: neither the machine nor the readers of its records.
 */
#ifndef LADE_INSPECT_FORMATS_PICKLE_READER_H
#define LADE_INSPECT_FORMATS_PICKLE_READER_H

#include "inspect/formats/pickle_words.h"
#include "inspect/snapshot.h"

typedef enum ladei_pickle_tag {
  LADEI_PICKLE_NONE, /* None */
  LADEI_PICKLE_BOOL,
  LADEI_PICKLE_INT,
  LADEI_PICKLE_REAL,
  LADEI_PICKLE_TEXT,
  LADEI_PICKLE_PAIR, /* a tuple of two integers; index of `pairs` */
  LADEI_PICKLE_LIST, /* index of `lists` */
  LADEI_PICKLE_DICT, /* index of `dicts` */
} ladei_pickle_tag;

typedef struct ladei_pickle_value {
  uint8_t tag;
  uint8_t word;    /* of a text: ladei_pickle_word; LADEI_PICKLE_WORD_COUNT: another text */
  uint32_t length; /* of a text, in bytes; of an integer 1: it is 2^63 or more, and no negative one */
  union {
    uint64_t integer; /* of two's complement; of a text its offset in the file; an index */
    double real;
  };
} ladei_pickle_value;

_Static_assert(sizeof(ladei_pickle_value) == 16, "M1");

/* Kinds of maps. */
typedef enum ladei_pickle_kind {
  LADEI_PICKLE_KIND_NEW, /* no items yet */
  LADEI_PICKLE_KIND_MAP,
  LADEI_PICKLE_KIND_EVENT,
  LADEI_PICKLE_KIND_BLOCK,
  LADEI_PICKLE_KIND_SEGMENT,
  LADEI_PICKLE_KIND_HOST,  /* an element of host_segments */
  LADEI_PICKLE_KIND_RANGE, /* an element of lade's pinned_segments */
  LADEI_PICKLE_KIND_FRAME,
  LADEI_PICKLE_KIND_NOTE, /* an element of external_annotations */
  LADEI_PICKLE_KIND_PAST, /* an element of the history that blocks of old files have */
  LADEI_PICKLE_KIND_LIST, /* only in runs: a list in a list */
  LADEI_PICKLE_KIND_OTHER /* only in runs: values that are no rows */
} ladei_pickle_kind;

typedef struct ladei_pickle_dict {
  uint32_t kind; /* ladei_pickle_kind */
  uint32_t row;  /* in the table of its kind */
} ladei_pickle_dict;

/* Elements first to first + count - 1 of the table of `kind`. */
typedef struct ladei_pickle_run {
  uint32_t kind;
  uint32_t first, count;
  uint32_t next; /* index + 1; 0: the last run of its list */
} ladei_pickle_run;

typedef struct ladei_pickle_list {
  uint32_t first_run, last_run; /* index + 1; 0: none */
  uint32_t stack;               /* of the snapshot, once `used` */
  uint32_t used;
} ladei_pickle_list;

typedef struct ladei_pickle_item {
  ladei_pickle_value key, value;
  uint32_t next; /* index + 1; 0: the last one of its map */
  uint32_t reserved;
} ladei_pickle_item;

typedef struct ladei_pickle_map {
  uint64_t words[2];              /* bits of the keys that are words */
  uint32_t first_item, last_item; /* index + 1; 0: none */
} ladei_pickle_map;

/* Which keys of a row the file has. */
enum { LADEI_PICKLE_HAS_ADDRESS = 1, LADEI_PICKLE_HAS_REQUESTED = 2 };

typedef struct ladei_pickle_segment {
  ladei_snapshot_segment row;
  int64_t device;
  uint32_t blocks; /* list, + 1; 0: none */
} ladei_pickle_segment;

typedef struct ladei_pickle_host {
  ladei_snapshot_block row;
  lade_device_pool_id pool;
  bool allocated, active;
} ladei_pickle_host;

typedef struct ladei_pickle_frame {
  ladei_snapshot_frame row;
  uint32_t unnamed; /* bits: 1: the file is not known, 2: the function is not */
} ladei_pickle_frame;

typedef struct ladei_pickle_note {
  uint64_t time_ns;
  int64_t device;
  uint32_t name, stage; /* texts */
} ladei_pickle_note;

typedef struct ladei_pickle_past {
  uint64_t bytes;
  uint32_t stack;
} ladei_pickle_past;

typedef struct ladei_pickle_reader {
  const unsigned char *data;
  size_t bytes, at;
  size_t op_at; /* where the opcode is that is run */
  const char *name;
  lade_snapshot *snapshot; /* has texts and stacks */
  size_t machine_bytes, row_bytes;
  LADEI_INSPECT_TABLE(ladei_pickle_value) stack;
  LADEI_INSPECT_TABLE(uint32_t) marks;
  LADEI_INSPECT_TABLE(ladei_pickle_value) memo;
  LADEI_INSPECT_TABLE(lade_device_pool_id) pairs;
  LADEI_INSPECT_TABLE(ladei_pickle_dict) dicts;
  LADEI_INSPECT_TABLE(ladei_pickle_list) lists;
  LADEI_INSPECT_TABLE(ladei_pickle_run) runs;
  LADEI_INSPECT_TABLE(ladei_pickle_map) maps;
  LADEI_INSPECT_TABLE(ladei_pickle_item) items;
  LADEI_INSPECT_TABLE(ladei_snapshot_event) events;
  LADEI_INSPECT_TABLE(ladei_snapshot_block) blocks; /* `reserved`: its fields found in the file */
  LADEI_INSPECT_TABLE(ladei_pickle_segment) segments;
  LADEI_INSPECT_TABLE(ladei_pickle_host) hosts;
  LADEI_INSPECT_TABLE(ladei_snapshot_segment) ranges;
  LADEI_INSPECT_TABLE(ladei_pickle_frame) frames;
  LADEI_INSPECT_TABLE(ladei_pickle_note) notes;
  LADEI_INSPECT_TABLE(ladei_pickle_past) pasts;
  LADEI_INSPECT_TABLE(ladei_snapshot_frame) stack_frames; /* of the stack that is looked up */
  struct {
    uint64_t offset; /* of a text in the file, + 1; 0: none */
    uint32_t text;
  } text_cache[4096];
  uint8_t word_index[256]; /* open addressing: ladei_pickle_word + 1 */
} ladei_pickle_reader;

/* Runs all opcodes. `out` is the last one's result. */
lade_status ladei_pickle_run_all(ladei_pickle_reader *reader, ladei_pickle_value *out);
void ladei_pickle_reader_dispose(ladei_pickle_reader *reader);

/* Refuses the file at the opcode that is run. */
lade_status ladei_pickle_refuse(const ladei_pickle_reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Counts memory against M4, before it is taken: LADE_ERR_LIMIT. */
lade_status ladei_pickle_machine_memory(ladei_pickle_reader *reader, size_t bytes);
lade_status ladei_pickle_row_memory(ladei_pickle_reader *reader, size_t bytes);

/* pickle_fold.c: items of a map, which come in pairs of key and value; an element of a list. */
lade_status ladei_pickle_dict_set(ladei_pickle_reader *reader, uint64_t dict, const ladei_pickle_value *items,
                                  size_t pair_count);
lade_status ladei_pickle_list_append(ladei_pickle_reader *reader, uint64_t list, const ladei_pickle_value *value);
lade_status ladei_pickle_text(ladei_pickle_reader *reader, const ladei_pickle_value *value, uint32_t *out);

/* The value of a key in a map; NULL: it has none, or is no map. The last one of equal keys counts. */
const ladei_pickle_value *ladei_pickle_find(const ladei_pickle_reader *reader, const ladei_pickle_value *map,
                                            ladei_pickle_word key);

#endif /* LADE_INSPECT_FORMATS_PICKLE_READER_H */
