/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a graph tree and its decisions, without a call of runtime or allocator.
 *
 *   roots --> group of (function, key) --> recording, recording, ...         oldest first
 *                                             |--> groups of its children
 *   path: entry 0 .. entry n-1, the current node              entry: a recording, or a warm-up, and a row
 *   row:  output 0 .. output m-1                              each a storage, or none (numbers, inputs used in place)
 *   slot (the program's buffer names it) --> storage          several slots may have one storage
 *
 *   storage   ALIVE: not lost, counts > 0 --counts are 0--> DEAD             rows of the path may still have it
 *             ALIVE --the path ends--> LOST
 *   slot      VALID --released, taken, lost--> FREE, its generation one more; its last use is readable until its reuse
 *
 * G1  A storage's counts are the sum of the counts of its slots, and of outputs that have no slot yet (tree/).
 * G2  path.alive is the number of alive storages in its rows. A storage is `in_path` if a row of the path has it.
 * G3  A storage's references are its slots and the places in rows that have it; at 0 it is free.
 * G4  A recording is `listed` if a group has it. Every node of a path exists as long as the path does, listed or not,
 *     and so does every node that has children.
 * G5  The current node is that of the last entry of the path; state NONE and an empty path are the same.
 * G6  Deciding changes nothing: ladei_tree_decide() fills a plan, which tree/ carries out.
 * G7  A dead storage stays dead: a storage without counts gets none.
 * Locks: none of its own. The owner of the tree writes; it holds the tree's lock for fields that other threads read.
 */
#ifndef LADE_GRAPH_CORE_CORE_H
#define LADE_GRAPH_CORE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/graph.h"

typedef struct ladei_tree_storage ladei_tree_storage;
typedef struct ladei_tree_slot ladei_tree_slot;
typedef struct ladei_tree_node ladei_tree_node;
typedef struct ladei_tree_group ladei_tree_group;
typedef struct ladei_tree_instance ladei_tree_instance;

/* ---- Memory of outputs ------------------------------------------------------------------------------------------- */

struct ladei_tree_storage {
  ladei_tree_storage *next; /* of free ones */
  ladei_tree_slot *slots;   /* those that name it */
  uint64_t address;         /* of its block, also when the block is gone */
  uint64_t bytes;           /* requested for the block */
  uint64_t stream_id;       /* outside of the pool: the stream that its block belongs to */
  uint64_t counts;          /* each slot has up to 2^31 */
  uint32_t references;
  uint32_t takes;  /* references that the current call takes */
  uint32_t inputs; /* inputs of the current call that lie in it */
  bool outside;    /* its block is not the pool's */
  bool has_block;  /* the block is handed out, and freed with the last count */
  bool in_path;
  bool lost;
  bool is_garbage; /* its block is about to be freed */
};

static inline bool ladei_tree_alive(const ladei_tree_storage *storage) {
  return storage != NULL && !storage->lost && storage->counts > 0;
}

/* The reason for which a slot is free. */
typedef enum ladei_tree_end {
  LADEI_TREE_END_NONE, /* it is valid, or never was */
  LADEI_TREE_END_RELEASED,
  LADEI_TREE_END_TAKEN,
  LADEI_TREE_END_BOUNDARY,
  LADEI_TREE_END_DEAD,
  LADEI_TREE_END_FREED, /* a body freed its memory */
} ladei_tree_end;

struct ladei_tree_slot {
  ladei_tree_slot *next;   /* of the storage's, or of free ones */
  ladei_tree_slot *before; /* of the storage's */
  ladei_tree_storage *storage;
  ladei_tree_slot *queue_next; /* of those with counts that wait for the end of a run */
  uint64_t address;
  uint64_t bytes;
  uint64_t tag;
  uint64_t run; /* the run that made it */
  uint64_t step;
  uint64_t serial; /* order of creation */
  uint32_t output; /* its index in that run */
  uint32_t index;  /* of the slot; constant */
  uint32_t generation;
  uint32_t uses; /* number of past generations */
  uint32_t counts;
  uint32_t takes, lends;      /* by the current call */
  uint32_t retains, releases; /* noted for the end of the run */
  uint32_t end;               /* ladei_tree_end */
  bool queued;
  uint64_t ended_by; /* run */
};

enum { LADEI_TREE_SLOT_CHUNK = 256, LADEI_TREE_SLOT_REST = 256 };

typedef struct ladei_tree_slots {
  ladei_tree_slot **chunks;
  size_t chunk_count;
  ladei_tree_slot *first_free, **last_free; /* the last used is last, so that stale names stay known for long */
  size_t free_count;
  size_t valid_count;
  uint32_t first_generation; /* of this tree: handles.c, Note [Generations] */
} ladei_tree_slots;

typedef struct ladei_tree_storages {
  ladei_tree_storage **chunks;
  size_t chunk_count;
  ladei_tree_storage *free;
  size_t free_count;
} ladei_tree_storages;

/* ---- Functions --------------------------------------------------------------------------------------------------- */

struct lade_graph_function {
  lade_graph_tree *tree;
  lade_graph_function *next;
  ladei_tree_instance *instances; /* the one used last first */
  lade_graph_body body;
  void *user;
  uint32_t mode;
  uint32_t input_count, output_count;
  uint32_t *input_flags;
  uint64_t *input_tags, *output_tags;
  bool mutates;        /* some input */
  uint32_t eager_told; /* reasons that the log has heard of */
  bool removed;        /* freed with its last node */
  size_t nodes;        /* existing nodes, listed or not, and entries of paths */
  char name[48];
};

/* A function with a key. */
struct ladei_tree_instance {
  lade_graph_function *function;
  ladei_tree_instance *next;
  uint64_t warmups; /* so far */
  size_t key_count;
  uint64_t key[];
};

/* ---- Recordings -------------------------------------------------------------------------------------------------- */

typedef struct ladei_tree_node_input {
  uint64_t address; /* managed, static: its own; copied: that of the copy */
  uint64_t bytes;
  uint32_t class; /* lade_graph_class */
  uint32_t reserved;
} ladei_tree_node_input;

/* An output of a node by its place in a path. */
typedef struct ladei_tree_position {
  uint32_t depth;  /* of the node, from 0 */
  uint32_t output; /* index */
} ladei_tree_position;

typedef struct ladei_tree_node_output {
  uint64_t address; /* or the number */
  uint64_t bytes;
  uint64_t block; /* new: the start of its block */
  uint64_t block_bytes;
  uint32_t kind;                /* lade_graph_output_kind */
  uint32_t source;              /* same: the output before it; input, prior: the input, or LADEI_TREE_BY_POSITION */
  ladei_tree_position position; /* prior without an input */
} ladei_tree_node_output;

enum { LADEI_TREE_BY_POSITION = 0xffffffffu };

typedef struct ladei_tree_positions {
  ladei_tree_position *list;
  uint32_t count;
} ladei_tree_positions;

struct ladei_tree_node {
  int64_t id;
  ladei_tree_node *parent; /* NULL: a root */
  ladei_tree_instance *instance;
  ladei_tree_group *group;                  /* the one that lists it, if any */
  ladei_tree_node *next;                    /* in the group: the next older one */
  ladei_tree_node *bucket_next;             /* in the group's table */
  ladei_tree_node *list_next, *list_before; /* of all listed ones, by id */
  ladei_tree_group *groups;                 /* of its children; the last used one first */
  size_t children;                          /* listed ones */
  size_t offspring;                         /* all existing children, listed or not */
  uint64_t hash;                            /* equal to that of every call that matches: ladei_tree_hash */
  uint32_t depth;
  uint32_t input_count, output_count;
  bool listed;
  bool in_path; /* the path, or one that is ending, has it */
  bool doomed;  /* its function was removed, or that of a node before it */
  ladei_tree_node_input *inputs;
  ladei_tree_node_output *outputs;
  ladei_tree_positions dead_before, dead_after, after;
  uint64_t used; /* run */
  uint64_t replays;
  uint64_t alone_bytes;
  uint64_t driver_bytes;
  uint64_t metadata_bytes;
  uint64_t checkpoint_blocks;
  lade_device_checkpoint *checkpoint;
  void *native;                   /* ladei_tree_native */
  lade_device_range *used_ranges; /* of the pool: its work may touch them */
  size_t used_range_count;
};

/* Recordings of one instance after one node. */
struct ladei_tree_group {
  ladei_tree_group *next;
  ladei_tree_instance *instance;
  ladei_tree_node *first, *last; /* oldest, newest */
  size_t count;
  uint64_t rerecords;        /* for inputs that moved */
  ladei_tree_node **buckets; /* by hash, each oldest first; NULL: there are few recordings */
  size_t bucket_count;
};

enum { LADEI_TREE_GROUP_FEW = 4 };

/* ---- Path -------------------------------------------------------------------------------------------------------- */

typedef struct ladei_tree_entry {
  ladei_tree_node *node; /* NULL: a warm-up */
  lade_graph_function *function;
  int64_t id;
  uint32_t output_count;
  size_t row; /* its first place in path.rows */
} ladei_tree_entry;

typedef struct ladei_tree_path {
  ladei_tree_entry *entries;
  size_t count, capacity;
  ladei_tree_storage **rows;
  size_t row_count, row_capacity;
  size_t alive;
} ladei_tree_path;

/* ---- A call ------------------------------------------------------------------------------------------------------ */

typedef struct ladei_tree_input {
  uint64_t address; /* as given; that of its copy for one that was carried */
  uint64_t bytes;
  ladei_tree_slot *slot;       /* NULL: memory */
  ladei_tree_storage *storage; /* the slot's */
  uint32_t flags;              /* lade_graph_input_flag */
  uint32_t class;              /* set by ladei_tree_classify() */
  bool taken;
  bool carried;
} ladei_tree_input;

typedef struct ladei_tree_call {
  ladei_tree_instance *instance;
  ladei_tree_input *inputs;
  size_t count;
  bool automatic;
} ladei_tree_call;

/* ---- The core ---------------------------------------------------------------------------------------------------- */

typedef struct ladei_tree_settings {
  uint64_t warmups;
  uint64_t max_nodes; /* 0: no limit */
  uint64_t max_rerecords;
  uint64_t max_driver_bytes; /* 0: no limit */
  bool fixed_statics;
} ladei_tree_settings;

typedef struct ladei_tree_core {
  ladei_tree_settings settings;
  lade_graph_state state;
  ladei_tree_path path;
  uint64_t marks, autos;
  uint64_t stored_marks, stored_autos;
  bool pending;
  bool every_candidate; /* do not search by hashes, so that all reasons are known */
  ladei_tree_group *roots;
  ladei_tree_node *first_node, *last_node; /* listed ones by id */
  size_t node_count;                       /* listed */
  uint64_t driver_bytes;                   /* of the listed ones */
  int64_t next_node, next_warmup;          /* ids */
  uint64_t runs;
  uint64_t slots_made;
  ladei_tree_slots slots;
  ladei_tree_storages storages;
  uint32_t *why; /* room for the reasons of all recordings of a group, and one more */
  size_t why_capacity;
} ladei_tree_core;

/* `tree`: its number in the process, by which buffers of other trees are recognised. */
void ladei_tree_core_init(ladei_tree_core *core, uint64_t tree);
/* Frees the core; nodes and functions are gone before. */
void ladei_tree_core_free(ladei_tree_core *core);

/* The current node's id. */
int64_t ladei_tree_current_id(const ladei_tree_core *core);
/* The current recording; NULL: none, or a warm-up. */
ladei_tree_node *ladei_tree_current(const ladei_tree_core *core);

/* ---- Slots and storages (handles.c) ------------------------------------------------------------------------------ */

/* Room for this many more slots and storages, which can be made then without failure. False: no memory. */
bool ladei_tree_handles_reserve(ladei_tree_core *core, size_t slots, size_t storages);
ladei_tree_storage *ladei_tree_storage_make(ladei_tree_core *core);                        /* with no references */
ladei_tree_slot *ladei_tree_slot_make(ladei_tree_core *core, ladei_tree_storage *storage); /* with no counts */

typedef enum ladei_tree_found { LADEI_TREE_VALID, LADEI_TREE_STALE, LADEI_TREE_FOREIGN } ladei_tree_found;
/* The slot that a buffer names; for a stale buffer the slot as it is now. `*out_known`: its old use is still known. */
ladei_tree_found ladei_tree_slot_find(const ladei_tree_core *core, lade_graph_buffer buffer, ladei_tree_slot **out,
                                      bool *out_known);
static inline lade_graph_buffer ladei_tree_slot_name(const ladei_tree_slot *slot) {
  lade_graph_buffer name = {slot->index + 1, slot->generation};
  return name;
}

/* Changes the counts of a slot and its storage, and the path's `alive`. A slot at 0 stays until ladei_tree_slot_end. */
void ladei_tree_count_add(ladei_tree_core *core, ladei_tree_slot *slot, uint32_t count);
void ladei_tree_count_take(ladei_tree_core *core, ladei_tree_slot *slot, uint32_t count);
/* Changes only the storage's counts, for outputs that have no slot yet. */
void ladei_tree_storage_count(ladei_tree_core *core, ladei_tree_storage *storage, bool more);
/* Frees the slot and drops its counts. The storage may become free, too. */
void ladei_tree_slot_end(ladei_tree_core *core, ladei_tree_slot *slot, ladei_tree_end end);
void ladei_tree_storage_unreference(ladei_tree_core *core, ladei_tree_storage *storage);

/* ---- Paths (handles.c) ------------------------------------------------------------------------------------------- */

bool ladei_tree_path_reserve(ladei_tree_path *path, size_t outputs);
/* Adds an entry; ladei_tree_path_set fills its row. */
ladei_tree_entry *ladei_tree_path_push(ladei_tree_path *path, ladei_tree_node *node, lade_graph_function *function,
                                       int64_t id, uint32_t output_count);
void ladei_tree_path_set(ladei_tree_path *path, size_t depth, uint32_t output, ladei_tree_storage *storage);
static inline ladei_tree_storage *ladei_tree_path_at(const ladei_tree_path *path, ladei_tree_position position) {
  return position.depth < path->count ? path->rows[path->entries[position.depth].row + position.output] : NULL;
}
/* Takes the ending path out of the core, and puts it back. The core's path is empty in between. */
void ladei_tree_path_leave(ladei_tree_core *core, ladei_tree_path *ending);
void ladei_tree_path_return(ladei_tree_core *core, ladei_tree_path *ending);
/* Drops the rows and entries of a path that has left the core. The functions of the entries still count them. */
void ladei_tree_path_clear(ladei_tree_core *core, ladei_tree_path *path);
void ladei_tree_path_free(ladei_tree_path *path);
/* Lists the positions that are alive, and returns their number. `list` has room for path->row_count; NULL: no list. */
uint32_t ladei_tree_path_alive_list(const ladei_tree_path *path, ladei_tree_position *list);

/* ---- Recordings (nodes.c) ---------------------------------------------------------------------------------------- */

/* A node that no group lists, with room for its arrays; NULL: no memory. */
ladei_tree_node *ladei_tree_node_make(ladei_tree_instance *instance, uint32_t inputs, uint32_t outputs, uint32_t before,
                                      uint32_t after_dead, uint32_t after);
void ladei_tree_node_free(ladei_tree_node *node);
/* The group of an instance after a node (NULL: the roots); NULL: there is none. */
ladei_tree_group *ladei_tree_group_find(ladei_tree_core *core, ladei_tree_node *parent,
                                        const ladei_tree_instance *instance);
/* ... which is made if there is none; NULL: no memory. */
ladei_tree_group *ladei_tree_group_make(ladei_tree_core *core, ladei_tree_node *parent, ladei_tree_instance *instance);
/* Room for one more recording in the group's lists. */
bool ladei_tree_group_reserve(ladei_tree_core *core, ladei_tree_group *group);
void ladei_tree_node_list(ladei_tree_core *core, ladei_tree_node *node, ladei_tree_group *group);
void ladei_tree_node_unlist(ladei_tree_core *core, ladei_tree_node *node);
/* The longest unused listed recording without children, with `path_counts` outside of the path. NULL: none. */
ladei_tree_node *ladei_tree_leaf(const ladei_tree_core *core, bool path_counts);

/* ---- Decisions (decide.c, match.c) ------------------------------------------------------------------------------- */

/* Sets the class of each input; `ended`: the path ends before the call. */
void ladei_tree_classify(const ladei_tree_core *core, ladei_tree_call *call, bool ended);
uint64_t ladei_tree_hash(const ladei_tree_core *core, const ladei_tree_call *call);
/* LADE_GRAPH_REASON_COUNT: it matches. */
uint32_t ladei_tree_match(const ladei_tree_core *core, const ladei_tree_call *call, const ladei_tree_node *node);
/* With fixed_statics: the first static input that has moved; call->count: none. */
size_t ladei_tree_moved_static(const ladei_tree_call *call, const ladei_tree_node *node);
lade_graph_ended ladei_tree_may_end(const ladei_tree_core *core, const ladei_tree_call *call);

typedef struct ladei_tree_plan {
  lade_graph_ended ended;
  lade_graph_did did; /* ERROR: `node` matches with a static input that has moved */
  uint32_t rule;
  uint32_t reason;       /* of an eager run */
  ladei_tree_node *node; /* to replay */
  ladei_tree_node *evict;
  bool restore;
  bool counts;      /* it records anew for inputs that moved */
  size_t why_count; /* in core->why */
} ladei_tree_plan;

/* Decides what a call does, and classifies its inputs. core->autos counts the call already. */
void ladei_tree_decide(ladei_tree_core *core, ladei_tree_call *call, ladei_tree_plan *plan);

/* ---- Recounts (check.c) ------------------------------------------------------------------------------------------ */

/* G1 to G5, between runs. LADE_ERR_INTERNAL names the number that is wrong. */
lade_status ladei_tree_core_check(const ladei_tree_core *core);
lade_status ladei_tree_wrong(const char *what, uint64_t value, uint64_t expected);

#endif /* LADE_GRAPH_CORE_CORE_H */
