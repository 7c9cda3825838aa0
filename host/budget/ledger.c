/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool's part in the ledger.
 *
 *   DETACHED --(file opened, locked, read; a free slot locked and written)--> ATTACHED
 *   ATTACHED --(file gone, damaged, not to be written; own slot not as written)--> DETACHED
 *
 *   charge:  enter (file lock; read; attach, or look whether all is there) -> look for the owner of one slot, decide ->
 *            refused: look for more slots without owner, decide again -> write the own slot -> leave
 *
 * Thousands of processes that start at once wait for each other at the file lock. So a pool that joins asks for few
 * locks of slots, and reads its process's own facts before it has the file lock. If something is short, all slots of
 * processes that have ended are found in one go: a process id is no proof, so the lock of each is asked for, which is
 * cheap then.
 *
 * W1  held_bytes are the pool's bytes, whether the ledger knows them or not.
 * W2  While attached, the own slot's lock is held, and the slot says held_bytes unless `told` is false.
 * W3  Between enter and leave the file lock is held, and `file.data` has the file's bytes with every slot sound; slots
 *     that were found without owner are free in it.
 * W4  A failure at any step leaves the slot free, or without owner, or as it was; its new content is written later.
 * W5  Memory that pools share has one slot in the file, found by its id, whose lock each of them holds for reading. It is made and
 *     freed between enter and leave; a pool that enters has a lock on that of each of its holds, or is detached.
 * Locks: ledger->lock, between the threads of the process: locks of open files do not keep these apart. Held for the
 * calls of ledger_file.c, whose lock is taken under it.
 */
#include "host/budget/ledger.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/lock.h"
#include "host/budget/ledger_file.h"
#include "host/budget/ledger_process.h"

enum {
  PROBES_PER_CHARGE = 1, /* slots whose owner is looked for though nothing is short */
  PROBES_PER_ATTACH = 2, /* more than one: slots of the dead become fewer also where pools only come and go */
  PROBES_PER_REFUSAL =
      512, /* of processes that seem to live; each asks the kernel, which walks all locks of the file */
};
/* Once it was waited for in vain. */
#define IMPATIENT_NS UINT64_C(1000000)

struct ladei_ledger {
  ladei_lock lock; /* guards all below */
  ladei_ledger_terms terms;
  ladei_ledger_file file;
  bool attached;
  bool told;           /* W2 */
  bool impatient;      /* the last wait for the file lock was in vain */
  bool fault_was_told; /* to ladei_ledger_fault_is_new */
  size_t index;        /* of the own slot, while attached */
  size_t probe;        /* slot whose owner is looked for next */
  ladei_ledger_slot
      slot; /* as written last; before, while the file is open: the content to write, except others' terms */
  uint64_t held_bytes;
  ladei_ledger_hold *holds; /* W5 */
  uint64_t requests;        /* as read last */
  uint64_t faults;
  unsigned skips, skips_left; /* looks that bring nothing, after one that could not */
  ladei_ledger_answer answer;
  ladei_ledger_fault fault; /* text "": none */
  char path[LADEI_LEDGER_PATH_BYTES];
};

/* ---- Paths and names --------------------------------------------------------------------------------------------- */

bool ladei_ledger_name_is_good(const char *name) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
  size_t length = strlen(name);
  return length > 0 && length < LADEI_LEDGER_NAME_BYTES && strspn(name, allowed) == length;
}

bool ladei_ledger_path(const char *root, uint32_t user, const char *name, char out[LADEI_LEDGER_PATH_BYTES]) {
  bool named = name != NULL && name[0] != '\0';
  int length = snprintf(out, LADEI_LEDGER_PATH_BYTES, "%s/dev/shm/lade-budget-%u%s%s", root, (unsigned)user,
                        named ? "-" : "", named ? name : "");
  return length > 0 && length < LADEI_LEDGER_PATH_BYTES;
}

/* ---- Create, destroy --------------------------------------------------------------------------------------------- */

