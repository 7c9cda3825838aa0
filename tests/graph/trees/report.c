/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a report; names in them are those of a trace, which need no quoting. */
#include "tests/graph/trees/report.h"

#include <inttypes.h>

#include "graph/tree/tree.h"

static const char *const dids[] = {"error", "eager", "warmup", "record", "replay"};
static const char *const reasons[LADE_GRAPH_REASON_COUNT] = {"form",  "managed", "static", "dead_before", "dead_after",
                                                             "prior", "mutated", "limit",  "checkpoint"};
static const char *const classes[] = {"managed", "static", "copied"};
static const char *const kinds[] = {"new", "same", "prior", "input", "integer", "plain", "outside"};
static const char *const states[] = {"NONE", "WARMUP", "RECORDING", "EXECUTION"};
static const char *const ends[] = {"null", "\"boundary\"", "\"dead\""};

void trees_report_begin(trees_report *report, FILE *out) {
  *report = (trees_report){.out = out, .first = true};
  fputs("{\"version\":1,\"entries\":[", out);
}

void trees_report_end(trees_report *report) { fputs("]}\n", report->out); }

static void entry_begin(trees_report *report, uint64_t line) {
  fprintf(report->out, "%s\n{\"line\":%" PRIu64, report->first ? "" : ",", line);
  report->first = false;
}

static void place_write(FILE *out, const trees_place *at) {
  if (at->inside)
    fprintf(out, "[%" PRIu64 ",%" PRIu64 "]", at->segment, at->offset);
  else
    fputs("null", out);
}

static void names_write(FILE *out, const char *key, const uint32_t *list, size_t count, const char *const *names) {
  fprintf(out, ",\"%s\":[", key);
  for (size_t i = 0; i < count; i++) fprintf(out, "%s\"%s\"", i > 0 ? "," : "", names[list[i]]);
  putc(']', out);
}

static void node_write(FILE *out, int64_t node) {
  if (node == LADE_GRAPH_NO_NODE)
    fputs("null", out);
  else
    fprintf(out, "%" PRId64, node);
}

static void run_write(FILE *out, const trees_report_run *run) {
  fprintf(out, ",\"run\":\"%s\",\"did\":\"%s\",\"status\":\"%s\"", run->name, dids[run->did],
          lade_status_name(run->status));
  names_write(out, "why", run->why, run->why_count, reasons);
  fprintf(out, ",\"ended\":%s,\"restored\":%s,\"carried\":[", ends[run->ended], run->restored ? "true" : "false");
  for (size_t i = 0; i < run->carried_count; i++) fprintf(out, "%s%" PRIu32, i > 0 ? "," : "", run->carried[i]);
  putc(']', out);
  names_write(out, "classes", run->classes, run->class_count, classes);
  fputs(",\"node\":", out);
  node_write(out, run->node);
  fprintf(out, ",\"state\":\"%s\",\"outputs\":[", states[run->state]);
  for (size_t i = 0; i < run->output_count; i++) {
    fprintf(out, "%s{\"kind\":\"%s\",\"at\":", i > 0 ? "," : "", kinds[run->outputs[i].kind]);
    place_write(out, &run->outputs[i].at);
    putc('}', out);
  }
  fputs("],\"lost\":[", out);
  for (size_t i = 0; i < run->lost_count; i++) fprintf(out, "%s\"%s\"", i > 0 ? "," : "", run->lost[i]);
  fputs("],\"live\":[", out);
  for (size_t i = 0; i < run->live_count; i++)
    fprintf(out, "%s[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "", run->live[i].at.segment,
            run->live[i].at.offset, run->live[i].bytes);
  fputs("]}", out);
}

static void positions_write(FILE *out, const char *key, const ladei_tree_positions *positions) {
  fprintf(out, ",\"%s\":[", key);
  for (uint32_t i = 0; i < positions->count; i++)
    fprintf(out, "%s[%" PRIu32 ",%" PRIu32 "]", i > 0 ? "," : "", positions->list[i].depth, positions->list[i].output);
  putc(']', out);
}

static void recording_write(FILE *out, const ladei_tree_node *node) {
  const ladei_tree_instance *instance = node->instance;
  fprintf(out, "{\"id\":%" PRId64 ",\"function\":\"%s\",\"key\":%" PRIu64 ",\"parent\":", node->id,
          instance->function->name, instance->key_count > 0 ? instance->key[0] : 0);
  node_write(out, node->parent == NULL ? LADE_GRAPH_NO_NODE : node->parent->id);
  positions_write(out, "dead_before", &node->dead_before);
  positions_write(out, "dead_after", &node->dead_after);
  positions_write(out, "after", &node->after);
  putc('}', out);
}

static void snapshot_write(FILE *out, const trees_report_snapshot *snapshot) {
  fprintf(out, ",\"label\":\"%s\",\"nodes\":[", snapshot->label);
  for (const ladei_tree_node *node = snapshot->tree->core.first_node; node != NULL; node = node->list_next) {
    if (node != snapshot->tree->core.first_node) putc(',', out);
    recording_write(out, node);
  }
  fputs("],\"segments\":[", out);
  for (size_t i = 0; i < snapshot->segment_count; i++)
    fprintf(out, "%s%" PRIu64, i > 0 ? "," : "", snapshot->segments[i]);
  fputs("]}", out);
}

/* ---- Entries ----------------------------------------------------------------------------------------------------- */

void trees_report_run_write(trees_report *report, const trees_report_run *run) {
  entry_begin(report, run->line);
  run_write(report->out, run);
}

void trees_report_read_write(trees_report *report, const trees_report_read *read) {
  entry_begin(report, read->line);
  if (read->lost)
    fprintf(report->out, ",\"read\":\"%s\",\"state\":\"lost\",\"value\":null}", read->name);
  else
    fprintf(report->out, ",\"read\":\"%s\",\"state\":\"alive\",\"value\":\"%016" PRIx64 "\"}", read->name, read->value);
}

void trees_report_snapshot_write(trees_report *report, const trees_report_snapshot *snapshot) {
  entry_begin(report, snapshot->line);
  snapshot_write(report->out, snapshot);
}
