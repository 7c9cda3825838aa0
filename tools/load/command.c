/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `lade load`: brings files to devices, reports the speed, and verifies the bytes.
 *
 * Files are loaded one after the other, and freed after each.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/common/options.h"
#include "tools/common/report.h"
#include "tools/common/subcommand.h"
#include "tools/load/stage.h"
#include "tools/load/verify.h"

enum { KEY_DIRECT = 256, KEY_JSON, KEY_LIST, KEY_REPEAT, KEY_RUNTIME, KEY_STORAGE, KEY_TO, KEY_VERIFY };
enum { REPEAT_MOST = 1000 };
static const uint64_t glance_ns = 100 * 1000000; /* between two updates of the progress */

typedef struct load_arguments {
  const char *runtime; /* NULL: the best found */
  const char *to;
  char storage[32]; /* a setting, "storage:uring"; empty: that of the environment */
  unsigned repeat;
  bool direct, json, list, verify;
  char **files;
  int file_count;
} load_arguments;

/* How the bytes of files were moved: lade_pipeline_info, all devices together. */
typedef struct moved_bytes {
  uint64_t pread, uring, cufile, url, direct; /* the last: of pread and uring */
} moved_bytes;

/* The result for one file. */
typedef struct outcome {
  const char *source; /* a path, or a URL */
  char *path;         /* for messages and reports: a URL without its query */
  bool is_checkpoint;
  uint64_t files, tensors, bytes;
  double seconds, first_seconds;
  bool verified;
  unsigned pass; /* from 1 */
  moved_bytes moved;
} outcome;

static const char documentation[] =
    "Loads checkpoints (.safetensors; .json is the index of several; or a URL of either) and other files to device "
    "memory, one after the other, and reports bytes, time and rate. A checkpoint's header is checked strictly; over "
    "several devices its tensors are "
    "spread."
    "\vDEVICE is an ordinal, several with commas between them, or all; cuda:0 also names the runtime.\n"
    "LADE_ALLOC_CONF holds settings, such as storage:pread (docs/tuning.md).\n"
    "Exit status: 0; 1 if anything failed or differs, or had no bytes to verify; 2 for the command line.";

static const struct argp_option option_table[] = {
    {"to", KEY_TO, "DEVICE", 0, "Where to load to (default: 0)", 0},
    {"verify", KEY_VERIFY, NULL, 0, "Copy back what arrived, and compare it with the file by checksum; not of a URL",
     0},
    {"list", KEY_LIST, NULL, 0, "Also list the tensors of checkpoints, in text", 0},
    {"direct", KEY_DIRECT, NULL, 0, "Read past the page cache (O_DIRECT)", 0},
    {"storage", KEY_STORAGE, "NAME", 0, "auto, pread, uring or cufile (default: auto, or as LADE_ALLOC_CONF says)", 0},
    {"repeat", KEY_REPEAT, "N", 0, "Load each file so many times, and report each", 0},
    {"json", KEY_JSON, NULL, 0, "Print JSON (docs/formats.md)", 0},
    OPTION_RUNTIME(KEY_RUNTIME),
    {0}};

/* As the setting of that name. */
static void storage_read(load_arguments *a, const char *name, struct argp_state *state) {
  lade_config config;
  lade_config_init(&config);
  int length = snprintf(a->storage, sizeof a->storage, "storage:%s", name);
  if (length < 0 || (size_t)length >= sizeof a->storage || strpbrk(name, ":,") != NULL ||
      lade_config_parse(a->storage, &config) != LADE_OK)
    argp_error(state, "--storage: '%s' is none of auto, pread, uring, cufile", name);
}