static ladei_ledger_slot slot_of_terms(const ladei_ledger_terms *terms) {
  ladei_ledger_slot slot = {.mark = LADEI_LEDGER_TAKEN,
                            .share = terms->share,
                            .since_ns = ladei_clock_ns(CLOCK_REALTIME),
                            .total_bytes = terms->total_bytes,
                            .default_bytes = terms->default_bytes,
                            .cap_bytes = terms->cap_bytes,
                            .part_bytes = terms->part_bytes,
                            .group_id = terms->group_id,
                            .group_bytes = terms->group_bytes,
                            .process_start = ladei_ledger_process_start((uint32_t)getpid()),
                            .process_id = (uint32_t)getpid(),
                            .namespace_id = ladei_ledger_namespace(),
                            .pool_id = terms->pool_id,
                            .local_ranks = terms->local_ranks};
  ladei_ledger_command(slot.command);
  return slot;
}

ladei_ledger *ladei_ledger_create(const char *path, const ladei_ledger_terms *terms, const ladei_ledger_calls *calls) {
  ladei_ledger *ledger = calloc(1, sizeof *ledger);
  if (ledger == NULL) return NULL;
  ladei_lock_init(&ledger->lock, LADEI_RANK_LEDGER);
  ladei_ledger_file_init(&ledger->file, calls);
  ledger->terms = *terms;
  if (ledger->terms.most_slots == 0) ledger->terms.most_slots = LADEI_LEDGER_MOST_SLOTS;
  ledger->told = true;
  snprintf(ledger->path, sizeof ledger->path, "%s", path);
  return ledger;
}

/* There is nothing to tell. */
static bool has_nothing(const ladei_ledger *ledger) { return ledger->held_bytes == 0 && ledger->holds == NULL; }

/* The open file, whose locks they were, is gone. */
static void holds_forget(ladei_ledger *ledger) {
  for (ladei_ledger_hold *hold = ledger->holds; hold != NULL; hold = hold->next) hold->index = SIZE_MAX;
}

/* W4: the next reader finds the slot without owner. */
static void detach(ladei_ledger *ledger) {
  ledger->attached = false;
  ledger->told = has_nothing(ledger);
  holds_forget(ledger);
  ladei_ledger_file_close(&ledger->file);
}

/* ---- Slots without owner ----------------------------------------------------------------------------------------- */

/* W3. Written as free where that is possible: the next reader would find the same. */
static void slot_free(ladei_ledger *ledger, size_t index) {
  static const ladei_ledger_slot unused;
  ladei_ledger_fault ignored;
  ladei_ledger_file_slots(&ledger->file)[index] = unused;
  (void)ladei_ledger_slot_write(&ledger->file, ledger->path, index, &unused, &ignored);
}

/* Also of a slot that this pool holds with others: its own locks are not told. */
static bool is_own(const ladei_ledger *ledger, size_t index) {
  bool own = ledger->attached && index == ledger->index;
  for (const ladei_ledger_hold *hold = ledger->holds; hold != NULL && !own; hold = hold->next)
    own = hold->index == index;
  return own;
}

/* Looks for the owners of up to `most` slots, from the one after the last that was looked for. */
static void owners_look(ladei_ledger *ledger, size_t most) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  for (size_t i = 0; i < count && most > 0; i++) {
    size_t index = ledger->probe++ % count;
    if (!ladei_ledger_slot_is_taken(&slots[index]) || is_own(ledger, index)) continue;
    if (!ladei_ledger_slot_has_owner(&ledger->file, index)) slot_free(ledger, index);
    most--;
  }
}

/* Where something is short: the slots of processes that have ended, and those of no process alone; then others. */
static void owners_look_hard(ladei_ledger *ledger) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  uint32_t namespace_id = ledger->slot.namespace_id;
  for (size_t i = 0; i < count && namespace_id != 0; i++) {
    bool gone = ladei_ledger_slot_is_shared(&slots[i]) ||
                (ladei_ledger_slot_is_taken(&slots[i]) && slots[i].namespace_id == namespace_id &&
                 ladei_ledger_process_is_gone(slots[i].process_id));
    if (gone && !is_own(ledger, i) && !ladei_ledger_slot_has_owner(&ledger->file, i)) slot_free(ledger, i);
  }
  owners_look(ledger, PROBES_PER_REFUSAL);
}

