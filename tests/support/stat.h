/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One statistic by its name:
 *
 *   support_stat stat = {.key = "num_ooms"};
 *   LADE_EXPECT_OK(lade_device_stats_each(&stats, support_stat_visit, &stat));       stat.count is 1 where there is such a key
 */
#ifndef LADE_TESTS_SUPPORT_STAT_H
#define LADE_TESTS_SUPPORT_STAT_H

#include <string.h>

#include "lade/runtime.h"

typedef struct support_stat {
  const char *key;
  int64_t value;
  size_t count;
} support_stat;

static inline lade_status support_stat_visit(const char *key, int64_t value, void *user) {
  support_stat *stat = user;
  if (strcmp(key, stat->key) != 0) return LADE_OK;
  stat->value = value;
  stat->count++;
  return LADE_OK;
}

#endif /* LADE_TESTS_SUPPORT_STAT_H */
