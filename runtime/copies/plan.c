/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a list of pieces to the parts that are queued:
 *
 *   pass over the list: memory of each end, kind --> every piece is a part of one kind: the caller's own list
 *                                               \-> otherwise: cut where memory of an end is another, merged with the one before
 *   then overlaps are refused
 *
 * The copies begin when all of this is done, so it must take little beside them: 4 KiB take 80 ns on a link of 51 GB/s. Ranges of memory
 * found last are kept while the plan is made, since a driver call for each address would cost more than the copy.
 *
 * Note [Overlaps]. Destinations on a grid whose steps are no shorter than the pieces, such as blocks of a cache, have a bit each, in
 * the pass that finds their memory. Others are sorted. A step is 2^shift times an odd number, which has an inverse modulo 2^64: an offset
 * times that, with its last `shift` bits put first, is its place where it is a multiple of the step, and else more than any place.
 *
 * I1  The parts cover each piece once, and nothing else.
 * I2  Destinations of parts do not overlap, and no source overlaps a destination.
 * I3  Each end of a part lies in one allocation or registration: Note [Copies end with registrations] in runtime/ops.h.
 * I4  A range is believed for the call alone: memory that a thread frees meanwhile is the caller's error, as with every copy.
 * Locks: none.
 */
#include "runtime/copies/plan.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

/* ---- Memory of a call -------------------------------------------------------------------------------------------- */

enum { KEEP_BYTES = 8 << 20 }; /* the runtime keeps no more */

typedef struct kept_memory {
  size_t bytes;
  max_align_t begin[];
} kept_memory;

void *ladei_copy_memory_take(lade_runtime *runtime, size_t bytes) {
  kept_memory *kept = atomic_exchange_explicit(&runtime->copy_memory, NULL, memory_order_acquire);
  if (kept == NULL || kept->bytes < bytes) {
    size_t all = ladei_size_max(bytes, 4096);
    free(kept);
    kept = all < SIZE_MAX - sizeof *kept ? malloc(sizeof *kept + all) : NULL;
    if (kept == NULL) return NULL;
    kept->bytes = all;
  }
  return kept->begin;
}

void ladei_copy_memory_give(lade_runtime *runtime, void *memory) {
  if (memory == NULL) return;
  kept_memory *kept = (kept_memory *)(void *)((char *)memory - offsetof(kept_memory, begin)), *none = NULL;
  bool keep =
      kept->bytes <= KEEP_BYTES && atomic_compare_exchange_strong_explicit(&runtime->copy_memory, (void **)&none, kept,
                                                                           memory_order_release, memory_order_relaxed);
  if (!keep) free(kept);
}

uint64_t *ladei_copy_bits_take(lade_runtime *runtime, uint64_t places, size_t count) {
  /* Clearing them takes some nanoseconds a piece, where the memory is kept; without them a piece takes 20 ns more. */
  enum { BITS_A_PIECE = 256, KEPT_BITS_A_PIECE = 2048 };
  size_t bytes = (places / 64 + 1) * sizeof(uint64_t);
  uint64_t most = bytes <= KEEP_BYTES ? KEPT_BITS_A_PIECE : BITS_A_PIECE;
  uint64_t *bits = places / most <= count ? ladei_copy_memory_take(runtime, bytes) : NULL;
  return bits == NULL ? NULL : memset(bits, 0, bytes);
}

/* ---- Memory of an end -------------------------------------------------------------------------------------------- */

lade_status ladei_copy_end_ask(const lade_runtime *runtime, const void *address, const ladei_stream *stream,
                               ladei_copy_end *out, bool *out_pageable) {
  ladei_pointer_attributes found;
  LADEI_TRY(runtime->ops->pointer_attributes(runtime->self, address, &found));
  *out_pageable = found.kind == LADEI_MEMORY_UNKNOWN || found.bytes == 0;
  bool host = found.kind == LADEI_MEMORY_PINNED || found.kind == LADEI_MEMORY_UNKNOWN;
  *out = (ladei_copy_end){.base = found.base, .bytes = found.bytes, .device = host ? -1 : found.device};
  if (found.kind == LADEI_MEMORY_MANAGED && found.device < 0) out->device = stream->device;
  out->reached = host ? found.device_alias == address : out->device == stream->device;
  return LADE_OK;
}

