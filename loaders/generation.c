/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The saves of a checkpoint of several files.
 *
 *   model.safetensors.index.json               names the files of one save, and carries its id: "7-0123456789abcdef"
 *   model-7-00001-of-00003.safetensors         a file of save 7, which carries the id, too
 *   .model.safetensors.index.json.lade-lock    while a save runs: locked by it (flock), and its journal
 *
 *   begin   lock -> remove files of a killed save -> number, id -> journal: this id, the index's id
 *   ...     files written and named, index written and named: that is the commit
 *   end     which id does the index carry? the files of the other one go -> lock file removed
 *
 * The lock dies with its process, the lock file does not: if one is not locked, a save was killed, and the journal has
 * the two ids that the folder may hold.
 *
 * I1  A file is removed only if its name is that of a save, it carries an id of the journal, and the index on disk
 *     neither carries this id nor names the file. If the index cannot be read nothing is removed.
 * I2  Files of a save that an index has replaced go only when the index is there for good.
 * I3  No file of a save has the name of another file: numbers are above those of all names in the folder.
 * Locks: flock on the lock file, held from begin to end. A generation belongs to one thread.
 */
#include "loaders/generation.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/save.h"
#include "loaders/checkpoint.h"
#include "loaders/text.h"

enum { NUMBER_DIGITS = 15, ID_RANDOM_DIGITS = 16, PART_DIGITS = 5, LOCK_TRIES = 100, JOURNAL_BYTES = 128 };

static const uint64_t number_most = UINT64_C(999999999999999); /* of NUMBER_DIGITS */
static const char no_index[] = "none";
static const char foreign_index[] = "foreign";
static const char broken_index[] = "broken"; /* the names in it are unknown */
static const char ending[] = ".safetensors";

static lade_status generation_error(const char *doing, const char *path) {
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "%s %s: %s", doing, ladei_loader_path_text(path), strerror(code));
}

/* --- names and ids ------------------------------------------------------------------------------------------------ */

/* Reads decimal digits, at most `most`; their number. */
static size_t digits_read(const char *text, size_t most, uint64_t *out) {
  size_t count = 0;
  for (*out = 0; count < most && text[count] >= '0' && text[count] <= '9'; count++)
    *out = *out * 10 + (uint64_t)(text[count] - '0');
  return count;
}

/* Of the save that has the id; 0: it is no id of lade's. */
static uint64_t id_number(const char *id) {
  uint64_t number;
  size_t length = digits_read(id, NUMBER_DIGITS, &number);
  bool good = id[length] == '-' && strspn(id + length + 1, "0123456789abcdef") == ID_RANDOM_DIGITS &&
              id[length + 1 + ID_RANDOM_DIGITS] == '\0';
  return good ? number : 0;
}

/* Without the ending that all names of files keep. */
static size_t stem_length(const char *name) {
  size_t length = strlen(name), end = strlen(ending);
  return length > end && strcmp(name + length - end, ending) == 0 ? length - end : length;
}

char *ladei_loader_generation_file_name(const ladei_loader_generation *generation, size_t number, size_t count) {
  const char *name = ladei_file_name(generation->path);
  size_t stem = stem_length(name);
  char *out;
  int made = asprintf(&out, "%.*s-%" PRIu64 "-%05zu-of-%05zu%s", (int)stem, name, generation->number, number + 1, count,
                      name + stem);
  return made < 0 ? NULL : out;
}

/* Of the save that gives such a name to one of its files; 0: none does. */
static uint64_t name_number(const ladei_loader_generation *generation, const char *entry, size_t length) {
  const char *name = ladei_file_name(generation->path);
  size_t stem = stem_length(name), at = stem + 1, digits;
  uint64_t number, part;
  if (length <= at || strncmp(entry, name, stem) != 0 || entry[stem] != '-') return 0;
  digits = digits_read(entry + at, NUMBER_DIGITS, &number);
  if (digits == 0 || entry[at] == '0' || entry[at + digits] != '-') return 0;
  at += digits + 1;
  if (digits_read(entry + at, PART_DIGITS, &part) != PART_DIGITS || strncmp(entry + at + PART_DIGITS, "-of-", 4) != 0 ||
      digits_read(entry + at + PART_DIGITS + 4, PART_DIGITS, &part) != PART_DIGITS)
    return 0;
  at += 2 * PART_DIGITS + 4;
  return length - at == strlen(name + stem) && strncmp(entry + at, name + stem, length - at) == 0 ? number : 0;
}