/* W3. A slot that is torn or damaged has no owner, or the file cannot be trusted. */
static bool slots_check(ladei_ledger *ledger) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  for (size_t i = 0; i < count; i++) {
    if (ladei_ledger_slot_is_sound(&slots[i])) continue;
    if (is_own(ledger, i) || ladei_ledger_slot_has_owner(&ledger->file, i)) {
      ladei_ledger_fault_set(&ledger->fault, ledger->path, "has a damaged slot, %zu", i);
      return false;
    }
    slot_free(ledger, i);
  }
  return true;
}

/* ---- Attaching --------------------------------------------------------------------------------------------------- */

/* A budget by default is that of the first pool that came, for all; so is the limit of a control group. */
static void defaults_adopt(ladei_ledger *ledger, ladei_ledger_slot *slot) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  bool has_default = false, has_group = false;
  for (size_t i = 0; i < count && !(has_default && has_group); i++) {
    bool is_new = !has_default || (slots[i].group_id != 0 && slots[i].group_id == slot->group_id && !has_group);
    if (!ladei_ledger_slot_is_taken(&slots[i]) || !is_new) continue;
    if (!ladei_ledger_slot_has_owner(&ledger->file, i)) {
      slot_free(ledger, i);
      continue;
    }
    if (!has_default) slot->default_bytes = slots[i].default_bytes;
    has_default = true;
    if (slots[i].group_id != 0 && slots[i].group_id == slot->group_id) {
      slot->group_bytes = slots[i].group_bytes;
      has_group = true;
    }
  }
}

/* The first free slot whose lock can be taken; or a new one after the end, where the file may have been longer: the
 * pool with its slot there holds the lock, too, and does not know yet that the file was cut. */
static bool slot_find(ladei_ledger *ledger, size_t *out) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  size_t most = ladei_ledger_file_header(&ledger->file)->most_slots;
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  for (size_t i = 0; i < most; i++) {
    if (i < count && ladei_ledger_slot_is_taken(&slots[i])) continue;
    *out = i;
    if (ladei_ledger_slot_lock(&ledger->file, i)) return true;
  }
  ladei_ledger_fault_set(&ledger->fault, ledger->path, "is full: %zu of %zu slots are taken", most, most);
  return false;
}

/* The file as it will be with the slot in it. */
static bool slot_place(ladei_ledger *ledger, const ladei_ledger_slot *slot, size_t index) {
  ladei_ledger_file *file = &ledger->file;
  size_t end = LADEI_LEDGER_HEADER_BYTES + (index + 1) * LADEI_LEDGER_SLOT_BYTES;
  if (!LADEI_ARRAY_ROOM(file->data, file->room, end)) {
    ladei_ledger_fault_set(&ledger->fault, ledger->path, "cannot be read: no memory for %zu bytes", end);
    return false;
  }
  if (end > file->bytes) { /* with free slots between, as the file has them now */
    memset(file->data + file->bytes, 0, end - file->bytes);
    file->bytes = end;
  }
  ladei_ledger_file_slots(file)[index] = *slot;
  return true;
}

/* The file is locked and read. The bytes that the pool holds go into the slot, without a limit. */
static bool attach(ladei_ledger *ledger) {
  size_t index;
  ladei_ledger_slot slot = ledger->slot;
  defaults_adopt(ledger, &slot);
  ledger->probe = slot.process_id; /* not all at the same slots */
  owners_look(ledger, PROBES_PER_ATTACH);
  if (!slot_find(ledger, &index)) {
    owners_look_hard(ledger);
    if (!slot_find(ledger, &index)) return false;
  }
  slot.bytes = ledger->held_bytes;
  ladei_ledger_slot_seal(&slot);
  if (!ladei_ledger_slot_write(&ledger->file, ledger->path, index, &slot, &ledger->fault) ||
      !slot_place(ledger, &slot, index))
    return false;
  ledger->slot = slot;
  ledger->index = index;
  ledger->attached = ledger->told = true;
  ledger->requests = ladei_ledger_file_header(&ledger->file)->requests;
  return true;
}

