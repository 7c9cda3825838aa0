/* SPDX-License-Identifier: Apache-2.0 */
/* Temporary folders of tests. */
#include "tests/support/temp_dir.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/shim/lade_test.h"
#include "tests/support/pattern.h"

static const char *temp_root(void) {
  static const char *const variables[] = {"TEST_TMPDIR", "TMPDIR"};
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const char *value = getenv(variables[i]);
    if (value != NULL && *value != '\0') return value;
  }
  return "/tmp";
}

bool support_temp_dir_create(support_temp_dir *dir) {
  int length = snprintf(dir->path, sizeof dir->path, "%s/lade_test_XXXXXX", temp_root());
  if (length < 0 || (size_t)length >= sizeof dir->path || mkdtemp(dir->path) == NULL) {
    LADE_FAIL("no temporary folder under %s: %s", temp_root(), strerror(errno));
    return false;
  }
  return true;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where) {
  (void)status, (void)kind, (void)where;
  if (remove(path) != 0) LADE_FAIL("cannot remove %s: %s", path, strerror(errno));
  return 0;
}

void support_temp_dir_remove(support_temp_dir *dir) {
  /* Depth first, not following links: only what the test made goes. */
  if (nftw(dir->path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
    LADE_FAIL("cannot walk %s: %s", dir->path, strerror(errno));
}

char *support_temp_dir_path(const support_temp_dir *dir, const char *name) {
  char *path;
  if (asprintf(&path, "%s/%s", dir->path, name) < 0) abort();
  return path;
}

void support_temp_dir_write(const support_temp_dir *dir, const char *name, const char *text) {
  char *path = support_temp_dir_path(dir, name);
  for (char *slash = path + strlen(dir->path) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    mkdir(path, 0700);
    *slash = '/';
  }
  support_file_write(path, text, strlen(text));
  free(path);
}

char *support_file_read(const char *path, size_t *out_bytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    LADE_FAIL("cannot read %s: %s", path, strerror(errno));
    return NULL;
  }
  fseek(file, 0, SEEK_END);
  size_t bytes = (size_t)ftell(file);
  rewind(file);
  char *data = malloc(bytes + 1);
  if (data == NULL || fread(data, 1, bytes, file) != bytes) LADE_FAIL("cannot read %s", path);
  fclose(file);
  *out_bytes = bytes;
  return data;
}

void support_file_write(const char *path, const void *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (file == NULL) {
    LADE_FAIL("cannot make %s: %s", path, strerror(errno));
    return;
  }
  bool written = fwrite(data, 1, bytes, file) == bytes;
  if (fclose(file) != 0 || !written) LADE_FAIL("cannot write %zu bytes to %s: %s", bytes, path, strerror(errno));
}

bool support_temp_file_write(const char *path, size_t bytes, uint64_t seed) {
  FILE *file = fopen(path, "wb");
  if (file == NULL) {
    LADE_FAIL("cannot make %s: %s", path, strerror(errno));
    return false;
  }
  bool written = true;
  unsigned char piece[1 << 16];
  for (size_t done = 0; done < bytes && written;) {
    size_t count = bytes - done < sizeof piece ? bytes - done : sizeof piece;
    support_pattern_fill(piece, count, seed, done);
    written = fwrite(piece, 1, count, file) == count;
    done += count;
  }
  if (fclose(file) != 0) written = false;
  if (!written) LADE_FAIL("cannot write %zu bytes to %s: %s", bytes, path, strerror(errno));
  return written;
}

size_t support_names_count(const char *path) {
  size_t count = 0;
  DIR *folder = opendir(path);
  if (folder == NULL) {
    LADE_FAIL("cannot open %s", path);
    return 0;
  }
  for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
    count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
  closedir(folder);
  return count;
}