static void id_choose(ladei_loader_generation *generation) {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    number = (uint64_t)now.tv_sec << 30 ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 44;
  }
  snprintf(generation->id, sizeof generation->id, "%" PRIu64 "-%016" PRIx64, generation->number, number);
}

/* --- the index ---------------------------------------------------------------------------------------------------- */

/* Reads the index on disk and its save id. `out_id` as old_id; *out_index is NULL if there is none. */
static lade_status index_look(const ladei_loader_generation *generation, char out_id[LADEI_LOADER_SAVE_ID_BYTES],
                              json_t **out_index) {
  bool absent = false;
  lade_error before;
  *out_index = NULL;
  ladei_error_save(&before);
  lade_status status = ladei_loader_index_read(generation->folder, generation->index_name, out_index, &absent);
  bool broken = status == LADE_ERR_FORMAT || status == LADE_ERR_INVALID_ARGUMENT;
  if (status != LADE_OK && !absent && !broken)
    return ladei_error_prefix(status, "%s: ", ladei_loader_path_text(generation->index_name));
  const char *id = status == LADE_OK ? ladei_loader_index_save_id(*out_index) : NULL;
  snprintf(out_id, LADEI_LOADER_SAVE_ID_BYTES, "%s",
           absent                             ? no_index
           : broken                           ? broken_index
           : id != NULL && id_number(id) != 0 ? id
                                              : foreign_index);
  ladei_error_restore(&before);
  return LADE_OK;
}

