/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of sizes: see sizes.h. */
#include "benchmarks/micro/sizes.h"

#include <math.h>

/* splitmix64. */
uint64_t sizes_next(sizes_random *random) {
  uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static size_t log_uniform(sizes_random *random, double least_log2, double most_log2) {
  double fraction = (double)(sizes_next(random) >> 11) * 0x1p-53;
  return (size_t)exp2(least_log2 + fraction * (most_log2 - least_log2));
}

static size_t image(sizes_random *random) {
  return (size_t)3 * 224 * 224 * sizeof(float) * (1 + sizes_below(random, 256));
}
static size_t token(sizes_random *random) { return log_uniform(random, 12, 21); }
static size_t dali(sizes_random *random) { return log_uniform(random, 4, 24); }

static size_t batch_129_5_mb(sizes_random *random) {
  (void)random;
  return 129500000;
}
static size_t shard_609_mib(sizes_random *random) {
  (void)random;
  return (size_t)609 << 20;
}
static size_t model_20_4_gib(sizes_random *random) {
  (void)random;
  return (size_t)(20.4 * 0x1p30);
}

const sizes_list sizes_lists[SIZES_LISTS] = {
    {"image", image, 16},
    {"token", token, 64},
    {"dali", dali, 64},
    {"129.5 MB x 40", batch_129_5_mb, 40},
    {"609 MiB x 8", shard_609_mib, 8},
    {"20.4 GiB", model_20_4_gib, 1},
};

void sizes_plan_draw(sizes_plan *plan, const sizes_list *list) {
  sizes_random random = {1};
  plan->live = list->live;
  for (unsigned i = 0; i < SIZES_PLAN_STEPS; i++) {
    plan->sizes[i] = list->draw(&random);
    plan->slots[i] = (unsigned)sizes_below(&random, list->live);
  }
}
