/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the tables of a snapshot. They name each other by index and texts by number; 0 is the empty text. Model and invariants in
 * snapshot.h.
 */
#ifndef LADE_INSPECT_ROWS_H
#define LADE_INSPECT_ROWS_H

#include "lade/inspect.h"

/* Number of a stack, a note or another index that is not there. */
#define LADEI_SNAPSHOT_NONE UINT32_MAX

/* One part, and where its rows are in the other tables. */
typedef struct ladei_snapshot_part {
  uint32_t kind;   /* lade_part_kind. */
  int32_t device;  /* Ordinal; -1: none. */
  uint32_t name;   /* Text. */
  uint32_t events; /* 1: the part's history was on. */
  uint64_t first_segment, segment_count;
  uint64_t first_block, block_count; /* Those of its segments, in their order. */
  uint64_t first_event, event_count; /* Oldest first. */
  uint64_t first_counter, counter_count;
  uint64_t first_setting, setting_count;
  uint64_t lost_count;     /* Events since the history was turned on that the ring no longer held. */
  uint64_t capacity_bytes; /* Of the device, or the pool's cap; 0: unknown. */
  uint64_t max_entries;    /* Events that the ring holds; 0: no history. */
  uint64_t time_ns;        /* Wall clock, ns since 1970, of the moment that segments and blocks show. */
  uint64_t skew_ns; /* How much later than the snapshot's `time_ns` that is: 0 where the part was rolled back to it. */
} ladei_snapshot_part;

/* Flags of a segment. */
typedef enum ladei_snapshot_segment_flag {
  LADEI_SNAPSHOT_SEGMENT_LARGE = 1,      /* Of the large pool of a device allocator. */
  LADEI_SNAPSHOT_SEGMENT_EXPANDABLE = 2, /* A mapped part of an expandable segment. */
  LADEI_SNAPSHOT_SEGMENT_SMALL = 4,      /* Of an event alone: of the small pool. */
} ladei_snapshot_segment_flag;

/* A contiguous run of device or pinned memory. */
typedef struct ladei_snapshot_segment {
  uint64_t address;
  uint64_t total_bytes;     /* Sum of its blocks. */
  uint64_t allocated_bytes; /* Handed out. */
  uint64_t active_bytes;    /* Handed out or pending. */
  uint64_t requested_bytes; /* Asked for, in active blocks. */
  uint64_t stream;          /* Its handle as a number; 0 for pinned memory. */
  lade_device_pool_id pool; /* {0, 0}: the default pools. */
  uint64_t first_block, block_count;
  uint32_t part;     /* Index. */
  uint32_t stack;    /* Index, of the allocation it was got for; LADEI_SNAPSHOT_NONE. */
  uint32_t flags;    /* ladei_snapshot_segment_flag. */
  int32_t numa_node; /* Of pinned memory, OS index; -1: none. */
} ladei_snapshot_segment;

/* A piece of a segment; the blocks of a segment cover it, in the order of addresses. */
typedef struct ladei_snapshot_block {
  uint64_t address;
  uint64_t bytes;
  uint64_t requested_bytes; /* As asked for; 0 while inactive. */
  uint32_t state;           /* lade_device_block_state; of pinned memory too. */
  uint32_t stack;           /* Index, of its allocation; LADEI_SNAPSHOT_NONE. */
  uint32_t note;            /* Text that the program wrote on the live block. */
  uint32_t reserved;
} ladei_snapshot_block;

/* Something that happened. */
typedef struct ladei_snapshot_event {
  uint64_t time_ns;         /* Wall clock, ns since 1970. */
  uint64_t address;         /* Of an out-of-memory: the device's free bytes. */
  uint64_t bytes;           /* As in lade_device_event. */
  uint64_t block_bytes;     /* Of the block, rounding included; 0: unknown, or no block. */
  uint64_t stream;          /* Its handle as a number. */
  lade_device_pool_id pool; /* {0, 0}: the default pools, or none. */
  uint32_t stack;           /* Index; LADEI_SNAPSHOT_NONE. */
  uint32_t label;           /* Text: the label of the thread (`user_metadata`), or the text of an annotation. */
  uint32_t scopes;          /* Text: the thread's scopes, outermost first, divided by "/" (`compile_context`). */
  uint32_t part;            /* Index. */
  uint32_t action;          /* lade_device_action; of pinned memory too. */
  uint32_t flags;           /* Of a segment: LADEI_SNAPSHOT_SEGMENT_LARGE or _SMALL; 0: unknown, or no segment. */
} ladei_snapshot_event;

/* A call stack: its frames, innermost first. */
typedef struct ladei_snapshot_stack {
  uint64_t first_frame;
  uint64_t frame_count;
} ladei_snapshot_stack;

/* A frame. Without function and file it is not symbolised: module and address name it. lade's stacks are taken so, and named when the
 * snapshot is written, or by lade_snapshot_symbolise(). */
typedef struct ladei_snapshot_frame {
  uint64_t address;  /* Of the call; 0: none. */
  uint32_t function; /* Text. */
  uint32_t file;     /* Text. */
  uint32_t line;     /* 0: unknown. */
  uint32_t module;   /* Index; LADEI_SNAPSHOT_NONE. */
} ladei_snapshot_frame;

/* A program file or library that addresses of frames lie in. */
typedef struct ladei_snapshot_module {
  uint64_t base;     /* Where it was loaded: what to subtract from an address. */
  uint64_t bytes;    /* From base on. */
  uint32_t path;     /* Text. */
  uint32_t build_id; /* Text, in hexadecimal. */
} ladei_snapshot_module;

/* A counter of a part. */
typedef struct ladei_snapshot_counter {
  int64_t value;
  uint32_t key; /* Text, such as "allocated_bytes.all.current". */
  uint32_t part;
} ladei_snapshot_counter;

/* Type of a setting's value. */
typedef enum ladei_snapshot_setting_kind {
  LADEI_SNAPSHOT_SETTING_BOOL = 1, /* `integer`, 0 or 1. */
  LADEI_SNAPSHOT_SETTING_INTEGER = 2,
  LADEI_SNAPSHOT_SETTING_REAL = 3,
  LADEI_SNAPSHOT_SETTING_TEXT = 4,
} ladei_snapshot_setting_kind;

/* A setting of a part. A key that ends in "." and something is an entry of a map, such as
 * "roundup_power2_divisions.1024". */
typedef struct ladei_snapshot_setting {
  int64_t integer;
  double real;
  uint32_t text; /* Text. */
  uint32_t key;  /* Text. */
  uint32_t kind; /* ladei_snapshot_setting_kind. */
  uint32_t part;
} ladei_snapshot_setting;

#endif /* LADE_INSPECT_ROWS_H */