static uint64_t number(const void *address) { return (uint64_t)(uintptr_t)address; }

/* Whether all `bytes`, more than 0, from the address on lie in it. */
static bool end_covers(const ladei_copy_end *end, const void *address, size_t bytes) {
  uint64_t offset = number(address) - end->base;
  return offset < end->bytes && bytes - 1 < end->bytes - offset;
}

/* Ranges found last; sources and destinations have their own. `known[last]` answered last. */
enum { RANGES = 32 };
typedef struct ranges {
  unsigned count, last, next; /* `next` is replaced next */
  ladei_copy_end known[RANGES];
} ranges;

/* A plan in the making. */
typedef struct making {
  lade_runtime *runtime;
  const ladei_stream *stream;
  const ladei_copy_list_name *name;
  ranges dst, src;
} making;

static lade_status piece_refuse(const making *m, size_t index, const char *field, const char *expected,
                                const void *address, size_t bytes) {
  char full[80];
  (void)snprintf(full, sizeof full, "%s[%zu]%s", m->name->list, index, field);
  return ladei_error_argument(m->name->call, full, expected, "%zu bytes at %p", bytes, address);
}

static lade_status no_memory(const making *m, size_t count) {
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory for a list of %zu", m->name->call, count);
}

/* Sets r->last to the range with the address. */
static lade_status end_find(making *m, ranges *r, const void *address, size_t index, const char *field, size_t bytes) {
  for (unsigned i = 0; i < r->count; i++) {
    if (!end_covers(&r->known[i], address, 1)) continue;
    r->last = i;
    return LADE_OK;
  }
  bool pageable;
  ladei_copy_end found;
  LADEI_TRY(ladei_copy_end_ask(m->runtime, address, m->stream, &found, &pageable));
  if (pageable)
    return piece_refuse(m, index, field, "device memory, or pinned host memory, to its end", address, bytes);
  r->last = r->count < RANGES ? r->count++ : r->next++ % RANGES;
  r->known[r->last] = found;
  return LADE_OK;
}

/* Needs no driver. */
static lade_status piece_check(const making *m, const lade_copy_piece *piece, size_t index) {
  if (piece->dst == NULL || piece->src == NULL)
    return piece_refuse(m, index, piece->dst == NULL ? ".dst" : ".src", "an address", NULL, piece->bytes);
  if (piece->bytes == 0 || piece->bytes >= LADEI_SIZE_LIMIT)
    return piece_refuse(m, index, ".bytes", "more than 0 and less than 2^60", piece->dst, piece->bytes);
  return LADE_OK;
}

static lade_status ends_find(making *m, const lade_copy_piece *piece, size_t index) {
  LADEI_TRY(end_find(m, &m->dst, piece->dst, index, ".dst", piece->bytes));
  return end_find(m, &m->src, piece->src, index, ".src", piece->bytes);
}

/* Of the ends found last. */
static lade_status kind_find(const making *m, const lade_copy_piece *piece, size_t index, ladei_copy_kind *out) {
  const ladei_copy_end *to = &m->dst.known[m->dst.last], *from = &m->src.known[m->src.last];
  int own = m->stream->device;
  bool foreign = (to->device >= 0 && to->device != own) || (from->device >= 0 && from->device != own);
  if (to->device < 0 && from->device < 0)
    return piece_refuse(m, index, "", "one end in device memory", piece->dst, piece->bytes);
  out->direction = (uint8_t)ladei_copy_direction_of(to->device >= 0, from->device >= 0);
  out->reach = foreign && out->direction == LADEI_COPY_D2D ? LADEI_COPY_BETWEEN
               : !foreign && to->reached && from->reached  ? LADEI_COPY_BY_KERNEL
                                                           : LADEI_COPY_BY_ENGINE;
  return LADE_OK;
}