static void decide(ladei_ledger *ledger) {
  ledger->answer = ladei_ledger_decide(ladei_ledger_file_slots(&ledger->file), ladei_ledger_file_count(&ledger->file),
                                       ledger->index);
}

/* ---- Memory that pools share ------------------------------------------------------------------------------------- */

static ladei_ledger_slot slot_of_hold(const ladei_ledger *ledger, const ladei_ledger_hold *hold) {
  ladei_ledger_slot slot = ledger->slot; /* its control group, and the default budget */
  slot.share = LADEI_LEDGER_PART;
  slot.total_bytes = 0; /* what the pool's options say ends with the pool */
  slot.bytes = slot.part_bytes = hold->bytes;
  slot.wanted_bytes = 0;
  slot.since_ns = ladei_clock_ns(CLOCK_REALTIME);
  slot.process_start = hold->id;
  slot.process_id = slot.namespace_id = slot.pool_id = slot.local_ranks = 0;
  memset(slot.command, 0, sizeof slot.command);
  memcpy(slot.command, "shared memory", sizeof "shared memory");
  ladei_ledger_slot_seal(&slot);
  return slot;
}

static bool is_slot_of(const ladei_ledger_slot *slot, const ladei_ledger_hold *hold) {
  return ladei_ledger_slot_is_shared(slot) && slot->process_start == hold->id && slot->bytes == hold->bytes;
}

/* The slot that another pool has made. */
static bool hold_find(ladei_ledger *ledger, const ladei_ledger_hold *hold, size_t *out) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  for (*out = 0; *out < count; ++*out)
    if (is_slot_of(&slots[*out], hold)) return true;
  return false;
}

/* With its bytes in the slot of `index`, and the lock of that alone: what the budget says of them. */
static bool hold_fits(ladei_ledger *ledger, const ladei_ledger_hold *hold, size_t index) {
  for (int hard = 0; hard < 2; hard++) {
    if (hard) owners_look_hard(ledger);
    ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
    slots[index].bytes = 0;
    slots[index].wanted_bytes = hold->bytes;
    ledger->answer = ladei_ledger_decide(slots, ladei_ledger_file_count(&ledger->file), index);
    slots[index] = slot_of_hold(ledger, hold);
    if (hold->bytes <= ledger->answer.most_bytes) return true;
  }
  return false;
}

static bool hold_lock_fault(ladei_ledger *ledger, size_t index) {
  ladei_ledger_fault_set(&ledger->fault, ledger->path, "does not lock slot %zu for several pools", index);
  return false;
}

/* A slot of its own; *granted is false, and there is none, where the budget refuses. With `granted` NULL it is not asked. */
static bool hold_make(ladei_ledger *ledger, ladei_ledger_hold *hold, bool *granted) {
  const ladei_ledger_slot slot = slot_of_hold(ledger, hold);
  size_t index;
  if (!slot_find(ledger, &index)) {
    owners_look_hard(ledger);
    if (!slot_find(ledger, &index)) return false;
  }
  hold->index = index; /* own, while owners of others are looked for */
  if (!slot_place(ledger, &slot, index)) return false;
  if (granted != NULL && !hold_fits(ledger, hold, index)) {
    memset(&ladei_ledger_file_slots(&ledger->file)[index], 0, sizeof slot);
    ladei_ledger_slot_unlock(&ledger->file, index);
    hold->index = SIZE_MAX;
    *granted = false;
    return true;
  }
  return ladei_ledger_slot_write(&ledger->file, ledger->path, index, &slot, &ledger->fault) &&
         (ladei_ledger_slot_lock_shared(&ledger->file, index) || hold_lock_fault(ledger, index));
}

