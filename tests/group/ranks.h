/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for tests: threads of one process, each with a runtime, a device and an end of one group; or processes.
 *
 *   static void body(ranks_one *one) { LADE_EXPECT_OK(lade_group_barrier(one->group)); }
 *   ranks_run(&(ranks_plan){.runtime = "sim", .size = 4, .body = body});
 */
#ifndef LADE_TESTS_GROUP_RANKS_H
#define LADE_TESTS_GROUP_RANKS_H

#include "lade/group.h"
#include "lade/runtime.h"

/* RANKS_MANY: threads, each with a runtime of its own. With the thread sanitiser software devices have addresses for some twenty
 * runtimes at once. */
#if defined(__SANITIZE_THREAD__)
enum { RANKS_MOST = 64, RANKS_MANY = 16 };
#else
enum { RANKS_MOST = 64, RANKS_MANY = 64 };
#endif

typedef struct ranks_plan ranks_plan;

typedef struct ranks_one {
  const ranks_plan *plan;
  uint32_t rank;
  lade_runtime *runtime; /* of its own */
  lade_stream stream;    /* on device 0 */
  lade_group *group;     /* NULL where it could not be made */
  lade_status made;      /* by lade_group_create_local, or `make` */
  char made_text[496];   /* and its words, if it failed */
} ranks_one;

struct ranks_plan {
  const char *runtime; /* "sim", "cpu" */
  uint32_t size;
  void (*body)(ranks_one *one); /* in each rank; also without a group, if `alone` */
  bool alone;
  bool several; /* of conformance.h: there are others */
  void (*tune)(const ranks_one *one,
               lade_group_local_options *options); /* NULL: name, rank, size, 20 s, slots of 4 KiB */
  const lade_runtime_options *runtime_options;     /* NULL: the standard description */
  /* Makes another group than a local one: of this rank, in a world of this name. NULL: a local one. */
  lade_status (*make)(ranks_one *one, const char *name, lade_group **out);
  void (*end)(ranks_one *one); /* after the group's; NULL: nothing */
  void *user;
};

/* Runs all ranks, each in a thread, and waits for them. Fails the test where a group cannot be made, unless `alone`; and
 * where anything is left alive. */
void ranks_run(const ranks_plan *plan);

/* A name that no other group of this machine has at the moment. */
void ranks_name(char *out, size_t bytes);

/* Device memory of a rank, filled or compared with bytes that depend on `seed` and the place alone. */
void *ranks_device_memory(ranks_one *one, uint64_t bytes);
void ranks_device_free(ranks_one *one, void *memory);
void ranks_device_fill(ranks_one *one, void *memory, uint64_t first, uint64_t bytes, uint32_t seed);
void ranks_device_expect(ranks_one *one, const void *memory, uint64_t first, uint64_t bytes, uint32_t seed);

#endif /* LADE_TESTS_GROUP_RANKS_H */
