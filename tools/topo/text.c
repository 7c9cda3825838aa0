/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table: at most 80 columns and 40 lines, whatever the machine.
 *
 * T1  At most ROWS devices and ROWS nodes are shown, and the number of the others.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
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
  char memory[SURVEY_SIZE_BYTES], near[NUMBER_BYTES], pinned[NUMBER_BYTES], name[NAME_BYTES];
  snprintf(name, sizeof name, "%.27s", device->info.name);
  ladei_text_tame(name);
  fprintf(out, "%3zu  %-27s  %9s  %-12s  %4s  %s", index, name, survey_size_text(device->info.total_bytes, memory),
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
  char memory[SURVEY_SIZE_BYTES], unused[SURVEY_SIZE_BYTES], huge[SURVEY_SIZE_BYTES], cpus[NUMBER_BYTES];
  bool kernel_tells = node->free_bytes != PAGES_UNKNOWN;
  fprintf(out, "%4d%c %9s %9s %9s  ", node->node.os_index, node->node.usable ? ' ' : '*',
          survey_size_text(node->node.memory_bytes, memory),
          kernel_tells ? survey_size_text(node->free_bytes, unused) : "-",
          kernel_tells ? survey_size_text(pages_total_bytes(&node->huge_pages), huge) : "-");
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

/* ---- All together ------------------------------------------------------------------------------------------------ */

static void facts_write(FILE *out, const survey_fact *facts) {
  for (size_t i = 0; i < SURVEY_FACTS; i++) fprintf(out, "%-22s  %s\n", facts[i].label, facts[i].value);
}

void survey_write_text(FILE *out, const survey *s) {
  survey_fact facts[SURVEY_FACTS];
  fprintf(out, "runtime %s%s\n\n", s->runtime, s->software ? ": software device, no GPU" : "");
  devices_write(out, s);
  nodes_write(out, s);
  survey_machine_facts(s, facts);
  facts_write(out, facts);
  fputs("\npinned pool with default settings\n", out);
  survey_pool_facts(s, facts);
  facts_write(out, facts);
}
