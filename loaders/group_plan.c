/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a load by a group.
 *
 *   tensor, by its rule            read by                      reaches the others by
 *   REPLICATE                      the root of each part        broadcast, out of and into its place
 *   SLICE, long runs               each rank: its own runs      nothing: each reads its own bytes
 *   SLICE, short runs              the root: some rows of all   scatter, sorted by rank on the root's device
 *   RANK, BALANCE                  the rank that has it         nothing
 *
 *   row of a sliced tensor:  | rank 0 | rank 1 | rank 2 |  next row ...          a run is a rank's share of a row
 *
 * P1  Every byte of a tensor of the load is read by exactly one rank: the root of its one part, or the rank of its run.
 * P2  The plan is a function of the headers, the tensors, the rules, part_bytes and the number of ranks; so it is equal
 *     on all ranks except for the choices by `rank`. The ranks compare checksums before they act on it.
 * P3  Parts are in the order of the files, scattered ones by themselves and the others by themselves. Parts [i * size,
 *     (i + 1) * size) are a round: each has another root, and except in the last rounds all are scattered or none is:
 *     their lengths are alike then. The rank that has read least so far reads the longest.
 * P4  A bundle, pieces that are broadcast together, has the same distances in memory on all ranks: its pieces lie
 *     together there, in the order of the files, with the same padding.
 * Locks: none.
 */
#include "loaders/group_plan.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/array.h"
#include "base/error.h"
#include "base/options.h"
#include "base/size.h"
#include "loaders/text.h"

/*
 * Note [Short runs]
 * A rank's share of a row is read by that rank if it has LONG_RUN_BYTES: a read of its own costs storage little then,
 * and the bytes go nowhere else. Shorter ones (8192 columns of two bytes over eight ranks are runs of two kilobytes)
 * are read by rows, in one piece, and sorted on the device, by a copy of rows for each rank. (With a range for each
 * run, sorted by the readers, a submit of 8192 ranges took 0.5 ms, and 1 GB on two H100s 1.3 times as long as one
 * rank's load.)
 */
enum { LONG_RUN_BYTES = 64 * 1024 };
/* Of a part, at most: a software device looks at each row, which takes a microsecond. 64 MiB are rows of 1 KiB then. */
enum { PART_ROWS = 64 * 1024 };

enum { PARTS_OF_RANK = 8 };
#define MOST_PART_BYTES (64 * LADEI_MIB) /* where lade chooses */
#define MIN_PART_BYTES  UINT64_C(4096)
#define MAX_PART_BYTES  (1024 * LADEI_MIB)

/* --- cuts --------------------------------------------------------------------------------------------------------- */

void ladei_loader_cut_range(const ladei_loader_cut *cut, uint32_t rank, uint32_t size, uint64_t *out_begin,
                            uint64_t *out_end) {
  uint64_t step = cut->size / size + (cut->size % size != 0);
  /* Of sizes near 2^64 no product is formed that could overflow: no rank times step beyond the size. */
  *out_begin = step == 0 || rank >= cut->size / step + 1 ? cut->size : ladei_size_min(rank * step, cut->size);
  *out_end = cut->size - *out_begin < step ? cut->size : *out_begin + step;
  assert(*out_begin <= *out_end && *out_end <= cut->size && (rank + 1 < size || *out_end == cut->size)); /* P1 */
}

uint64_t ladei_loader_cut_run(const ladei_loader_cut *cut, uint32_t rank, uint32_t size, uint64_t *out_before) {
  uint64_t begin, end;
  ladei_loader_cut_range(cut, rank, size, &begin, &end);
  assert(cut->outer == 1 || begin * (cut->unit_bits % 8) % 8 == 0); /* slices_check() saw to that */
  if (out_before != NULL) *out_before = begin * cut->unit_bits / 8;
  return (end - begin) * cut->unit_bits / 8;
}

static lade_status rule_error(const ladei_loader_entry *entry, const char *what) {
  char name[LADEI_LOADER_NAME_TEXT_BYTES];
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "%s: the rule for tensor \"%s\" %s", ladei_loader_load_call,
                     ladei_loader_name_text(entry->name, name), what);
}