static error_t option_parse(int key, char *argument, struct argp_state *state) {
  load_arguments *a = state->input;
  switch (key) {
  case KEY_DIRECT: a->direct = true; return 0;
  case KEY_REPEAT: a->repeat = (unsigned)option_number("--repeat", argument, 1, REPEAT_MOST, state); return 0;
  case KEY_STORAGE: storage_read(a, argument, state); return 0;
  case KEY_JSON: a->json = true; return 0;
  case KEY_LIST: a->list = true; return 0;
  case KEY_VERIFY: a->verify = true; return 0;
  case KEY_TO:
    if (!stage_devices_are_good(argument))
      argp_error(state, "--to: '%s' is no list of devices; expected " STAGE_DEVICES_EXPECTED, argument);
    a->to = argument;
    return 0;
  case KEY_RUNTIME: a->runtime = option_runtime(argument, state); return 0;
  case ARGP_KEY_ARGS:
    a->files = state->argv + state->next;
    a->file_count = state->argc - state->next;
    return 0;
  case ARGP_KEY_NO_ARGS: argp_error(state, "which files?"); return EINVAL;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static bool is_url(const char *path) {
  return strncasecmp(path, "s3://", 5) == 0 || strncasecmp(path, "http://", 7) == 0 ||
         strncasecmp(path, "https://", 8) == 0;
}

static bool path_ends(const char *path, const char *ending) {
  size_t length = strlen(path), end = strlen(ending);
  return length >= end && strcmp(path + length - end, ending) == 0;
}

/* --- what moved the bytes ---------------------------------------------------------------------------------------- */

/* Until now. `note`: why something asked for was not used; at least 160 bytes. */
static moved_bytes moved_now(const stage *s, char *note) {
  moved_bytes all = {0};
  note[0] = '\0';
  for (size_t i = 0; i < s->count; i++) {
    lade_pipeline_info info;
    lade_pipeline_info_init(&info);
    if (lade_pipeline_info_get(s->targets[i].pipeline, &info) != LADE_OK) continue;
    all.pread += info.bytes_by_pread;
    all.uring += info.bytes_by_uring;
    all.cufile += info.bytes_by_cufile;
    all.url += info.bytes_by_url;
    all.direct += info.bytes_direct;
    if (info.storage_note[0] != '\0') memcpy(note, info.storage_note, sizeof info.storage_note);
  }
  return all;
}

/* When all is there, and nothing has been verified. */
static void outcome_moved(const stage *s, outcome *o) {
  char note[sizeof((lade_pipeline_info *)0)->storage_note];
  o->moved = moved_now(s, note);
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

static void tensors_list(const lade_safetensors *file) {
  for (uint64_t i = 0; i < lade_safetensors_count(file); i++) {
    lade_tensor_info info;
    lade_tensor_info_init(&info);
    if (lade_safetensors_tensor(file, i, &info) != LADE_OK) return;
    printf("  %-12s %12llu  ", lade_dtype_name((lade_dtype)info.dtype), (unsigned long long)info.bytes);
    name_print(stdout, info.name);
    fputs(" [", stdout);
    for (uint64_t j = 0; j < info.rank; j++) printf("%s%llu", j > 0 ? ", " : "", (unsigned long long)info.shape[j]);
    puts("]");
  }
}

/* Waits and shows the progress. */
static bool load_wait(const stage *s, lade_tensor_load *load, outcome *o, double began) {
  progress bar;
  lade_status status = LADE_OK;
  progress_begin(&bar, s, o->path);
  if (o->tensors > 0) {
    status = lade_tensor_load_wait(load, 0, LADE_WAIT_FOREVER);
    o->first_seconds = stage_seconds(s) - began;
  }
  while (status == LADE_OK || status == LADE_ERR_TIMEOUT) {
    lade_load_info info;
    lade_load_info_init(&info);
    status = lade_tensor_load_wait(load, LADE_LOAD_ALL, stage_is_virtual(s) ? LADE_WAIT_FOREVER : glance_ns);
    (void)lade_tensor_load_query(load, &info);
    o->bytes = info.bytes;
    if (status == LADE_OK || stage_is_virtual(s)) break;
    progress_show(&bar, s, info.bytes_done, info.bytes);
  }
  o->seconds = stage_seconds(s) - began;
  outcome_moved(s, o);
  progress_end(&bar);
  return status == LADE_OK || stage_failed(s, o->path);
}

/* The file whose tensors are compared now. Opened again, to be independent of the loading's descriptors. */
typedef struct verified_file {
  uint64_t number;
  int fd; /* -1: none */
} verified_file;

static bool verified_file_open(const stage *s, const lade_safetensors *file, uint64_t number, verified_file *out) {
  if (out->fd >= 0 && out->number == number) return true;
  if (out->fd >= 0) close(out->fd);
  *out = (verified_file){number, open(lade_safetensors_file_path(file, number), O_RDONLY | O_CLOEXEC)};
  if (out->fd < 0)
    message_print(s->command, lade_safetensors_file_path(file, number), "cannot be opened again: %s", strerror(errno));
  return out->fd >= 0;
}

static bool tensor_verify(const stage *s, const lade_safetensors *file, const lade_tensor_load *load, uint64_t i,
                          verified_file *opened) {
  lade_tensor_info info;
  void *memory;
  uint32_t target;
  lade_tensor_info_init(&info);
  if (lade_safetensors_tensor(file, i, &info) != LADE_OK ||
      lade_tensor_load_address(load, i, &memory, &target) != LADE_OK)
    return stage_failed(s, "tensor");
  if (!verified_file_open(s, file, info.file, opened)) return false;
  lade_status status = verify_range(s->targets[target].pipeline, opened->fd, info.offset, memory, info.bytes);
  return status == LADE_OK || stage_failed(s, info.name);
}

/* Tensors are numbered file by file, so each file is opened once. */
static bool checkpoint_verify(const stage *s, const lade_safetensors *file, const lade_tensor_load *load) {
  verified_file opened = {0, -1};
  bool good = true;
  for (uint64_t i = 0; i < lade_safetensors_count(file) && good; i++) good = tensor_verify(s, file, load, i, &opened);
  if (opened.fd >= 0) close(opened.fd);
  return good;
}

static bool checkpoint_load(const stage *s, const load_arguments *a, outcome *o) {
  lade_safetensors *file;
  lade_tensor_load *load;
  lade_load_options options;
  double began = stage_seconds(s);
  if (a->verify && is_url(o->source)) {
    message_print(s->command, o->path, "--verify compares with files, and this is a URL");
    return false;
  }
  lade_load_options_init(&options);
  options.file_flags = a->direct ? LADE_FILE_DIRECT : 0;
  if (lade_safetensors_open(o->source, &file) != LADE_OK) return stage_failed(s, "opening");
  o->is_checkpoint = true;
  o->files = 0;
  while (lade_safetensors_file_path(file, o->files) != NULL) o->files++;
  o->tensors = lade_safetensors_count(file);
  bool good = lade_safetensors_load(file, s->targets, s->count, &options, &load) == LADE_OK;
  if (!good) {
    stage_failed(s, o->path);
  } else {
    good = load_wait(s, load, o, began) && (!a->verify || checkpoint_verify(s, file, load));
    good = lade_tensor_load_destroy(load, false) == LADE_OK && good;
  }
  if (good && a->list && !a->json) tensors_list(file);
  lade_safetensors_close(file);
  return good;
}

/* --- other files -------------------------------------------------------------------------------------------------- */

static bool ticket_wait(const stage *s, lade_ticket *ticket, outcome *o) {
  progress bar;
  lade_status status;
  progress_begin(&bar, s, o->path);
  do {
    lade_ticket_info info;
    lade_ticket_info_init(&info);
    status = lade_ticket_wait(ticket, stage_is_virtual(s) ? LADE_WAIT_FOREVER : glance_ns);
    (void)lade_ticket_query(ticket, &info);
    if (status == LADE_ERR_TIMEOUT) progress_show(&bar, s, info.bytes_done, info.bytes);
  } while (status == LADE_ERR_TIMEOUT && !stage_is_virtual(s));
  progress_end(&bar);
  return status == LADE_OK || stage_failed(s, o->path);
}

static bool bytes_load(const stage *s, const load_arguments *a, int fd, outcome *o) {
  const lade_load_target *target = &s->targets[0];
  lade_transfer transfer;
  lade_ticket *ticket;
  void *memory;
  double began = stage_seconds(s);
  lade_transfer_init(&transfer);
  transfer.direction = LADE_TO_DEVICE;
  transfer.host = lade_endpoint_file(fd, 0, o->path);
  transfer.host.flags = a->direct ? LADE_FILE_DIRECT : 0;
  transfer.bytes = o->bytes;
  transfer.allocator = target->allocator;
  transfer.stream = target->stream;
  transfer.out_device_memory = &memory;
  if (lade_pipeline_submit(target->pipeline, &transfer, &ticket) != LADE_OK) return stage_failed(s, o->path);
  bool good = ticket_wait(s, ticket, o);
  o->seconds = stage_seconds(s) - began;
  outcome_moved(s, o);
  if (good && a->verify && verify_range(target->pipeline, fd, 0, memory, o->bytes) != LADE_OK)
    good = stage_failed(s, o->path);
  lade_ticket_release(ticket);
  return lade_device_free(target->allocator, memory) == LADE_OK && good;
}

static bool other_load(const stage *s, const load_arguments *a, outcome *o) {
  struct stat facts;
  int fd = open(o->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* open() of a pipe must not wait */
  if (fd < 0 || fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    int reason = errno;
    message_print(s->command, o->path, "%s", fd < 0 ? strerror(reason) : "no regular file");
    if (fd >= 0) close(fd);
    return false;
  }
  o->files = 1;
  o->bytes = (uint64_t)facts.st_size;
  bool good = bytes_load(s, a, fd, o);
  close(fd);
  return good;
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

/* ", by io_uring with O_DIRECT (4096 bytes through the page cache)". Reads of the verification do not count. */
static void moved_print(const moved_bytes *moved) {
  const uint64_t by[] = {moved->pread, moved->uring, moved->cufile, moved->url};
  static const char *const names[] = {"pread", "io_uring", "cuFile", "requests"};
  const char *word = ", by";
  for (size_t i = 0; i < sizeof by / sizeof by[0]; i++) {
    if (by[i] == 0) continue;
    printf("%s %s", word, names[i]);
    word = " and";
  }
  uint64_t kernel = moved->pread + moved->uring;
  if (moved->direct > 0) printf(" with O_DIRECT");
  if (moved->direct > 0 && moved->direct < kernel)
    printf(" (%llu bytes through the page cache)", (unsigned long long)(kernel - moved->direct));
}

static double rate(const outcome *o) { return o->seconds > 0 ? (double)o->bytes / o->seconds : 0; }

static void outcome_print(const load_arguments *a, const outcome *o) {
  name_print(stdout, o->path);
  fputs(": ", stdout);
  if (o->is_checkpoint) {
    printf("%llu tensors in %llu file%s, ", (unsigned long long)o->tensors, (unsigned long long)o->files,
           o->files == 1 ? "" : "s");
  }
  printf("%llu bytes in %.3f s, %.2f GB/s", (unsigned long long)o->bytes, o->seconds, rate(o) / 1e9);
  if (o->is_checkpoint && o->tensors > 0) printf(", first tensor after %.1f ms", 1e3 * o->first_seconds);
  moved_print(&o->moved);
  if (a->repeat > 1) printf(", pass %u", o->pass);
  puts(o->verified ? ", verified" : a->verify ? ", nothing to verify" : "");
}

static json_t *outcome_json(const outcome *o) {
  json_t *first = o->is_checkpoint && o->tensors > 0 ? json_real(o->first_seconds) : json_null();
  json_t *row = json_object();
  if (!path_json_put(row, o->path) ||
      json_object_update_new(
          row, json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:o, s:b, s:i, s:{s:I, s:I, s:I, s:I, s:I}}", "kind",
                         o->is_checkpoint ? "checkpoint" : "bytes", "files", (json_int_t)o->files, "tensors",
                         (json_int_t)o->tensors, "bytes", (json_int_t)o->bytes, "seconds", o->seconds, "bytes_per_s",
                         rate(o), "first_tensor_seconds", first, "verified", o->verified, "pass", (int)o->pass,
                         "bytes_by", "pread", (json_int_t)o->moved.pread, "io_uring", (json_int_t)o->moved.uring,
                         "cufile", (json_int_t)o->moved.cufile, "url", (json_int_t)o->moved.url, "direct",
                         (json_int_t)o->moved.direct)) != 0) {
    json_decref(row);
    return NULL;
  }
  return row;
}

static bool row_append(const stage *s, json_t *rows, const outcome *o) {
  bool good = json_array_append_new(rows, outcome_json(o)) == 0;
  if (!good) message_print(s->command, o->path, "no memory for the report");
  return good;
}

static bool file_load(const stage *s, const load_arguments *a, json_t *rows, outcome *o, char *note) {
  bool is_checkpoint = is_url(o->source) || path_ends(o->path, ".safetensors") ||
                       path_ends(o->path, ".json"); /* as lade_safetensors_open() */
  moved_bytes before = moved_now(s, note);
  bool loaded = is_checkpoint ? checkpoint_load(s, a, o) : other_load(s, a, o);
  o->moved.pread -= before.pread;
  o->moved.uring -= before.uring;
  o->moved.cufile -= before.cufile;
  o->moved.url -= before.url;
  o->moved.direct -= before.direct;
  o->verified = loaded && a->verify && o->bytes > 0;
  if (loaded && !a->json) outcome_print(a, o);
  if (loaded && a->json) loaded = row_append(s, rows, o);
  return loaded && o->verified == a->verify;
}

/* The caller's to free. Keys of s3 may have question marks. */
static char *path_shown(const char *path) {
  bool query = is_url(path) && strncasecmp(path, "s3://", 5) != 0;
  return strndup(path, query ? strcspn(path, "?") : strlen(path));
}

static bool files_load(const stage *s, const load_arguments *a) {
  char note[sizeof((lade_pipeline_info *)0)->storage_note];
  bool good = true;
  json_t *rows = json_array();
  for (int i = 0; i < a->file_count; i++) {
    for (unsigned pass = 1; pass <= a->repeat; pass++) {
      outcome o = {.source = a->files[i], .path = path_shown(a->files[i]), .pass = pass};
      bool loaded = o.path != NULL ? file_load(s, a, rows, &o, note) : stage_failed(s, "no memory");
      free(o.path);
      good = good && loaded;
      if (!loaded) break;
    }
  }
  (void)moved_now(s, note);
  bool asked = a->direct || a->storage[0] != '\0';
  if (asked && note[0] != '\0') message_print(s->command, NULL, "%s", note);
  json_t *report = json_pack("{s:i, s:s, s:o}", "version", 1, "runtime", lade_runtime_name(s->runtime), "files", rows);
  if (!a->json)
    json_decref(report);
  else if (report_print(s->command, report, JSON_INDENT(2)) != EXIT_FINE)
    good = false;
  return good;
}

static int command_load(int argc, char **argv) {
  static char name[] = "lade load";
  const struct argp argp = {option_table, option_parse, "FILE...", documentation, NULL, NULL, NULL};
  load_arguments a = {.to = "0", .repeat = 1};
  stage s;
  options_read(&argp, name, argc, argv, &a);
  if (!stage_open(&s, name, a.runtime, a.to, a.storage)) return EXIT_FAILED;
  bool good = files_load(&s, &a);
  return stage_close(&s) && good ? EXIT_FINE : EXIT_FAILED;
}

const subcommand subcommand_load = {
    "load", "load checkpoints and other files to device memory, with rate and verification", command_load};