static bool follows(const lade_copy_piece *before, const lade_copy_piece *piece) {
  return number(before->dst) + before->bytes == number(piece->dst) &&
         number(before->src) + before->bytes == number(piece->src);
}

/* ---- A grid of destinations: Note [Overlaps] ---------------------------------------------------------------------- */

typedef struct grid {
  uint64_t *bits; /* of ladei_copy_memory_take(); NULL: no grid */
  uint64_t base, step, places;
  uint64_t inverse; /* of the odd part of the step */
  unsigned shift;   /* ... after so many bits */
} grid;

static uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b != 0) {
    uint64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

/* Each round doubles the bits that are right; those of an odd number by itself are three. */
static uint64_t odd_inverse(uint64_t odd) {
  uint64_t inverse = odd;
  for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - odd * inverse;
  assert(inverse * odd == 1);
  return inverse;
}

/* Guesses the step of the first pieces; places for all of the first one's memory, if that is worth the list's length. */
static void grid_open(const making *m, const lade_copy_piece *pieces, size_t count, grid *out) {
  enum { SAMPLE = 10 };
  const ladei_copy_end *to = &m->dst.known[m->dst.last];
  uint64_t step = 0, first = number(pieces[0].dst);
  *out = (grid){0};
  if (count < SAMPLE) return;
  for (size_t i = 1; i < SAMPLE; i++) {
    uint64_t at = number(pieces[i].dst);
    step = common_divisor(step, at > first ? at - first : first - at);
  }
  if (step < pieces[0].bytes) return;
  out->places = to->bytes / step + 1;
  out->bits = ladei_copy_bits_take(m->runtime, out->places, count);
  out->step = step;
  out->shift = (unsigned)__builtin_ctzll(step);
  out->inverse = odd_inverse(step >> out->shift);
  out->base = first - (first - to->base) / step * step;
}

static void grid_close(const making *m, grid *g) {
  ladei_copy_memory_give(m->runtime, g->bits);
  g->bits = NULL;
}

/* The place of an address; g->places or more: it is not on the grid. Note [Overlaps]. */
static uint64_t grid_place(const grid *g, uint64_t address) {
  uint64_t product = (address - g->base) * g->inverse;
  return product >> g->shift | product << (64 - g->shift) % 64;
}

static lade_status overlap_refuse(const making *m, const lade_copy_piece *pieces, size_t index) {
  return piece_refuse(m, index, ".dst", "bytes that no other piece writes", pieces[index].dst, pieces[index].bytes);
}

/* ---- The caller's list as it is ---------------------------------------------------------------------------------- */

typedef struct taken {
  bool as_it_is; /* false: pieces are to be cut or merged, or are of several kinds */
  bool apart;    /* destinations do not overlap; false: that is not known */
} taken;

static bool piece_within(const ladei_copy_end *to, const ladei_copy_end *from, const lade_copy_piece *piece) {
  return end_covers(to, piece->dst, piece->bytes) && end_covers(from, piece->src, piece->bytes);
}

static void plan_count(ladei_copy_plan *plan, size_t bytes) {
  plan->bytes += bytes;
  plan->longest = bytes > plan->longest ? bytes : plan->longest;
  plan->shortest = bytes < plan->shortest ? bytes : plan->shortest;
}

/* The pass itself: takes pieces from `i` on, not the first, that lie in the ranges found last, on the grid; returns the first that
 * does not. Nothing is queued before its end, and an instruction for each of many pieces of 656 bytes is a percent of their time. */
static size_t pieces_take(const making *m, const lade_copy_piece *pieces, size_t i, size_t count, const grid *g,
                          ladei_copy_plan *plan) {
  const ladei_copy_end to = m->dst.known[m->dst.last], from = m->src.known[m->src.last];
  const grid on = *g; /* copies, since the compiler takes a bit that is written for one of theirs */
  ladei_copy_plan counted = *plan;
  uint64_t most = ladei_size_min(to.bytes, from.bytes);
  if (on.bits != NULL) most = ladei_size_min(most, on.step);
  for (; i < count; i++) {
    const lade_copy_piece *piece = &pieces[i];
    uint64_t dst = number(piece->dst), bytes = piece->bytes;
    if (bytes - 1 >= most || dst - to.base > to.bytes - bytes || number(piece->src) - from.base > from.bytes - bytes ||
        follows(piece - 1, piece))
      break;
    if (on.bits != NULL) {
      uint64_t place = grid_place(&on, dst);
      if (place >= on.places || !ladei_copy_bit_take(on.bits, place)) break;
    }
    plan_count(&counted, bytes);
  }
  *plan = counted;
  return i;
}

static lade_status list_pass(making *m, const lade_copy_piece *pieces, size_t count, ladei_copy_plan *plan, grid *g,
                             bool *out_as_it_is) {
  for (size_t i = 0; i < count; i = pieces_take(m, pieces, i, count, g, plan)) {
    const lade_copy_piece *piece = &pieces[i];
    ladei_copy_kind kind;
    LADEI_TRY(piece_check(m, piece, i));
    LADEI_TRY(ends_find(m, piece, i));
    LADEI_TRY(kind_find(m, piece, i, &kind));
    if (i == 0) plan->kind = kind;
    if (i == 0) grid_open(m, pieces, count, g);
    bool within = piece_within(&m->dst.known[m->dst.last], &m->src.known[m->src.last], piece);
    if (!ladei_copy_kinds_equal(kind, plan->kind) || !within || (i != 0 && follows(piece - 1, piece))) return LADE_OK;
    uint64_t place = g->bits == NULL ? 0 : grid_place(g, number(piece->dst));
    if (g->bits != NULL && (place >= g->places || piece->bytes > g->step)) grid_close(m, g);
    if (g->bits != NULL && !ladei_copy_bit_take(g->bits, place)) return overlap_refuse(m, pieces, i);
    plan_count(plan, piece->bytes);
    i++;
  }
  *out_as_it_is = true;
  return LADE_OK;
}

static lade_status list_take(making *m, const lade_copy_piece *pieces, size_t count, ladei_copy_plan *plan,
                             taken *out) {
  grid g = {0};
  *out = (taken){false, false};
  lade_status status = list_pass(m, pieces, count, plan, &g, &out->as_it_is);
  out->apart = out->as_it_is && g.bits != NULL;
  grid_close(m, &g);
  plan->parts = pieces;
  plan->count = count;
  return status;
}

/* ---- A list of its own ------------------------------------------------------------------------------------------- */

typedef struct parts {
  size_t count, capacity;
  lade_copy_piece *parts;
  ladei_copy_kind *kinds;
} parts;

static bool parts_room(parts *p) {
  if (p->count < p->capacity) return true;
  size_t capacity = p->capacity + p->capacity / 2 + 64;
  lade_copy_piece *list = realloc(p->parts, capacity * sizeof *list);
  if (list == NULL) return false;
  p->parts = list;
  ladei_copy_kind *kinds = realloc(p->kinds, capacity * sizeof *kinds);
  if (kinds == NULL) return false;
  p->kinds = kinds;
  p->capacity = capacity;
  return true;
}

/* Adds a part whose ends were found last, or makes the last part longer: not where memory of an end begins (I3). */
static bool part_add(const making *m, parts *p, lade_copy_piece part, ladei_copy_kind kind, bool *out_merged) {
  bool inside = m->dst.known[m->dst.last].base < number(part.dst) && m->src.known[m->src.last].base < number(part.src);
  *out_merged = inside && p->count != 0 && ladei_copy_kinds_equal(p->kinds[p->count - 1], kind) &&
                follows(&p->parts[p->count - 1], &part);
  if (*out_merged) {
    p->parts[p->count - 1].bytes += part.bytes;
    return true;
  }
  if (!parts_room(p)) return false;
  p->parts[p->count] = part;
  p->kinds[p->count++] = kind;
  return true;
}

/* Cuts a piece where the memory of an end is another; both ends stay of their kind. */
static lade_status piece_cut(making *m, parts *p, const lade_copy_piece *piece, size_t index, size_t *merged) {
  ladei_copy_kind first = {0};
  for (size_t done = 0, length; done < piece->bytes; done += length) {
    lade_copy_piece rest = {(char *)piece->dst + done, (const char *)piece->src + done, piece->bytes - done};
    ladei_copy_kind kind;
    bool joined;
    LADEI_TRY(ends_find(m, &rest, index));
    LADEI_TRY(kind_find(m, &rest, index, &kind));
    if (done == 0) first = kind;
    if (kind.direction != first.direction)
      return piece_refuse(m, index, "", "each end in memory of one kind", rest.dst, rest.bytes);
    const ladei_copy_end *to = &m->dst.known[m->dst.last], *from = &m->src.known[m->src.last];
    length = ladei_size_min(rest.bytes, ladei_size_min(to->base + to->bytes - number(rest.dst),
                                                       from->base + from->bytes - number(rest.src)));
    rest.bytes = length;
    if (!part_add(m, p, rest, kind, &joined)) return no_memory(m, p->count);
    *merged += joined && done == 0;
  }
  return LADE_OK;
}

static lade_status list_make(making *m, const lade_copy_piece *pieces, size_t count, ladei_copy_plan *plan) {
  parts p = {0};
  lade_status status = LADE_OK;
  for (size_t i = 0; i < count && status == LADE_OK; i++) {
    status = piece_check(m, &pieces[i], i);
    if (status == LADE_OK) status = piece_cut(m, &p, &pieces[i], i, &plan->merged);
  }
  plan->parts = plan->own_parts = p.parts;
  plan->kinds = plan->own_kinds = p.kinds;
  plan->count = p.count;
  return status;
}

/* ---- Overlaps ---------------------------------------------------------------------------------------------------- */

typedef struct hull {
  uint64_t low, high; /* of all bytes */
} hull;

static void hull_add(hull *h, const void *address, size_t bytes) {
  uint64_t begin = number(address);
  if (begin < h->low) h->low = begin;
  if (begin + bytes > h->high) h->high = begin + bytes;
}

/* Where the ends lie, and whether the destinations follow each other. */
typedef struct layout {
  hull dst, src;
  bool ascending;
} layout;

static layout layout_find(const lade_copy_piece *pieces, size_t count) {
  layout l = {{UINT64_MAX, 0}, {UINT64_MAX, 0}, true};
  for (size_t i = 0; i < count; i++) {
    hull_add(&l.dst, pieces[i].dst, pieces[i].bytes);
    hull_add(&l.src, pieces[i].src, pieces[i].bytes);
    l.ascending = l.ascending && (i == 0 || number(pieces[i].dst) >= number(pieces[i - 1].dst) + pieces[i - 1].bytes);
  }
  return l;
}

typedef struct sorted_place {
  uint64_t begin;
  uint32_t index;
} sorted_place;

/* A stable sort by digits of the addresses, of those bits in which they differ. Returns one of the two arrays. */
static sorted_place *places_sort(sorted_place *from, sorted_place *other, size_t count, uint64_t differ,
                                 uint32_t *digits) {
  enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };
  for (unsigned shift = differ == 0 ? 64 : (unsigned)__builtin_ctzll(differ); shift < 64 && differ >> shift != 0;
       shift += DIGIT_BITS) {
    memset(digits, 0, DIGITS * sizeof *digits);
    for (size_t i = 0; i < count; i++) digits[from[i].begin >> shift & (DIGITS - 1)]++;
    for (uint32_t digit = 0, sum = 0; digit < DIGITS; digit++) {
      uint32_t length = digits[digit];
      digits[digit] = sum;
      sum += length;
    }
    for (size_t i = 0; i < count; i++) other[digits[from[i].begin >> shift & (DIGITS - 1)]++] = from[i];
    sorted_place *swap = from;
    from = other;
    other = swap;
  }
  return from;
}