/* The slices must begin and end at bytes, and divide the dimension unless they need not. */
static lade_status slices_check(const ladei_loader_entry *entry, const ladei_loader_cut *cut, uint32_t size) {
  char what[160];
  uint64_t step = cut->size / size + (cut->size % size != 0);
  if (!cut->uneven && cut->size % size != 0) {
    (void)snprintf(what, sizeof what,
                   "slices dimension %u, whose size is %llu; expected a multiple of %u, the ranks, or uneven",
                   (unsigned)cut->dim, (unsigned long long)cut->size, (unsigned)size);
    return rule_error(entry, what);
  }
  /* All slices but the last begin at multiples of the step. */
  if (size > 1 && cut->unit_bits % 8 != 0 && step * (cut->unit_bits % 8) % 8 != 0) {
    (void)snprintf(what, sizeof what, "slices dimension %u within a byte: %llu times %llu bits", (unsigned)cut->dim,
                   (unsigned long long)step, (unsigned long long)cut->unit_bits);
    return rule_error(entry, what);
  }
  if (cut->outer > 1 && cut->size * (cut->unit_bits % 8) % 8 != 0)
    return rule_error(entry, "slices rows that end within a byte");
  return LADE_OK;
}

static lade_status cut_slice(const ladei_loader_entry *entry, const lade_load_rule *rule, uint32_t size,
                             ladei_loader_cut *cut) {
  char what[128];
  int64_t dim = rule->dim < 0 ? (int64_t)entry->rank + rule->dim : rule->dim;
  if (dim < 0 || dim >= (int64_t)entry->rank) {
    (void)snprintf(what, sizeof what, "slices dimension %d; it has %llu", (int)rule->dim,
                   (unsigned long long)entry->rank);
    return rule_error(entry, what);
  }
  cut->dim = (uint32_t)dim;
  cut->uneven = rule->uneven;
  cut->outer = 1;
  cut->size = entry->shape[dim];
  cut->unit_bits = lade_dtype_bits(entry->dtype);
  if (entry->begin == entry->end) return LADE_OK; /* some dimension is 0; others may be as large as they like */
  for (int64_t i = 0; i < dim; i++) cut->outer *= entry->shape[i];
  for (uint64_t i = (uint64_t)dim + 1; i < entry->rank; i++) cut->unit_bits *= entry->shape[i];
  return slices_check(entry, cut, size);
}

static lade_status cut_make(const ladei_loader_entry *entry, const lade_load_rule *rule, uint32_t size,
                            ladei_loader_cut *cut) {
  char what[96];
  *cut = (ladei_loader_cut){.spread = rule->spread};
  if (rule->uneven > 1) return rule_error(entry, "has an `uneven` that is neither 0 nor 1");
  switch (rule->spread) {
  case LADE_SPREAD_REPLICATE:
  case LADE_SPREAD_BALANCE: return LADE_OK;
  case LADE_SPREAD_SLICE: return cut_slice(entry, rule, size, cut);
  case LADE_SPREAD_RANK:
    cut->owner = rule->rank;
    if (rule->rank < size) return LADE_OK;
    (void)snprintf(what, sizeof what, "names rank %u; expected below %u", (unsigned)rule->rank, (unsigned)size);
    return rule_error(entry, what);
  default:
    (void)snprintf(what, sizeof what, "has spread %d; expected a lade_load_spread", (int)rule->spread);
    return rule_error(entry, what);
  }
}

