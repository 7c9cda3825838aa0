/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the variables LADE_PRELOAD_..., and finds wrong names and values.
 *
 * I1  A variable of that prefix that is not in the table is an error, as is a value that its row does not take: a
 *     typing mistake must not run a program in another mode than the requested one.
 * I2  With an error the mode is PRELOAD_OFF.
 * Locks: `once` only.
 */
#include "preload/settings.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "LADE_PRELOAD_"
#define MIB    ((uint64_t)1 << 20)

typedef bool variable_read(const char *value, void *field);
typedef struct setting_row {
  const char *name; /* after the prefix */
  const char *expected;
  variable_read *read;
  size_t offset;
} setting_row;

enum { WORDS = 3 };

static bool word_find(const char *const words[WORDS], const char *value, unsigned *out) {
  for (unsigned i = 0; i < WORDS; i++) {
    if (strcmp(value, words[i]) != 0) continue;
    *out = i;
    return true;
  }
  return false;
}

static bool mode_read(const char *value, void *field) {
  static const char *const words[WORDS] = {[PRELOAD_SAFE] = "safe", [PRELOAD_FAST] = "fast", [PRELOAD_OFF] = "off"};
  unsigned found;
  if (!word_find(words, value, &found)) return false;
  *(preload_mode *)field = (preload_mode)found;
  return true;
}

static bool device_read(const char *value, void *field) {
  static const char *const words[WORDS] = {
      [PRELOAD_DEVICE_OFF] = "off", [PRELOAD_DEVICE_MALLOC] = "malloc", [PRELOAD_DEVICE_ALL] = "all"};
  unsigned found;
  if (!word_find(words, value, &found)) return false;
  *(preload_device_calls *)field = (preload_device_calls)found;
  return true;
}

/* A copy: programs overwrite their environment to change their name in ps. */
static bool path_read(const char *value, void *field) {
  char *path = value[0] == '\0' ? NULL : strdup(value);
  if (path != NULL) *(const char **)field = path;
  return path != NULL;
}

/* A number, then nothing, K, M, G or T, each of these with "iB" or without. */
static bool size_read(const char *value, void *field) {
  static const char letters[] = "KMGT";
  char *end;
  if (!isdigit((unsigned char)value[0])) return false;
  errno = 0;
  unsigned long long number = strtoull(value, &end, 10);
  const char *letter = *end == '\0' ? NULL : strchr(letters, *end);
  unsigned shift = letter == NULL ? 0 : 10u * (unsigned)(letter - letters + 1);
  if (letter != NULL) end++;
  if (letter != NULL && strcmp(end, "iB") == 0) end += 2;
  if (errno != 0 || *end != '\0' || number > ((UINT64_C(1) << 60) >> shift)) return false;
  *(uint64_t *)field = (uint64_t)number << shift;
  return true;
}

/* The bounds are those of lade_pinned_options.segment_bytes. */
static bool segment_read(const char *value, void *field) {
  uint64_t bytes;
  if (!size_read(value, &bytes) || bytes < MIB || bytes > MIB * MIB || bytes % 4096 != 0) return false;
  *(uint64_t *)field = bytes;
  return true;
}

static bool cap_read(const char *value, void *field) {
  uint64_t bytes;
  if (!size_read(value, &bytes) || bytes < MIB) return false;
  *(uint64_t *)field = bytes;
  return true;
}

static const setting_row variables[] = {
    {"MODE", "safe, fast or off", mode_read, offsetof(preload_settings, mode)},
    {"DEVICE", "off, malloc or all", device_read, offsetof(preload_settings, device)},
    {"REPORT", "the name of a file", path_read, offsetof(preload_settings, report)},
    {"LIBRARY", "the path of liblade.so.0", path_read, offsetof(preload_settings, library)},
    {"MAX_BYTES", "a size of 1M and more, such as 8G", cap_read, offsetof(preload_settings, max_bytes)},
    {"SEGMENT_BYTES", "a multiple of 4K from 1M to 1T", segment_read, offsetof(preload_settings, segment_bytes)},
    {"PENDING_BYTES", "a size, such as 1G", size_read, offsetof(preload_settings, pending_bytes)},
};

static preload_settings settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void variable_take(const char *name, size_t name_bytes, const char *value) {
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    const setting_row *row = &variables[i];
    if (strlen(row->name) != name_bytes || memcmp(row->name, name, name_bytes) != 0) continue;
    if (!row->read(value, (char *)&settings + row->offset) && settings.wrong[0] == '\0')
      snprintf(settings.wrong, sizeof settings.wrong, PREFIX "%s is \"%.100s\"; expected %s", row->name, value,
               row->expected);
    return;
  }
  if (settings.wrong[0] == '\0')
    snprintf(settings.wrong, sizeof settings.wrong, "there is no variable " PREFIX "%.*s",
             (int)(name_bytes < 100 ? name_bytes : 100), name);
}

static void settings_read(void) {
  settings.pending_bytes = 1024 * MIB;
  for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
    if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0) continue;
    const char *name = *entry + strlen(PREFIX);
    const char *equals = strchr(name, '=');
    if (equals != NULL) variable_take(name, (size_t)(equals - name), equals + 1);
  }
  if (settings.wrong[0] != '\0') settings.mode = PRELOAD_OFF; /* I2 */
  if (settings.mode == PRELOAD_OFF) settings.device = PRELOAD_DEVICE_OFF;
}

const preload_settings *ladei_preload_settings(void) {
  pthread_once(&once, settings_read);
  return &settings;
}

void ladei_preload_settings_complain(void) {
  static atomic_bool told;
  if (ladei_preload_settings()->wrong[0] == '\0' || atomic_exchange(&told, true)) return;
  fprintf(stderr, "liblade_preload: %s; all calls go to the driver as they are\n", settings.wrong);
}