/* The piece whose destination has a byte of the `bytes` at `address`; UINT32_MAX: none. */
static uint32_t destination_find(const lade_copy_piece *pieces, const sorted_place *sorted, size_t count,
                                 uint64_t address, size_t bytes) {
  size_t low = 0, high = count; /* the first that ends after `address` */
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (sorted[middle].begin + pieces[sorted[middle].index].bytes <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && sorted[low].begin < address + bytes ? sorted[low].index : UINT32_MAX;
}

static lade_status sorted_check(const making *m, const lade_copy_piece *pieces, size_t count, bool sources) {
  enum { DIGITS_BYTES = 2048 * sizeof(uint32_t) };
  char *memory = ladei_copy_memory_take(m->runtime, 2 * count * sizeof(sorted_place) + DIGITS_BYTES);
  if (memory == NULL) return no_memory(m, count);
  sorted_place *first = (sorted_place *)(void *)memory, *second = first + count;
  uint64_t differ = 0;
  for (size_t i = 0; i < count; i++) {
    first[i] = (sorted_place){number(pieces[i].dst), (uint32_t)i};
    differ |= first[i].begin ^ first[0].begin;
  }
  const sorted_place *sorted = places_sort(first, second, count, differ, (uint32_t *)(void *)(second + count));
  lade_status status = LADE_OK;
  for (size_t i = 1; i < count && status == LADE_OK; i++) { /* the later of the two is told */
    uint32_t before = sorted[i - 1].index, now = sorted[i].index;
    if (sorted[i].begin - sorted[i - 1].begin < pieces[before].bytes)
      status = overlap_refuse(m, pieces, before > now ? before : now);
  }
  for (size_t i = 0; i < count && status == LADE_OK && sources; i++)
    if (destination_find(pieces, sorted, count, number(pieces[i].src), pieces[i].bytes) != UINT32_MAX)
      status = piece_refuse(m, i, ".src", "bytes that no piece of the list writes", pieces[i].src, pieces[i].bytes);
  ladei_copy_memory_give(m->runtime, memory);
  return status;
}

/* I2. `apart`: the destinations are known not to overlap. `one_way`: sources and destinations are memory of two kinds. */
static lade_status overlaps_check(const making *m, const lade_copy_piece *pieces, size_t count, bool apart,
                                  bool one_way) {
  if (apart && one_way) return LADE_OK;
  layout l = layout_find(pieces, count);
  bool sources = !one_way && l.src.low < l.dst.high && l.dst.low < l.src.high;
  return !sources && (apart || l.ascending) ? LADE_OK : sorted_check(m, pieces, count, sources);
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

bool ladei_copy_plan_own(ladei_copy_plan *plan) {
  if (plan->kinds != NULL) return true;
  assert(plan->own_parts == NULL && plan->own_kinds == NULL);
  plan->own_parts = malloc(plan->count * sizeof *plan->own_parts);
  plan->own_kinds = malloc(plan->count * sizeof *plan->own_kinds);
  if (plan->own_parts == NULL || plan->own_kinds == NULL) return false;
  memcpy(plan->own_parts, plan->parts, plan->count * sizeof *plan->own_parts);
  for (size_t i = 0; i < plan->count; i++) plan->own_kinds[i] = plan->kind;
  plan->parts = plan->own_parts;
  plan->kinds = plan->own_kinds;
  return true;
}

void ladei_copy_plan_free(ladei_copy_plan *plan) {
  free(plan->own_parts);
  free(plan->own_kinds);
}

lade_status ladei_copy_plan_make(lade_runtime *runtime, const ladei_copy_list_name *name, const lade_copy_piece *pieces,
                                 size_t count, const ladei_stream *stream, ladei_copy_plan *out) {
  assert(count > 0 && count <= INT32_MAX);
  making m = {.runtime = runtime, .stream = stream, .name = name};
  taken found;
  *out = (ladei_copy_plan){.shortest = SIZE_MAX};
  lade_status status = list_take(&m, pieces, count, out, &found);
  bool one_way = found.as_it_is && out->kind.direction != LADEI_COPY_D2D;
  if (status == LADE_OK && !found.as_it_is) status = list_make(&m, pieces, count, out);
  if (status == LADE_OK) status = overlaps_check(&m, pieces, count, found.apart, one_way);
  if (status != LADE_OK) ladei_copy_plan_free(out);
  return status;
}