static lade_status rule_find(const lade_load_options *options, const lade_tensor_load *load, size_t tensor,
                             lade_load_rule *out) {
  const char *name = load->file->tensors[tensor].entry->name;
  memset(out, 0, sizeof *out);
  if (options->rule_of != NULL) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    LADEI_TRY(lade_safetensors_tensor(load->file, tensor, &info));
    lade_status status = options->rule_of(options->rule_user, &info, out);
    if (status == LADE_OK) return LADE_OK;
    char text[LADEI_LOADER_NAME_TEXT_BYTES];
    return ladei_error(LADE_ERR_CALLBACK, status, "%s: options.rule_of returned %s for tensor \"%s\"",
                       ladei_loader_load_call, lade_status_name(status), ladei_loader_name_text(name, text));
  }
  for (uint64_t i = 0; i < options->rule_count; i++) {
    const lade_load_rule *rule = &options->rules[i];
    if (rule->pattern != NULL && fnmatch(rule->pattern, name, 0) != 0) continue;
    *out = *rule;
    return LADE_OK;
  }
  return LADE_OK;
}

/* Neighbours stay together: rank r gets the balanced bytes between r and r + 1 n-ths of all. */
static void owners_balance(const lade_tensor_load *load, ladei_loader_group_plan *plan) {
  uint64_t total = 0, before = 0;
  for (size_t i = 0; i < load->piece_count; i++)
    if (plan->cuts[i].spread == LADE_SPREAD_BALANCE) total += load->pieces[i].bytes;
  uint64_t share = total / plan->size + 1;
  for (size_t i = 0; i < load->piece_count; i++) {
    ladei_loader_cut *cut = &plan->cuts[load->order[i]];
    if (cut->spread != LADE_SPREAD_BALANCE) continue;
    uint64_t bytes = load->pieces[load->order[i]].bytes;
    cut->owner = (uint32_t)ladei_size_min((before + bytes / 2) / share, plan->size - 1);
    assert(cut->owner < plan->size);
    before += bytes;
  }
}