/* Entered; false: `fault` says why. */
static bool hold_place(ladei_ledger *ledger, ladei_ledger_hold *hold, bool *granted) {
  size_t index;
  if (!hold_find(ledger, hold, &index)) return hold_make(ledger, hold, granted);
  if (!ladei_ledger_slot_lock_shared(&ledger->file, index)) return hold_lock_fault(ledger, index);
  hold->index = index;
  decide(ledger);
  ledger->answer.held_bytes -= hold->bytes; /* as before it came */
  return true;
}

/* W5: those without a slot, which the pool holds in any case; and whether the others' are as they were. */
static bool holds_place(ladei_ledger *ledger) {
  for (ladei_ledger_hold *hold = ledger->holds; hold != NULL; hold = hold->next) {
    if (hold->index == SIZE_MAX && !hold_place(ledger, hold, NULL)) return false;
    if (hold->index < ladei_ledger_file_count(&ledger->file) &&
        is_slot_of(&ladei_ledger_file_slots(&ledger->file)[hold->index], hold))
      continue;
    ladei_ledger_fault_set(&ledger->fault, ledger->path, "was cut or changed: slot %zu is not as it was written",
                           hold->index);
    return false;
  }
  return true;
}

/* ---- Entering, leaving ------------------------------------------------------------------------------------------- */

/* The own slot is as it was written: otherwise the file was cut, or changed without right. */
static bool own_slot_check(ladei_ledger *ledger) {
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  if (ledger->index < ladei_ledger_file_count(&ledger->file) &&
      memcmp(&slots[ledger->index], &ledger->slot, sizeof ledger->slot) == 0)
    return true;
  ladei_ledger_fault_set(&ledger->fault, ledger->path, "was cut or changed: slot %zu is not as it was written",
                         ledger->index);
  return false;
}

/* The file is open, locked and still the one under its name; `*out_bytes` long. */
static bool file_lock(ladei_ledger *ledger, uint64_t patience_ns, size_t *out_bytes) {
  enum { TRIES = 3 }; /* of a file that is removed again and again */
  for (int i = 0; i < TRIES; i++) {
    if (ledger->file.fd < 0) {
      ledger->attached = false;
      holds_forget(ledger);
      if (!ladei_ledger_file_open(&ledger->file, ledger->path, true, &ledger->fault)) return false;
      ledger->slot = slot_of_terms(&ledger->terms);
      ladei_ledger_file_read_ahead(&ledger->file);
    }
    if (!ladei_ledger_file_lock(&ledger->file, ledger->path, patience_ns, &ledger->fault)) return false;
    if (ledger->file.fd >= 0 && !ladei_ledger_file_is_there(&ledger->file, ledger->path, out_bytes, &ledger->fault))
      return false;
    if (ledger->file.fd >= 0) return true;
  }
  ladei_ledger_fault_set(&ledger->fault, ledger->path, "was removed as often as it was made");
  return false;
}

/* Cuts unowned slots at the end, left from a time with more pools: each charge would read them until the machine
 * restarts. Some stay, so that pools that come and go change no length. */
static void end_cut(ladei_ledger *ledger) {
  enum { MOST_SPARE = 64 };
  size_t count = ladei_ledger_file_count(&ledger->file), taken = count;
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  while (taken > 0 && !ladei_ledger_slot_is_taken(&slots[taken - 1])) taken--;
  if (count - taken > MOST_SPARE) ladei_ledger_file_cut(&ledger->file, taken);
}

