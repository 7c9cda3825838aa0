/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table: at most 80 columns and 40 lines, whatever the machine.
 *
 * T1  At most ROWS devices and ROWS nodes are shown, and the number of the others.
 * T2  Label and value of a fact fit into a line of 80 columns: labels have at most 22 characters, values 55.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "tools/common/options.h"
#include "tools/topo/survey.h"

enum { ROWS = 8, NUMBER_BYTES = 16, NAME_BYTES = 28, CPUS_AT = 37, CPUS_WIDTH = 10 };

static const char *number_text(int number, const char *none, char out[NUMBER_BYTES]) {
  if (number < 0) return none;
  snprintf(out, NUMBER_BYTES, "%d", number);
  return out;
}

static void more_write(FILE *out, size_t count) {
  if (count > ROWS) fprintf(out, "   ... and %zu more: --json has all of them\n", count - ROWS);
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

static void device_write(FILE *out, size_t index, const survey_device *device) {
  char memory[SIZE_TEXT_BYTES], near[NUMBER_BYTES], pinned[NUMBER_BYTES], name[NAME_BYTES];
  snprintf(name, sizeof name, "%.27s", device->info.name);
  ladei_text_tame(name);
  fprintf(out, "%3zu  %-27s  %9s  %-12s  %4s  %s", index, name, size_text(device->info.total_bytes, memory),
          device->info.pci_bus_id, number_text(device->near_node, "-", near),
          number_text(device->pinned_node, "any", pinned));
  if (device->trial.done)
    fprintf(out, ", %s", device->trial.status == LADE_OK ? survey_source_name(device->trial.source) : "failed");
  fputs("\n", out);
}

static void failure_write(FILE *out, const survey *s) {
  for (size_t i = 0; i < s->device_count; i++) {
    const survey_trial *trial = &s->devices[i].trial;
    if (trial->done && trial->status != LADE_OK) {
      fprintf(out, "pinning near device %zu failed: %s\n", i, lade_status_name(trial->status));
      return; /* one is enough for 40 lines */
    }
  }
}

static void devices_write(FILE *out, const survey *s) {
  fputs("dev  name                            memory  PCI id        near  pinned on\n", out);
  for (size_t i = 0; i < s->device_count && i < ROWS; i++) device_write(out, i, &s->devices[i]);
  more_write(out, s->device_count);
  failure_write(out, s);
  fputs("\n", out);
}

/* ---- Nodes ------------------------------------------------------------------------------------------------------- */

static bool distances_are_known(const survey *s) {
  for (size_t i = 0; i < s->node_count * s->node_count; i++)
    if (s->distances[i] != 0) return true;
  return false;
}

static void nodes_head_write(FILE *out, const survey *s, bool known) {
  fputs("node     memory      free  in huge   CPUs", out);
  if (known) fprintf(out, "%*sdistance to\n%*s", CPUS_WIDTH - 3, "", CPUS_AT + CPUS_WIDTH, "");
  for (size_t i = 0; known && i < s->node_count && i < ROWS; i++) fprintf(out, "%4d", s->nodes[i].node.os_index);
  fputs("\n", out);
}

static void distances_write(FILE *out, const survey *s, size_t from) {
  char number[NUMBER_BYTES];
  for (size_t to = 0; to < s->node_count && to < ROWS; to++) {
    unsigned long distance = s->distances[from * s->node_count + to];
    fprintf(out, "%4s", number_text(distance == 0 ? -1 : (int)distance, "-", number));
  }
}

static void node_write(FILE *out, const survey *s, size_t index, bool known) {
  const survey_node *node = &s->nodes[index];
  char memory[SIZE_TEXT_BYTES], unused[SIZE_TEXT_BYTES], huge[SIZE_TEXT_BYTES], cpus[NUMBER_BYTES];
  bool kernel_tells = node->free_bytes != PAGES_UNKNOWN;
  fprintf(out, "%4d%c %9s %9s %9s  ", node->node.os_index, node->node.usable ? ' ' : '*',
          size_text(node->node.memory_bytes, memory), kernel_tells ? size_text(node->free_bytes, unused) : "-",
          kernel_tells ? size_text(pages_total_bytes(&node->huge_pages), huge) : "-");
  snprintf(cpus, sizeof cpus, "%u CPUs", node->node.cpu_count);
  bool list_fits = node->node.cpu_count > 0 && strlen(node->node.cpus) <= CPUS_WIDTH;
  fprintf(out, "%-*s", known ? CPUS_WIDTH : 0, list_fits ? node->node.cpus : cpus);
  if (known) distances_write(out, s, index);
  fputs("\n", out);
}

static void nodes_write(FILE *out, const survey *s) {
  bool known = distances_are_known(s), all_usable = true;
  nodes_head_write(out, s, known);
  for (size_t i = 0; i < s->node_count && i < ROWS; i++) node_write(out, s, i, known);
  for (size_t i = 0; i < s->node_count; i++) all_usable = all_usable && s->nodes[i].node.usable;
  more_write(out, s->node_count);
  if (!all_usable) fputs("   * without memory, or not for this process\n", out);
  fputs("\n", out);
}

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

/* Facts of the whole machine, and of a pool with default settings, in words. */
enum { FACTS = 5, FACT_BYTES = 56 };
typedef struct fact {
  const char *label; /* static */
  char value[FACT_BYTES];
} fact;

/* Pools that have pages, as many as fit; the JSON has all. */
static void huge_pages_put(const pages_pools *pools, char out[FACT_BYTES]) {
  static const char and_more[] = "; ...";
  size_t length = 0;
  strcpy(out, "none reserved");
  for (size_t i = 0; i < pools->count; i++) {
    const pages_pool *pool = &pools->pools[i];
    char size[SIZE_TEXT_BYTES], item[80];
    if (pool->total_count == 0) continue;
    snprintf(item, sizeof item, "%s%llu/%llu free of %s", length > 0 ? "; " : "", (unsigned long long)pool->free_count,
             (unsigned long long)pool->total_count, size_text(pool->page_bytes, size));
    bool fits = length + strlen(item) + strlen(and_more) < FACT_BYTES;
    strcpy(out + length, fits ? item : and_more);
    if (!fits) return;
    length += strlen(item);
  }
}

static void sized_put(uint64_t bytes, const char *remark, char out[FACT_BYTES]) {
  char size[SIZE_TEXT_BYTES];
  snprintf(out, FACT_BYTES, "%s%s", size_text(bytes, size), remark);
}

static void machine_facts(const survey *s, fact out[FACTS]) {
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

static void sources_put(uint32_t sources, char out[FACT_BYTES]) {
  size_t length = 0;
  out[0] = '\0';
  for (uint32_t bit = 1; bit != 0 && bit <= sources; bit <<= 1) {
    if ((sources & bit) != 0 && length < FACT_BYTES) {
      int added = snprintf(out + length, FACT_BYTES - length, "%s%s", length > 0 ? ", then " : "",
                           survey_source_name((int)bit));
      length += (size_t)(added < 0 ? 0 : added);
    }
  }
}

static void pool_facts(const survey *s, fact out[FACTS]) {
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

static void facts_write(FILE *out, const fact *facts) {
  for (size_t i = 0; i < FACTS; i++) fprintf(out, "%-22s  %s\n", facts[i].label, facts[i].value);
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

void survey_write_text(FILE *out, const survey *s) {
  fact facts[FACTS];
  fprintf(out, "runtime %s%s\n\n", s->runtime, s->software ? ": software device, no GPU" : "");
  devices_write(out, s);
  nodes_write(out, s);
  machine_facts(s, facts);
  facts_write(out, facts);
  fputs("\npinned pool with default settings\n", out);
  pool_facts(s, facts);
  facts_write(out, facts);
}
