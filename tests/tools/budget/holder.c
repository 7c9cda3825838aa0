/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds pinned memory of a budget until standard input ends, and memory that it shares with the other processes of a group, if there were
 * any.
 * usage: holder NAME BUDGET_MB MB [SHARED_MB]
 */
#include <stdio.h>
#include <stdlib.h>

#include "lade/group.h"
#include "lade/pinned.h"

enum { MIB_SHIFT = 20 };

static void check(lade_status status) {
  if (status == LADE_OK) return;
  fprintf(stderr, "holder: %s\n", lade_last_error()->text);
  exit(1);
}

int main(int argc, char **argv) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_pinned_options options;
  lade_group *group = NULL;
  lade_group_local_options alone;
  void *block, *shared = NULL;
  if (argc != 4 && argc != 5) return 2;
  lade_pinned_options_init(&options);
  options.budget_name = argv[1];
  options.budget_bytes = strtoull(argv[2], NULL, 10) << MIB_SHIFT;
  options.max_bytes = UINT64_C(1) << 40;
  check(lade_runtime_open("cpu", NULL, &runtime));
  check(lade_pinned_pool_create(runtime, &options, &pool));
  check(lade_pinned_alloc(pool, (size_t)strtoull(argv[3], NULL, 10) << MIB_SHIFT, &block));
  lade_group_local_options_init(&alone);
  alone.name = argv[1];
  alone.size = 1;
  if (argc == 5) {
    check(lade_group_create_local(runtime, &alone, &group));
    check(lade_pinned_shared_create(pool, group, (size_t)strtoull(argv[4], NULL, 10) << MIB_SHIFT, &shared));
  }
  puts("holds");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  if (argc == 5) check(lade_pinned_disown(pool, shared));
  check(lade_group_destroy(group));
  check(lade_pinned_free(pool, block));
  check(lade_pinned_pool_destroy(pool, true));
  check(lade_runtime_close(runtime));
  return 0;
}
