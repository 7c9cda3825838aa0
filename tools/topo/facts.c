/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A survey's facts in words, for the table and the drawing.
 *
 * F1  Label and value fit into a line of 80 columns: labels have at most 22 characters, values 55.
 */
#include <string.h>

#include "tools/topo/survey.h"

/* Pools that have pages, as many as fit; the JSON has all. */
static void huge_pages_put(const pages_pools *pools, char out[SURVEY_FACT_BYTES]) {
  static const char and_more[] = "; ...";
  size_t length = 0;
  strcpy(out, "none reserved");
  for (size_t i = 0; i < pools->count; i++) {
    const pages_pool *pool = &pools->pools[i];
    char size[SURVEY_SIZE_BYTES], item[80];
    if (pool->total_count == 0) continue;
    snprintf(item, sizeof item, "%s%llu/%llu free of %s", length > 0 ? "; " : "", (unsigned long long)pool->free_count,
             (unsigned long long)pool->total_count, survey_size_text(pool->page_bytes, size));
    bool fits = length + strlen(item) + strlen(and_more) < SURVEY_FACT_BYTES;
    strcpy(out + length, fits ? item : and_more);
    if (!fits) return;
    length += strlen(item);
  }
}

static void sized_put(uint64_t bytes, const char *remark, char out[SURVEY_FACT_BYTES]) {
  char size[SURVEY_SIZE_BYTES];
  snprintf(out, SURVEY_FACT_BYTES, "%s%s", survey_size_text(bytes, size), remark);
}

void survey_machine_facts(const survey *s, survey_fact out[SURVEY_FACTS]) {
  const ladei_pinned_limits *limits = &s->limits;
  out[0].label = "available memory";
  sized_put(limits->available_bytes, "", out[0].value);
  out[1].label = "control group leaves";
  bool limited = limits->cgroup_headroom_bytes != LADEI_PINNED_NO_LIMIT;
  sized_put(limits->cgroup_headroom_bytes, limited ? ", page cache counted as free" : "", out[1].value);
  out[2].label = "locked memory limit";
  sized_put(limits->memlock_bytes, "; does not count: the driver pins", out[2].value);
  out[3].label = "transparent huge pages";
  strcpy(out[3].value, s->transparent_huge_pages);
  out[4].label = "huge page pools";
  huge_pages_put(&s->huge_pages, out[4].value);
}

static void sources_put(uint32_t sources, char out[SURVEY_FACT_BYTES]) {
  size_t length = 0;
  out[0] = '\0';
  for (uint32_t bit = 1; bit != 0 && bit <= sources; bit <<= 1) {
    if ((sources & bit) != 0 && length < SURVEY_FACT_BYTES) {
      int added = snprintf(out + length, SURVEY_FACT_BYTES - length, "%s%s", length > 0 ? ", then " : "",
                           survey_source_name((int)bit));
      length += (size_t)(added < 0 ? 0 : added);
    }
  }
}

void survey_pool_facts(const survey *s, survey_fact out[SURVEY_FACTS]) {
  const lade_pinned_options *pool = &s->pool;
  out[0].label = "memory from";
  sources_put(pool->sources, out[0].value);
  out[1].label = "cap";
  const char *reason = s->cap_from_cgroup ? ", 7/8 of what the control group leaves" : ", half of the available memory";
  sized_put(pool->max_bytes, pool->max_bytes == LADEI_PINNED_NO_LIMIT ? "" : reason, out[1].value);
  out[2].label = "segments";
  sized_put(pool->segment_bytes, "", out[2].value);
  out[3].label = "kept by threads";
  sized_put(pool->magazine_bytes, " at most, all together", out[3].value);
  out[4].label = "prefault threads";
  snprintf(out[4].value, sizeof out[4].value, "%u", (unsigned)pool->prefault_threads);
}