/* Whether the index takes any tensor from the file, or from one of that name elsewhere (spellings of the path vary). */
static bool index_names(json_t *index, const char *entry) {
  const char *tensor;
  json_t *value;
  json_object_foreach(json_object_get(index, "weight_map"), tensor, value) {
    if (json_is_string(value) && strcmp(ladei_file_name(json_string_value(value)), entry) == 0) return true;
  }
  return false;
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

/* LADE_NOT_READY: it does not. Errors of reading: that is not known. */
static lade_status file_carries(const ladei_loader_generation *generation, const char *entry, const char *id) {
  ladei_loader_checkpoint_file file = {.fd = -1};
  lade_error before;
  ladei_error_save(&before);
  lade_status status = ladei_loader_checkpoint_file_read(generation->folder, entry, &file);
  bool other = status == LADE_ERR_FORMAT || status == LADE_ERR_INVALID_ARGUMENT;
  if (status == LADE_OK) other = file.header.save_id == NULL || strcmp(file.header.save_id, id) != 0;
  ladei_loader_checkpoint_file_dispose(&file);
  ladei_error_restore(&before);
  return other ? LADE_NOT_READY : status;
}

/* A walk through the folder. */
typedef struct orphan_walk {
  const char *dead; /* id whose files go; NULL: none */
  json_t *index;
  uint64_t highest; /* number in the names of files that stay; 0: there are none */
  bool left;        /* a file that is dead, or may be, is there still */
} orphan_walk;

static void entry_visit(const ladei_loader_generation *generation, const char *entry, orphan_walk *w) {
  size_t temporary = ladei_save_temporary_name(entry);
  if (temporary > 0 && name_number(generation, entry + 1, temporary) > 0 && generation->locked) {
    ladei_save_temporary_remove(generation->folder, entry);
    return;
  }
  uint64_t number = name_number(generation, entry, strlen(entry));
  if (number == 0) return;
  bool candidate = w->dead != NULL && number == id_number(w->dead) && !index_names(w->index, entry);
  lade_status carries = candidate ? file_carries(generation, entry, w->dead) : LADE_NOT_READY;
  bool gone = carries == LADE_OK && unlinkat(generation->folder, entry, 0) == 0;
  w->left = w->left || (carries != LADE_NOT_READY && !gone);
  w->highest = !gone && number > w->highest ? number : w->highest;
}

static lade_status folder_walk(const ladei_loader_generation *generation, orphan_walk *w) {
  const struct dirent *entry;
  int fd = openat(generation->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
  if (folder == NULL) {
    lade_status status = generation_error("reading the folder of", generation->path);
    if (fd >= 0) (void)close(fd);
    return status;
  }
  errno = 0;
  while ((entry = readdir(folder)) != NULL) {
    entry_visit(generation, entry->d_name, w);
    errno = 0;
  }
  lade_status status = errno == 0 ? LADE_OK : generation_error("reading the folder of", generation->path);
  closedir(folder);
  return status;
}

/* Which of two ids is dead, as the index on disk says; NULL: none is, for certain. */
static const char *dead_of(const char *index_id, const char *new_id, const char *old_id) {
  if (strcmp(index_id, new_id) == 0) return id_number(old_id) != 0 ? old_id : NULL;
  /* An index that was there and has gone may have been put aside, with its files here. */
  bool moved = strcmp(index_id, no_index) == 0 && strcmp(old_id, no_index) != 0;
  return moved || strcmp(index_id, broken_index) == 0 ? NULL : new_id;
}

/* --- the lock and the journal ------------------------------------------------------------------------------------- */

static bool lock_is_there(const ladei_loader_generation *generation) {
  struct stat of_name, of_file;
  return fstat(generation->lock, &of_file) == 0 &&
         fstatat(generation->folder, generation->lock_name, &of_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         of_name.st_dev == of_file.st_dev && of_name.st_ino == of_file.st_ino;
}

static void lock_close(ladei_loader_generation *generation) {
  if (generation->lock >= 0) {
    (void)flock(generation->lock, LOCK_UN); /* a child that was forked meanwhile has it open, too */
    (void)close(generation->lock);
  }
  generation->lock = -1;
}

static lade_status lock_error(const ladei_loader_generation *generation) {
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "locking %s: its lock file %s: %s", ladei_loader_path_text(generation->path),
                     ladei_loader_path_text(generation->lock_name), strerror(code));
}

static int lock_open(const ladei_loader_generation *generation, int more) {
  return openat(generation->folder, generation->lock_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | more, 0666);
}

/* One try. LADE_NOT_READY: the save before had just removed the lock file. */
static lade_status lock_try(ladei_loader_generation *generation) {
  generation->lock = lock_open(generation, O_CREAT | O_EXCL);
  bool own = generation->lock >= 0;
  bool other = !own && errno == EEXIST;
  if (other) generation->lock = lock_open(generation, 0);
  if (other && generation->lock < 0 && errno == ENOENT) return LADE_NOT_READY;
  if (generation->lock < 0) return lock_error(generation);
  if (ladei_file_lock(generation->lock)) {
    generation->locked = true;
    return lock_is_there(generation) ? LADE_OK : LADE_NOT_READY;
  }
  if (errno == EWOULDBLOCK) {
    return ladei_error(LADE_ERR_BUSY, EWOULDBLOCK,
                       "saving %s: another save of it is under way, which holds the lock %s",
                       ladei_loader_path_text(generation->path), ladei_loader_path_text(generation->lock_name));
  }
  bool unknown = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL;
  lade_status status = unknown ? LADE_OK : lock_error(generation);
  if (own && unknown) (void)unlinkat(generation->folder, generation->lock_name, 0); /* else: another save may have it */
  return status;
}

static lade_status lock_take(ladei_loader_generation *generation) {
  lade_status status = LADE_NOT_READY;
  for (int i = 0; i < LOCK_TRIES && status == LADE_NOT_READY; i++) {
    lock_close(generation);
    generation->locked = false;
    status = lock_try(generation);
  }
  if (status == LADE_NOT_READY) {
    status = ladei_error(LADE_ERR_BUSY, EWOULDBLOCK, "saving %s: its lock %s goes from one save to the next",
                         ladei_loader_path_text(generation->path), ladei_loader_path_text(generation->lock_name));
  }
  assert(status != LADE_OK || !generation->locked || generation->lock >= 0);
  if (status != LADE_OK || !generation->locked) {
    generation->locked = false;
    lock_close(generation);
  }
  return status;
}

/* Reads the journal of a killed save; false: there was none. */
static bool journal_read(const ladei_loader_generation *generation, char new_id[LADEI_LOADER_SAVE_ID_BYTES],
                         char old_id[LADEI_LOADER_SAVE_ID_BYTES]) {
  char text[JOURNAL_BYTES] = {0};
  return generation->locked && pread(generation->lock, text, sizeof text - 1, 0) > 0 &&
         sscanf(text, "new %39s\nold %39s\n", new_id, old_id) == 2 && id_number(new_id) != 0;
}

/* In one call: a process is killed before it or after it. */
static lade_status journal_write(const ladei_loader_generation *generation) {
  char text[JOURNAL_BYTES];
  int length = snprintf(text, sizeof text, "new %s\nold %s\n", generation->id, generation->old_id);
  ssize_t written = generation->locked ? pwrite(generation->lock, text, (size_t)length, 0) : length;
  if (written == length) return LADE_OK;
  if (written >= 0) errno = ENOSPC; /* a part of it fitted */
  return lock_error(generation);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static lade_status names_make(ladei_loader_generation *generation) {
  const char *name = ladei_file_name(generation->path);
  int made = asprintf(&generation->index_name, "%s.index.json", name);
  generation->index_name = made < 0 ? NULL : generation->index_name;
  made = asprintf(&generation->lock_name, ".%.200s.index.json.lade-lock", name);
  generation->lock_name = made < 0 ? NULL : generation->lock_name;
  return generation->index_name != NULL && generation->lock_name != NULL
             ? LADE_OK
             : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory");
}

/* I3: with one digit more the names of this save would not be recognised. */
static lade_status number_check(const ladei_loader_generation *generation) {
  return generation->number <= number_most
             ? LADE_OK
             : ladei_error(LADE_ERR_IO, EEXIST,
                           "saving %s: a file in its folder, or its index, has the number %" PRIu64
                           " of a save, and there is none above it",
                           ladei_loader_path_text(generation->path), number_most);
}

/* Rights of all but the owner; more than all: there is no such file. */
static int rights_count(const ladei_loader_generation *generation, const char *name) {
  struct stat facts;
  bool there = name != NULL && fstatat(generation->folder, name, &facts, 0) == 0 && S_ISREG(facts.st_mode);
  return there ? __builtin_popcount(facts.st_mode & (S_IRWXG | S_IRWXO)) : INT_MAX;
}

/* New files have new names, so they take the rights of one that they replace: of the files that the index names, the
 * index and a single file, the one that allows others least. */
static lade_status like_find(ladei_loader_generation *generation, json_t *index) {
  const char *tensor, *least = NULL, *before = generation->index_name;
  json_t *value;
  int least_rights = INT_MAX;
  const char *const whole[] = {generation->index_name, ladei_file_name(generation->path)};
  for (size_t i = 0; i < 2; i++) {
    int rights = rights_count(generation, whole[i]);
    if (rights < least_rights) least = whole[i], least_rights = rights;
  }
  json_object_foreach(json_object_get(index, "weight_map"), tensor, value) {
    const char *name = json_string_value(value);
    if (name == NULL || strcmp(name, before) == 0) continue;
    int rights = rights_count(generation, before = name);
    if (rights < least_rights) least = name, least_rights = rights;
  }
  generation->like = least != NULL ? strdup(least) : NULL;
  return least == NULL || generation->like != NULL ? LADE_OK
                                                   : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory");
}

/* Removes files of a killed save, and finds the number of this one. */
static lade_status folder_clean(ladei_loader_generation *generation) {
  char new_id[LADEI_LOADER_SAVE_ID_BYTES] = "", old_id[LADEI_LOADER_SAVE_ID_BYTES] = "";
  orphan_walk w = {.dead = NULL};
  lade_status status = index_look(generation, generation->old_id, &w.index);
  generation->pending = journal_read(generation, new_id, old_id);
  if (status == LADE_OK && generation->pending) w.dead = dead_of(generation->old_id, new_id, old_id);
  if (status == LADE_OK && w.dead == old_id && generation->sync && !ladei_folder_flush(generation->folder))
    status = generation_error("flushing the folder of", generation->path);
  if (status == LADE_OK) status = folder_walk(generation, &w);
  generation->pending = generation->pending && status != LADE_OK;
  assert(generation->locked || !generation->pending); /* a journal is read under its lock */
  uint64_t old = id_number(generation->old_id);
  generation->number = (old > w.highest ? old : w.highest) + 1;
  if (status == LADE_OK) status = like_find(generation, w.index);
  json_decref(w.index);
  return status == LADE_OK ? number_check(generation) : status;
}

lade_status ladei_loader_generation_begin(const char *path, bool sync, ladei_loader_generation *out) {
  ladei_loader_generation generation = {
      .begun = true, .path = path, .sync = sync, .folder = ladei_folder_open(path), .lock = -1};
  lade_status status = generation.folder >= 0 ? names_make(&generation) : generation_error("creating", path);
  if (status == LADE_OK) status = lock_take(&generation);
  if (status == LADE_OK) status = folder_clean(&generation);
  if (status == LADE_OK) {
    assert(generation.number > id_number(generation.old_id)); /* I3 */
    id_choose(&generation);
    status = journal_write(&generation);
  }
  *out = generation;
  return status;
}

lade_status ladei_loader_generation_random(const char *path, ladei_loader_generation *out) {
  ladei_loader_generation generation = {.path = path, .folder = -1, .lock = -1};
  lade_status status = names_make(&generation);
  id_choose(&generation);
  generation.number = strtoull(strrchr(generation.id, '-') + 1, NULL, 16) % number_most + 1;
  id_choose(&generation);
  *out = generation;
  return status;
}

/* True: nothing of this save is left that the next one would have to remove. */
static bool rest_remove(const ladei_loader_generation *generation, bool good) {
  char index_id[LADEI_LOADER_SAVE_ID_BYTES];
  orphan_walk w = {.dead = NULL};
  assert(generation->begun && generation->folder >= 0);
  if (generation->id[0] == '\0') return !generation->pending; /* it did not come so far */
  bool clean = index_look(generation, index_id, &w.index) == LADE_OK;
  w.dead = clean ? dead_of(index_id, generation->id, generation->old_id) : NULL;
  if (w.dead == generation->old_id && !good) {
    w.dead = NULL;
    clean = false;
  }
  clean = clean && (w.dead == NULL || (folder_walk(generation, &w) == LADE_OK && !w.left));
  json_decref(w.index);
  return clean;
}

void ladei_loader_generation_end(ladei_loader_generation *generation, bool good) {
  lade_error before;
  bool has_folder = generation->begun && generation->folder >= 0;
  ladei_error_save(&before);
  if (has_folder && rest_remove(generation, good) && generation->locked)
    (void)unlinkat(generation->folder, generation->lock_name, 0);
  if (generation->begun) lock_close(generation);
  if (has_folder) (void)close(generation->folder);
  free(generation->index_name);
  free(generation->lock_name);
  free(generation->like);
  *generation = (ladei_loader_generation){0};
  ladei_error_restore(&before);
}

lade_status ladei_loader_generation_check(const char *path, bool several) {
  ladei_loader_generation generation = {0};
  ladei_save *save = NULL;
  char *index = NULL;
  lade_status status = ladei_save_begin(path, &save);
  if (status == LADE_OK) status = ladei_save_end(save, false);
  if (status == LADE_OK && several) {
    status = ladei_loader_generation_begin(path, true, &generation); /* it may remove files: I2 */
    ladei_loader_generation_end(&generation, false);
  }
  if (status == LADE_OK && several) {
    bool made = asprintf(&index, "%s.index.json", path) >= 0;
    status = made ? ladei_save_begin(index, &save) : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "save: no memory");
    if (status == LADE_OK) status = ladei_save_end(save, false);
    free(made ? index : NULL);
  }
  return status;
}
