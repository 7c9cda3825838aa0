/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds pinned memory of a budget until standard input ends.
 * usage: holder NAME BUDGET_MB MB
 */
#include <stdio.h>
#include <stdlib.h>

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
  void *block;
  if (argc != 4) return 2;
  lade_pinned_options_init(&options);
  options.budget_name = argv[1];
  options.budget_bytes = strtoull(argv[2], NULL, 10) << MIB_SHIFT;
  options.max_bytes = UINT64_C(1) << 40;
  check(lade_runtime_open("cpu", NULL, &runtime));
  check(lade_pinned_pool_create(runtime, &options, &pool));
  check(lade_pinned_alloc(pool, (size_t)strtoull(argv[3], NULL, 10) << MIB_SHIFT, &block));
  puts("holds");
  fflush(stdout);
  while (getchar() != EOF) {
  }
  check(lade_pinned_free(pool, block));
  check(lade_pinned_pool_destroy(pool, true));
  check(lade_runtime_close(runtime));
  return 0;
}