/* W3. False: `fault` says why; the file lock is not held, and unless it was waited for in vain the pool is detached. */
static bool enter(ladei_ledger *ledger, uint64_t patience_ns) {
  size_t bytes = 0;
  ledger->fault.timed_out = ledger->fault.is_absent = false;
  bool full = patience_ns == LADEI_LEDGER_PATIENCE_NS;
  if (full && !ledger->attached) patience_ns = LADEI_LEDGER_JOIN_PATIENCE_NS;
  bool locked = file_lock(ledger, ledger->impatient ? IMPATIENT_NS : patience_ns, &bytes);
  if (!locked && ledger->fault.timed_out) {
    /* A short wait teaches little. */
    ledger->impatient = ledger->impatient || full;
    return false;
  }
  ledger->impatient = false;
  bool good = locked &&
              ladei_ledger_file_read(&ledger->file, ledger->path, bytes, ledger->terms.most_slots, &ledger->fault) &&
              (!ledger->attached || own_slot_check(ledger)) && slots_check(ledger) &&
              (ledger->attached || attach(ledger)) && holds_place(ledger);
  if (good)
    end_cut(ledger);
  else
    detach(ledger); /* which unlocks */
  return good;
}

static void leave(ladei_ledger *ledger) {
  ladei_ledger_file_unlock(&ledger->file);
  ledger->fault.text[0] = '\0';
  ledger->fault_was_told = false;
}

/* Between enter and leave. False: detached, and the file lock is not held. */
static bool own_slot_write(ladei_ledger *ledger, uint64_t bytes, uint64_t wanted_bytes) {
  ladei_ledger_slot slot = ledger->slot;
  slot.bytes = bytes;
  slot.wanted_bytes = wanted_bytes;
  ladei_ledger_slot_seal(&slot);
  if (!ladei_ledger_slot_write(&ledger->file, ledger->path, ledger->index, &slot, &ledger->fault)) {
    detach(ledger);
    return false;
  }
  ledger->slot = slot;
  ladei_ledger_file_slots(&ledger->file)[ledger->index] = slot;
  return true;
}

static void fault_count(ladei_ledger *ledger) {
  ledger->faults++;
  ledger->told = ledger->attached ? false : has_nothing(ledger);
}

/* ---- Charges and credits ----------------------------------------------------------------------------------------- */

/* Entered. Tells the ledger the bytes that it does not know yet: the pool holds them in any case. */
static bool charge_decide(ladei_ledger *ledger, uint64_t bytes, bool *out_granted) {
  ladei_ledger_slot *own = &ladei_ledger_file_slots(&ledger->file)[ledger->index];
  uint64_t most = UINT64_MAX - ledger->held_bytes < bytes ? UINT64_MAX : ledger->held_bytes + bytes;
  own->bytes = ledger->held_bytes;
  own->wanted_bytes = bytes; /* counts among the fair shares */
  owners_look(ledger, PROBES_PER_CHARGE);
  decide(ledger);
  if (most > ledger->answer.most_bytes) {
    owners_look_hard(ledger);
    decide(ledger);
  }
  *out_granted = most <= ledger->answer.most_bytes;
  if (!own_slot_write(ledger, *out_granted ? most : ledger->held_bytes, *out_granted ? 0 : bytes)) return false;
  if (!*out_granted) ladei_ledger_requests_add(&ledger->file);
  return true;
}

ladei_ledger_result ladei_ledger_charge(ladei_ledger *ledger, uint64_t bytes, ladei_ledger_answer *out) {
  bool granted = false;
  ladei_lock_acquire(&ledger->lock);
  bool asked = enter(ledger, LADEI_LEDGER_PATIENCE_NS) && charge_decide(ledger, bytes, &granted);
  if (asked) {
    ledger->told = true;
    leave(ledger);
  }
  if (!asked || granted) ledger->held_bytes += bytes; /* W1 */
  if (!asked) fault_count(ledger);
  *out = ledger->answer;
  ladei_lock_release(&ledger->lock);
  return !asked ? LADEI_LEDGER_FAULT : granted ? LADEI_LEDGER_GRANTED : LADEI_LEDGER_REFUSED;
}

/* Locked. Brings the bytes that the pool holds into the ledger. */
static bool tell(ladei_ledger *ledger, uint64_t patience_ns) {
  if (!enter(ledger, patience_ns) || !own_slot_write(ledger, ledger->held_bytes, 0)) return false;
  decide(ledger);
  ledger->told = true;
  leave(ledger);
  return true;
}

