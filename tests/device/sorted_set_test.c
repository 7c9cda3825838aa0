/* SPDX-License-Identifier: Apache-2.0 */
/* The sorted set against a list of its keys, with few leaves and with many. */
#include "device/heap/sorted_set.h"

#include <string.h>

#include "tests/shim/lade_test.h"
#include "tests/support/random.h"

enum { KEYS = 600, STEPS = 30000 };

typedef struct key_list {
  bool inside[KEYS]; /* the key of this number */
  size_t count;
} key_list;

static ladei_order_key key_of(size_t number) {
  return (ladei_order_key){{number / 200, number / 10 % 20, number % 10}};
}

/* What a set has in the place of the record of a block: nothing looks at it. */
static struct ladei_device_block *record_of(size_t number) { return (struct ladei_device_block *)(16 * (number + 1)); }

static const void *block_of(const ladei_device_sorted_entry *entry) { return entry == NULL ? NULL : entry->block; }

static const void *list_at_least(const key_list *list, size_t number) {
  while (number < KEYS && !list->inside[number]) number++;
  return number < KEYS ? record_of(number) : NULL;
}

static const void *list_below(const key_list *list, size_t number) {
  while (number > 0 && !list->inside[number - 1]) number--;
  return number > 0 ? record_of(number - 1) : NULL;
}

static void set_step(ladei_device_sorted_set *set, ladei_slab *slab, key_list *list, size_t number, size_t other) {
  ladei_order_key key = key_of(number), to = key_of(other);
  if (!list->inside[number]) {
    ladei_device_sorted_set_insert(set, slab, &key, record_of(number));
    list->inside[number] = true;
    list->count++;
  } else if (!list->inside[other]) {
    /* As a block that has got another size: the record stays. Here the record tells the key, so it goes and comes. */
    ladei_device_sorted_set_move(set, slab, &key, &to);
    LADE_ASSERT_EQ_PTR(block_of(ladei_device_sorted_set_at_least(set, &to)), record_of(number));
    ladei_device_sorted_set_remove(set, slab, &to);
    ladei_device_sorted_set_insert(set, slab, &to, record_of(other));
    list->inside[number] = false;
    list->inside[other] = true;
  } else {
    ladei_device_sorted_set_remove(set, slab, &key);
    list->inside[number] = false;
    list->count--;
  }
}

static void set_compare(const ladei_device_sorted_set *set, const ladei_slab *slab, const key_list *list,
                        size_t number) {
  ladei_order_key key = key_of(number);
  size_t count;
  LADE_ASSERT_EQ_PTR(block_of(ladei_device_sorted_set_at_least(set, &key)), list_at_least(list, number));
  LADE_ASSERT_EQ_PTR(block_of(ladei_device_sorted_set_below(set, &key)), list_below(list, number));
  LADE_ASSERT_EQ_INT(ladei_device_sorted_set_empty(set), list->count == 0);
  LADE_ASSERT(ladei_device_sorted_set_check(set, &count));
  LADE_ASSERT_EQ_SIZE(count, list->count);
  LADE_ASSERT(slab->live <= ladei_device_sorted_leaves_most(1, count));
}

/* Keys come and go, most of them where the last ones were; more and more of them, then fewer and fewer. */
LADE_TEST(SortedSet, AgreesWithAList) {
  ladei_device_sorted_set set;
  ladei_slab slab;
  static key_list list;
  support_random random;
  memset(&set, 0, sizeof set);
  memset(&list, 0, sizeof list);
  ladei_slab_init(&slab, sizeof(ladei_device_sorted_leaf));
  support_random_start(&random, 17);
  for (size_t step = 0; step < STEPS; step++) {
    size_t wanted = step < STEPS / 2 ? step * KEYS / (STEPS / 2) : (STEPS - step) * KEYS / (STEPS / 2);
    size_t number = support_random_below(&random, KEYS), near = number + support_random_below(&random, 3);
    for (size_t i = 0; i < KEYS && list.inside[number] == (list.count < wanted); i++) number = (number + 1) % KEYS;
    size_t other = support_random_one_in(&random, 2) ? near % KEYS : support_random_below(&random, KEYS);
    set_step(&set, &slab, &list, number, support_random_one_in(&random, 3) ? other : number);
    set_compare(&set, &slab, &list, support_random_below(&random, KEYS));
  }
  ladei_slab_destroy(&slab);
}

/* In order, upwards or downwards, where leaves fill up at one end; taken out in the order they came. */
static void set_fill(bool down) {
  ladei_device_sorted_set set;
  ladei_slab slab;
  static key_list list;
  memset(&set, 0, sizeof set);
  memset(&list, 0, sizeof list);
  ladei_slab_init(&slab, sizeof(ladei_device_sorted_leaf));
  for (size_t round = 0; round < 2; round++) {
    for (size_t i = 0; i < KEYS; i++) {
      size_t number = down ? KEYS - 1 - i : i;
      set_step(&set, &slab, &list, number, number);
      set_compare(&set, &slab, &list, number);
    }
  }
  LADE_EXPECT_EQ_SIZE(list.count, 0);
  LADE_EXPECT_EQ_SIZE(slab.live, 0);
  ladei_slab_destroy(&slab);
}

LADE_TEST(SortedSet, FilledUpwardsAgreesWithAList) { set_fill(false); }
LADE_TEST(SortedSet, FilledDownwardsAgreesWithAList) { set_fill(true); }
