/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Has python3 convert a pickle into lade's JSON, by the source of python/lade/pickles.py, which is part of this program.
 * The other process is where a hostile file may do what it likes with memory; it reads data alone, and ends with it.
 *
 *   FILE --> python3 -I -c SOURCE FILE --> standard output: a file without a name --> lade_snapshot_read()
 */
#include "tools/common/pickle.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

static const char source[] =
#include "tools/common/pickles.inc"
    ;

enum { CONVERTED = 0, BROKEN = 2, TOO_LARGE = 3 }; /* exit statuses of pickles.py */

extern char **environ;

bool pickle_is_one(const char *path) {
  unsigned char first = 0;
  struct stat facts;
  if (stat(path, &facts) != 0 || !S_ISREG(facts.st_mode)) return false;
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  bool read = fread(&first, 1, 1, file) == 1;
  fclose(file);
  return read && first == 0x80;
}

static lade_status system_error(const char *path, const char *what, int code) {
  return ladei_error(LADE_ERR_IO, code, "%s: a pickle; %s: %s", path, what, strerror(code));
}

/* Runs python3 with its output in the descriptor. `out_end` is as waitpid() tells. */
static lade_status python_run(const char *path, int output, int *out_end) {
  char *arguments[] = {"python3", "-I", "-c", (char *)source, (char *)path, NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  (void)signal(SIGCHLD, SIG_DFL); /* where it is ignored, no end of a child is kept for waitpid() */
  int code = posix_spawn_file_actions_init(&actions);
  if (code != 0) return system_error(path, "python3 cannot be run", code);
  code = posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  if (code == 0) code = posix_spawnp(&child, arguments[0], &actions, NULL, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (code == ENOENT)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "%s: a pickle; python3, which reads it, is not on PATH", path);
  if (code != 0) return system_error(path, "python3 cannot be run", code);
  while (waitpid(child, out_end, 0) < 0)
    if (errno != EINTR) return system_error(path, "python3 cannot be waited for", errno);
  return LADE_OK;
}

/* The reason that the other process left in place of JSON. */
static lade_status refusal(const char *path, int end, const char *text, size_t bytes) {
  int status = WIFEXITED(end) ? WEXITSTATUS(end) : -1;
  if (status != BROKEN && status != TOO_LARGE)
    return ladei_error(LADE_ERR_IO, 0, "%s: a pickle; python3 failed, %s %d", path, status < 0 ? "signal" : "status",
                       status < 0 ? WTERMSIG(end) : status);
  while (bytes > 0 && text[bytes - 1] == '\n') bytes--;
  return ladei_error(status == BROKEN ? LADE_ERR_INVALID_ARGUMENT : LADE_ERR_LIMIT, 0, "%s: %.*s", path,
                     bytes > 400 ? 400 : (int)bytes, text);
}

static lade_status output_read(const char *path, int output, int end, lade_snapshot **out) {
  struct stat facts;
  if (fstat(output, &facts) != 0) return system_error(path, "its JSON is lost", errno);
  size_t bytes = (size_t)facts.st_size;
  char *text = bytes == 0 ? NULL : mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, output, 0);
  if (text == MAP_FAILED) return system_error(path, "its JSON cannot be read", errno);
  bool converted = WIFEXITED(end) && WEXITSTATUS(end) == CONVERTED;
  lade_status status = converted ? lade_snapshot_read(text, bytes, path, out) : refusal(path, end, text, bytes);
  if (text != NULL) munmap(text, bytes);
  return status;
}

lade_status pickle_open(const char *path, lade_snapshot **out) {
  int end = 0, output = memfd_create("lade-pickle", MFD_CLOEXEC);
  if (output < 0) return system_error(path, "no room for its JSON", errno);
  lade_status status = python_run(path, output, &end);
  if (status == LADE_OK) status = output_read(path, output, end, out);
  close(output);
  return status;
}
