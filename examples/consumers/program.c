/* SPDX-License-Identifier: Apache-2.0 */
/* Pins a block on the software device and gives it back. */
#include <lade/lade.h>
#include <stdio.h>

int main(void) {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  void *block;
  if (lade_runtime_open("sim", NULL, &runtime) != LADE_OK || lade_pinned_pool_create(runtime, NULL, &pool) != LADE_OK ||
      lade_pinned_alloc(pool, 1 << 20, &block) != LADE_OK || lade_pinned_free(pool, block) != LADE_OK) {
    fprintf(stderr, "%s\n", lade_last_error()->text);
    return 1;
  }
  printf("lade %u: a block at %p\n", (unsigned)lade_version(), block);
  return lade_pinned_pool_destroy(pool, true) == LADE_OK && lade_runtime_close(runtime) == LADE_OK ? 0 : 1;
}