void ladei_ledger_credit(ladei_ledger *ledger, uint64_t bytes) {
  ladei_lock_acquire(&ledger->lock);
  assert(bytes <= ledger->held_bytes); /* W1 */
  ledger->held_bytes -= bytes;
  if (!ledger->attached)
    ledger->told = has_nothing(ledger);
  else if (!tell(ledger, LADEI_LEDGER_PATIENCE_NS))
    fault_count(ledger);
  ladei_lock_release(&ledger->lock);
}

static void hold_link(ladei_ledger *ledger, ladei_ledger_hold *hold) {
  hold->next = ledger->holds;
  ledger->holds = hold;
}

static void hold_unlink(ladei_ledger *ledger, const ladei_ledger_hold *hold) {
  ladei_ledger_hold **link = &ledger->holds;
  while (*link != hold) link = &(*link)->next;
  *link = hold->next;
}

/* Entered. A pool that is refused asks the others for as much, by its own slot. False: detached. */
static bool share_decide(ladei_ledger *ledger, ladei_ledger_hold *hold, bool *granted) {
  *granted = true;
  hold_link(ledger, hold); /* its slot is the pool's own from here on */
  owners_look(ledger, PROBES_PER_CHARGE);
  if (!hold_place(ledger, hold, granted)) {
    detach(ledger);
    return false;
  }
  if (*granted) return true;
  hold_unlink(ledger, hold);
  if (!own_slot_write(ledger, ledger->held_bytes, hold->bytes)) {
    hold_link(ledger, hold); /* a fault counts it */
    return false;
  }
  ladei_ledger_requests_add(&ledger->file);
  return true;
}

ladei_ledger_result ladei_ledger_hold_add(ladei_ledger *ledger, ladei_ledger_hold *hold, ladei_ledger_answer *out) {
  bool granted = true;
  assert(hold->id != 0 && hold->bytes > 0);
  ladei_lock_acquire(&ledger->lock);
  hold->index = SIZE_MAX;
  bool entered = enter(ledger, LADEI_LEDGER_PATIENCE_NS), asked = entered && share_decide(ledger, hold, &granted);
  if (asked) leave(ledger);
  if (!entered) hold_link(ledger, hold); /* W5: its slot is made later */
  if (!asked) fault_count(ledger);
  *out = ledger->answer;
  ladei_lock_release(&ledger->lock);
  return !asked ? LADEI_LEDGER_FAULT : granted ? LADEI_LEDGER_GRANTED : LADEI_LEDGER_REFUSED;
}

void ladei_ledger_hold_remove(ladei_ledger *ledger, ladei_ledger_hold *hold) {
  ladei_lock_acquire(&ledger->lock);
  bool entered = ledger->attached && enter(ledger, LADEI_LEDGER_PATIENCE_NS);
  hold_unlink(ledger, hold);
  if (hold->index != SIZE_MAX && !is_own(ledger, hold->index)) { /* as where the pool holds it twice */
    /* If the file is locked for long, the next reader finds the slot without owner, unless others hold it. */
    ladei_ledger_slot_unlock(&ledger->file, hold->index);
    if (entered && !ladei_ledger_slot_has_owner(&ledger->file, hold->index)) slot_free(ledger, hold->index);
  }
  if (entered) leave(ledger);
  if (!ledger->attached) ledger->told = has_nothing(ledger);
  ladei_lock_release(&ledger->lock);
}

bool ladei_ledger_leaves(ladei_ledger *ledger, uint64_t bytes) {
  bool leaves = false;
  ladei_lock_acquire(&ledger->lock);
  if (ledger->attached && enter(ledger, IMPATIENT_NS)) {
    owners_look(ledger, PROBES_PER_CHARGE);
    decide(ledger);
    leaves = ledger->held_bytes <= ledger->answer.most_bytes && bytes <= ledger->answer.most_bytes - ledger->held_bytes;
    leave(ledger);
  }
  ladei_lock_release(&ledger->lock);
  return leaves;
}