static lade_status cuts_make(lade_tensor_load *load, const lade_load_options *options, ladei_loader_group_plan *plan) {
  for (size_t i = 0; i < load->piece_count; i++) {
    lade_load_rule rule;
    const ladei_loader_entry *entry = load->file->tensors[load->pieces[i].tensor].entry;
    LADEI_TRY(rule_find(options, load, load->pieces[i].tensor, &rule));
    LADEI_TRY(cut_make(entry, &rule, plan->size, &plan->cuts[i]));
  }
  owners_balance(load, plan);
  return LADE_OK;
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

/* Whether every rank reads its own runs of a sliced piece: all ranks must agree, so the first rank's run decides. */
static bool runs_are_long(const ladei_loader_cut *cut, uint32_t size) {
  return cut->outer == 1 || ladei_loader_cut_run(cut, 0, size, NULL) >= LONG_RUN_BYTES;
}

/* Sets a piece's bytes and runs on this rank, and adds to each rank's reads outside of parts. */
static void piece_set(ladei_loader_group_plan *plan, const ladei_loader_cut *cut, ladei_loader_piece *p) {
  uint64_t whole = p->bytes;
  if (whole == 0) return;
  switch (cut->spread) {
  case LADE_SPREAD_REPLICATE: p->carried = p->broadcast = true; break;
  case LADE_SPREAD_SLICE: {
    uint64_t row = ladei_loader_cut_row(cut);
    p->run_bytes = ladei_loader_cut_run(cut, plan->rank, plan->size, &p->begin);
    p->runs = cut->outer;
    p->run_stride = row;
    if (cut->outer == 1) { /* also of rows that end within a byte: the last slice has the rest */
      uint64_t begin, end;
      ladei_loader_cut_range(cut, plan->rank, plan->size, &begin, &end);
      p->run_bytes = end == cut->size && begin < end ? whole - p->begin : p->run_bytes;
    }
    assert(cut->outer == 1 || p->run_bytes <= row);
    p->bytes = p->runs * p->run_bytes;
    assert(p->bytes <= whole); /* P1 */
    p->carried = !runs_are_long(cut, plan->size);
    for (uint32_t i = 0; i < plan->size && !p->carried; i++)
      plan->read_bytes[i] += cut->outer * ladei_loader_cut_run(cut, i, plan->size, NULL);
    break;
  }
  default:
    if (cut->owner != plan->rank) p->bytes = p->run_bytes = 0;
    plan->read_bytes[cut->owner] += whole;
  }
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

static lade_status part_add(ladei_loader_group_plan *plan, const ladei_loader_part *part) {
  if (!LADEI_ARRAY_ROOM(plan->parts, plan->part_capacity, plan->part_count + 1))
    return ladei_loader_load_memory_error();
  assert(part->count > 0 && part->bytes > 0 && part->begin < part->end);
  plan->parts[plan->part_count++] = *part;
  return LADE_OK;
}

/* A sliced piece with short runs: some rows in each part, as many in each as can be. */
static lade_status parts_of_rows(ladei_loader_group_plan *plan, const ladei_loader_cut *cut, size_t place) {
  uint64_t row = ladei_loader_cut_row(cut), most = ladei_size_min(ladei_size_max(plan->part_bytes / row, 1), PART_ROWS);
  uint64_t parts = cut->outer / most + (cut->outer % most != 0), rows = cut->outer / parts + (cut->outer % parts != 0);
  for (uint64_t begin = 0; begin < cut->outer; begin += rows) {
    uint64_t end = ladei_size_min(begin + rows, cut->outer);
    const ladei_loader_part part = {
        .first = place, .count = 1, .scatters = true, .begin = begin, .end = end, .bytes = (end - begin) * row};
    LADEI_TRY(part_add(plan, &part));
  }
  return LADE_OK;
}

/* A replicated piece that is longer than a part. */
static lade_status parts_of_bytes(ladei_loader_group_plan *plan, uint64_t bytes, size_t place) {
  for (uint64_t begin = 0; begin < bytes; begin += plan->part_bytes) {
    uint64_t end = ladei_size_min(begin + plan->part_bytes, bytes);
    const ladei_loader_part part = {.first = place, .count = 1, .begin = begin, .end = end, .bytes = end - begin};
    LADEI_TRY(part_add(plan, &part));
  }
  return LADE_OK;
}

/* The bundle that is being put together goes, and is empty then. */
static lade_status bundle_end(ladei_loader_group_plan *plan, ladei_loader_part *bundle) {
  lade_status status = bundle->count > 0 ? part_add(plan, bundle) : LADE_OK;
  *bundle = (ladei_loader_part){.count = 0};
  return status;
}

/* A replicated piece joins the bundle, P4, or is cut if it is longer than a part. */
static lade_status parts_of_broadcast(ladei_loader_group_plan *plan, ladei_loader_part *bundle, bool bundles,
                                      uint64_t bytes, size_t place) {
  bool fits = bytes <= plan->part_bytes;
  assert(bundle->count == 0 || bundle->first + bundle->count <= place); /* P4: in the order of the files */
  if (!fits || !bundles || bundle->bytes + bytes > plan->part_bytes) LADEI_TRY(bundle_end(plan, bundle));
  if (!fits) return parts_of_bytes(plan, bytes, place);
  if (bundle->count == 0) bundle->first = place;
  bundle->count = place + 1 - bundle->first;
  bundle->bytes += bytes;
  bundle->end = bytes;
  return LADE_OK;
}

static lade_status parts_make(lade_tensor_load *load, ladei_loader_group_plan *plan, bool bundles) {
  ladei_loader_part bundle = {.count = 0};
  for (size_t place = 0; place < load->piece_count; place++) {
    const ladei_loader_piece *p = &load->pieces[load->order[place]];
    const ladei_loader_entry *entry = load->file->tensors[p->tensor].entry;
    if (p->broadcast)
      LADEI_TRY(parts_of_broadcast(plan, &bundle, bundles, entry->end - entry->begin, place));
    else if (p->carried)
      LADEI_TRY(parts_of_rows(plan, &plan->cuts[load->order[place]], place));
  }
  return bundle_end(plan, &bundle);
}

/* P3: a kind has a round whenever it has `size` parts; those that are left over are last. */
static lade_status rounds_order(ladei_loader_group_plan *plan) {
  size_t waiting[2] = {0, 0}, done = 0;
  ladei_loader_part *ordered = calloc(plan->part_count + 2 * (size_t)plan->size, sizeof *ordered);
  if (ordered == NULL) return ladei_loader_load_memory_error();
  ladei_loader_part *kinds[2] = {ordered + plan->part_count, ordered + plan->part_count + plan->size};
  for (size_t i = 0; i < plan->part_count; i++) {
    size_t kind = plan->parts[i].scatters ? 1 : 0;
    kinds[kind][waiting[kind]++] = plan->parts[i];
    if (waiting[kind] < plan->size) continue;
    memcpy(ordered + done, kinds[kind], plan->size * sizeof *ordered);
    done += plan->size;
    waiting[kind] = 0;
  }
  for (size_t kind = 0; kind < 2; kind++) {
    memcpy(ordered + done, kinds[kind], waiting[kind] * sizeof *ordered);
    done += waiting[kind];
  }
  assert(done == plan->part_count && "P1");
  if (done > 0) memcpy(plan->parts, ordered, done * sizeof *ordered);
  free(ordered);
  return LADE_OK;
}

/* P3: of the parts of a round the longest goes to the rank that has read least; ties to the first. */
static void round_assign(ladei_loader_group_plan *plan, ladei_loader_part *parts, size_t count, bool *taken) {
  memset(taken, 0, plan->size * sizeof *taken);
  for (size_t turn = 0; turn < count; turn++) {
    size_t longest = SIZE_MAX;
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < count; i++)
      if (parts[i].root == UINT32_MAX && (longest == SIZE_MAX || parts[i].bytes > parts[longest].bytes)) longest = i;
    for (uint32_t r = 0; r < plan->size; r++)
      if (!taken[r] && (least == UINT32_MAX || plan->read_bytes[r] < plan->read_bytes[least])) least = r;
    assert(longest != SIZE_MAX && least != UINT32_MAX && !taken[least]); /* P3: each rank once */
    parts[longest].root = least;
    taken[least] = true;
    plan->read_bytes[least] += parts[longest].bytes;
  }
}

static lade_status roots_assign(ladei_loader_group_plan *plan) {
  bool *taken = calloc(plan->size, sizeof *taken);
  if (taken == NULL) return ladei_loader_load_memory_error();
  for (size_t i = 0; i < plan->part_count; i++) plan->parts[i].root = UINT32_MAX;
  for (size_t i = 0; i < plan->part_count; i += plan->size)
    round_assign(plan, plan->parts + i, ladei_size_min(plan->part_count - i, plan->size), taken);
  free(taken);
  for (size_t i = 0; i < plan->part_count; i++) {
    const ladei_loader_part *part = &plan->parts[i];
    assert(part->root < plan->size);
    if (!part->scatters || part->root != plan->rank) continue;
    plan->scatter_count++;
    plan->scatter_bytes = ladei_size_max(plan->scatter_bytes, part->bytes);
  }
  return LADE_OK;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

/*
 * Note [Parts]
 * A round costs the time of its calls, whatever its parts hold: 0.3 ms on two H100s, where 64 MiB take 1.5 ms to read.
 * 1 GB to both, by part_bytes, in parts of one rank's time for all: 16 MiB 1.28, 32 MiB 1.04, 62 MiB 0.86. And the
 * first and the last round overlap with none. So each rank reads eight parts, if they are no longer than 64 MiB and no
 * shorter than 1.
 */
static lade_status part_bytes_set(ladei_loader_group_plan *plan, const lade_load_options *options, uint64_t total) {
  if (options->part_bytes == 0) {
    uint64_t share = total / plan->size / PARTS_OF_RANK;
    plan->part_bytes = ladei_size_max(ladei_size_min(share - share % LADEI_MIB, MOST_PART_BYTES), LADEI_MIB);
    return LADE_OK;
  }
  plan->part_bytes = options->part_bytes;
  if (options->part_bytes >= MIN_PART_BYTES && options->part_bytes <= MAX_PART_BYTES) return LADE_OK;
  return ladei_error_argument(ladei_loader_load_call, "options.part_bytes", "from 4096 to 1073741824", "%llu",
                              (unsigned long long)options->part_bytes);
}

lade_status ladei_loader_group_plan_make(lade_tensor_load *load, const lade_load_options *options, uint32_t rank,
                                         uint32_t size) {
  ladei_loader_group_plan *plan = calloc(1, sizeof *plan);
  if (plan == NULL) return ladei_loader_load_memory_error();
  load->plan = plan;
  plan->rank = rank;
  plan->size = size;
  plan->cuts = calloc(load->piece_count + 1, sizeof *plan->cuts);
  plan->read_bytes = calloc(size, sizeof *plan->read_bytes);
  if (plan->cuts == NULL || plan->read_bytes == NULL) return ladei_loader_load_memory_error();
  LADEI_TRY(part_bytes_set(plan, options, load->bytes));
  LADEI_TRY(cuts_make(load, options, plan));
  load->bytes = 0;
  for (size_t i = 0; i < load->piece_count; i++) {
    piece_set(plan, &plan->cuts[i], &load->pieces[i]);
    load->bytes += load->pieces[i].bytes;
  }
  LADEI_TRY(parts_make(load, plan, !load->per_tensor));
  LADEI_TRY(rounds_order(plan));
  return roots_assign(plan);
}

void ladei_loader_group_plan_free(ladei_loader_group_plan *plan) {
  if (plan == NULL) return;
  free(plan->cuts);
  free(plan->parts);
  free(plan->read_bytes);
  free(plan);
}

/* --- what ranks must agree about ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t sum, const void *bytes, size_t count) { return XXH3_64bits_withSeed(bytes, count, sum); }
static uint64_t mix_number(uint64_t sum, uint64_t number) { return mix(sum, &number, sizeof number); }

uint64_t ladei_loader_group_plan_checksum(const lade_tensor_load *load, uint64_t alignment) {
  const ladei_loader_group_plan *plan = load->plan;
  uint64_t sum = mix_number(mix_number(mix_number(plan->size, plan->part_bytes), alignment), load->per_tensor);
  for (size_t i = 0; i < load->piece_count; i++) {
    const ladei_loader_cut *cut = &plan->cuts[load->order[i]];
    sum = mix_number(sum, load->pieces[load->order[i]].tensor);
    sum = mix_number(sum, (uint64_t)(uint32_t)cut->spread << 32 | cut->dim);
    sum = mix_number(sum, (uint64_t)cut->owner << 32 | cut->uneven);
  }
  for (size_t i = 0; i < plan->part_count; i++) {
    const ladei_loader_part *part = &plan->parts[i];
    sum = mix_number(mix_number(mix_number(sum, part->first), part->begin), part->bytes);
    sum = mix_number(sum, (uint64_t)part->root << 1 | part->scatters);
  }
  return sum;
}

uint64_t ladei_loader_headers_checksum(const lade_safetensors *file) {
  uint64_t sum = 0;
  for (size_t i = 0; i < file->file_count; i++) {
    const ladei_loader_header *header = &file->files[i].header;
    const char *version = ladei_source_version_tag(&file->files[i].version);
    sum = mix_number(mix_number(sum, file->files[i].stamp.bytes), file->files[i].data_offset);
    sum = mix(sum, version, strlen(version));
    for (size_t e = 0; e < header->entry_count; e++) {
      const ladei_loader_entry *entry = &header->entries[e];
      sum = mix(sum, entry->name, strlen(entry->name) + 1);
      sum = mix(sum, entry->shape, entry->rank * sizeof *entry->shape);
      sum = mix_number(mix_number(mix_number(sum, (uint64_t)entry->dtype), entry->begin), entry->end);
    }
    for (size_t m = 0; m < header->metadata_count; m++) {
      sum = mix(sum, header->metadata[m].key, strlen(header->metadata[m].key) + 1);
      sum = mix(sum, header->metadata[m].value, strlen(header->metadata[m].value) + 1);
    }
  }
  return mix_number(sum, file->tensor_count);
}
