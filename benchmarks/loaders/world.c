/* SPDX-License-Identifier: Apache-2.0 */
#include "benchmarks/loaders/world.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "benchmarks/frame.h"
#include "benchmarks/messages.h"
#include "runtime/ops.h"

static bool option_read(world *w, const char *name, const char *value) {
  if (strcmp(name, "--runtime") == 0) {
    w->runtime_name = value;
    return true;
  }
  char *end;
  w->bytes = strtoull(value, &end, 10) << 20;
  return end != value && *end == '\0' && w->bytes > 0;
}

bool world_arguments(world *w, int *argc, char **argv) {
  int kept = 1;
  for (int i = 1; i < *argc; i++) {
    if (strcmp(argv[i], "--runtime") != 0 && strcmp(argv[i], "--mib") != 0) {
      argv[kept++] = argv[i];
    } else if (i + 1 == *argc || !option_read(w, argv[i], argv[i + 1])) {
      bench_error("%s needs a %s", argv[i], strcmp(argv[i], "--mib") == 0 ? "number" : "name");
      return false;
    } else {
      i++;
    }
  }
  argv[kept] = NULL;
  *argc = kept;
  return true;
}

bool world_succeeded(lade_status status) {
  if (status != LADE_OK) bench_lade_error("a call failed");
  return status == LADE_OK;
}

bool world_open(world *w) {
  if (w->stream != NULL) return true;
  snprintf(w->folder, sizeof w->folder, "%s/lade_loaders_XXXXXX", bench_temporary_folder());
  if (mkdtemp(w->folder) == NULL) {
    bench_error("%s: %s", w->folder, strerror(errno));
    w->folder[0] = '\0';
    return false;
  }
  return world_succeeded(lade_runtime_open(w->runtime_name, NULL, &w->runtime)) &&
         world_succeeded(lade_pair_create(w->runtime, 0, NULL, &w->pair)) &&
         world_succeeded(lade_stream_create(w->runtime, 0, &w->stream));
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *where) {
  (void)facts, (void)kind, (void)where;
  return remove(path);
}

bool world_close(world *w) {
  bool good = true;
  if (w->folder[0] != '\0') good = nftw(w->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0;
  if (w->stream != NULL) {
    good = world_succeeded(lade_device_stream_retire(lade_pair_device_allocator(w->pair), w->stream)) && good;
    good = world_succeeded(lade_stream_destroy(w->runtime, w->stream)) && good;
  }
  good = world_succeeded(lade_pair_destroy(w->pair, true)) && good;
  return world_succeeded(lade_runtime_close(w->runtime)) && good;
}

const char *world_path(const world *w, const char *name) {
  static char paths[8][512];
  static unsigned next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", w->folder, name);
  return path;
}

static bool file_read(int fd, uint64_t offset, uint64_t bytes, char *buffer) {
  for (uint64_t done = 0; done < bytes;) {
    ssize_t got = pread(fd, buffer + done, bytes - done, (off_t)(offset + done));
    if (got <= 0) {
      bench_error("the input cannot be read");
      return false;
    }
    done += (uint64_t)got;
  }
  return true;
}

bool world_read_copy(const world *w, int fd, uint64_t offset, uint64_t bytes, void *buffer, void *device) {
  return file_read(fd, offset, bytes, buffer) &&
         world_succeeded(w->runtime->ops->copy_sync(w->runtime->self, 0, LADEI_COPY_H2D, device, buffer, bytes));
}

bool world_transfer(const world *w, const lade_transfer *transfer) {
  lade_ticket *ticket;
  if (!world_succeeded(lade_pipeline_submit(lade_pair_pipeline(w->pair), transfer, &ticket))) return false;
  bool good = world_succeeded(lade_ticket_wait(ticket, LADE_WAIT_FOREVER));
  lade_ticket_release(ticket);
  return good;
}

bool world_verify(const world *w, int fd, uint64_t offset, uint64_t bytes, const void *device) {
  char *expected = malloc(bytes + 1), *found = malloc(bytes + 1);
  bool good = expected != NULL && found != NULL && file_read(fd, offset, bytes, expected) &&
              world_succeeded(w->runtime->ops->copy_sync(w->runtime->self, 0, LADEI_COPY_D2H, found, device, bytes));
  if (good && memcmp(expected, found, bytes) != 0) {
    bench_error("device memory does not hold what the file does");
    good = false;
  }
  free(expected);
  free(found);
  return good;
}