/* Entered. */
static uint64_t others_want(ladei_ledger *ledger) {
  size_t count = ladei_ledger_file_count(&ledger->file);
  const ladei_ledger_slot *slots = ladei_ledger_file_slots(&ledger->file);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; i++) {
    if (is_own(ledger, i) || !ladei_ledger_slot_is_taken(&slots[i]) || slots[i].wanted_bytes == 0) continue;
    if (!ladei_ledger_slot_has_owner(&ledger->file, i)) continue;
    sum = sum > UINT64_MAX - slots[i].wanted_bytes ? UINT64_MAX : sum + slots[i].wanted_bytes;
  }
  return sum;
}

/* Tells the ledger changes it missed, each time after twice as many looks: a full folder stays so for long. */
static void tell_late(ladei_ledger *ledger) {
  enum { MOST_SKIPPED = 1024 };
  if (ledger->told || ledger->skips_left > 0) {
    ledger->skips_left -= ledger->told ? ledger->skips_left : 1;
    return;
  }
  bool told = tell(ledger, IMPATIENT_NS);
  ledger->skips = told ? 0 : ledger->skips < MOST_SKIPPED ? 2 * ledger->skips + 1 : MOST_SKIPPED;
  ledger->skips_left = ledger->skips;
}

uint64_t ladei_ledger_asked(ladei_ledger *ledger) {
  uint64_t asked = 0;
  ladei_lock_acquire(&ledger->lock);
  /* If the file was removed, as systemd-logind does with a user's files in /dev/shm at the last logout (RemoveIPC),
   * others make a new one, in which this pool lacks until it writes its bytes again. */
  if (ledger->attached && ladei_ledger_file_is_gone(&ledger->file)) ledger->told = false;
  tell_late(ledger);
  if (ledger->attached && ladei_ledger_requests_read(&ledger->file) != ledger->requests &&
      enter(ledger, IMPATIENT_NS)) {
    ledger->requests = ladei_ledger_file_header(&ledger->file)->requests;
    asked = others_want(ledger);
    leave(ledger);
  }
  ladei_lock_release(&ledger->lock);
  return asked;
}

void ladei_ledger_destroy(ladei_ledger *ledger) {
  if (ledger == NULL) return;
  ladei_lock_acquire(&ledger->lock);
  assert(ledger->holds == NULL);
  if (ledger->attached && enter(ledger, IMPATIENT_NS)) slot_free(ledger, ledger->index);
  ladei_ledger_file_close(&ledger->file); /* the locks end, that of the file too */
  ladei_lock_release(&ledger->lock);
  ladei_lock_destroy(&ledger->lock);
  free(ledger);
}

/* ---- What is known ----------------------------------------------------------------------------------------------- */

void ladei_ledger_state_get(ladei_ledger *ledger, ladei_ledger_state *out) {
  ladei_lock_acquire(&ledger->lock);
  uint64_t shared_bytes = 0;
  for (const ladei_ledger_hold *hold = ledger->holds; hold != NULL; hold = hold->next) shared_bytes += hold->bytes;
  *out = (ladei_ledger_state){.attached = ledger->attached,
                              .held_bytes = ledger->held_bytes,
                              .shared_bytes = shared_bytes,
                              .answer = ledger->answer,
                              .faults = ledger->faults};
  memcpy(out->fault, ledger->fault.text, sizeof out->fault);
  ladei_lock_release(&ledger->lock);
}

bool ladei_ledger_fault_is_new(ladei_ledger *ledger, char out[LADEI_LEDGER_FAULT_BYTES]) {
  ladei_lock_acquire(&ledger->lock);
  bool is_new = ledger->fault.text[0] != '\0' && !ledger->fault_was_told;
  if (is_new) memcpy(out, ledger->fault.text, LADEI_LEDGER_FAULT_BYTES);
  if (is_new) ledger->fault_was_told = true;
  ladei_lock_release(&ledger->lock);
  return is_new;
}
