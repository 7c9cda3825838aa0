/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an index makes of tar archives, for tar_judges_test.py.
 * usage: tar_members [--ignore-zeros] PATH...
 *
 * For each archive a line "PATH OK" or "PATH ERROR text", and after OK a line for each member NAME.bin: " NAME OFFSET BYTES".
 */
#include <stdio.h>
#include <string.h>

#include "lade/loader.h"

static void members_print(const lade_record_index *index) {
  for (uint64_t i = 0; i < lade_index_count(index); i++) {
    lade_range range = {0};
    if (lade_index_range(index, i, 0, &range) != LADE_OK) return;
    printf(" %s %llu %llu\n", lade_index_key(index, i), (unsigned long long)range.offset,
           (unsigned long long)range.bytes);
  }
}

static void archive_print(const char *path, const lade_tar_options *options) {
  lade_record_index *index;
  if (lade_index_create("bin", &index) != LADE_OK) return;
  lade_status status = lade_index_add_tar(index, path, options);
  if (status == LADE_OK) {
    printf("%s OK\n", path);
    members_print(index);
  } else {
    printf("%s %s %s\n", path, lade_status_name(status), lade_last_error()->text);
  }
  lade_index_destroy(index);
}

int main(int argc, char **argv) {
  lade_tar_options options;
  lade_tar_options_init(&options);
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], "--ignore-zeros") == 0)
      options.ignore_zeros = 1;
    else
      archive_print(argv[i], &options);
  return 0;
}
