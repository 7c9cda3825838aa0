/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/comma_locale.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/temp_dir.h"

static bool locale_set(const char *name) {
  return setlocale(LC_ALL, name) != NULL && strcmp(localeconv()->decimal_point, ",") == 0;
}

/* Its messages are nobody's. */
static bool locale_make(char *path) {
  char *const arguments[] = {"localedef", "--no-archive", "-i", "de_DE", "-f", "UTF-8", path, NULL};
  pid_t child = fork();
  if (child == 0) {
    (void)!freopen("/dev/null", "w", stdout);
    (void)!freopen("/dev/null", "w", stderr);
    execvp(arguments[0], arguments);
    _exit(127);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* glibc looks for locales in the folder LOCPATH. */
static bool made_locale_set(void) {
  support_temp_dir dir;
  if (!support_temp_dir_create(&dir)) return false;
  char *path = support_temp_dir_path(&dir, "comma");
  bool set = locale_make(path) && setenv("LOCPATH", dir.path, 1) == 0 && locale_set("comma");
  unsetenv("LOCPATH");
  free(path);
  support_temp_dir_remove(&dir);
  return set;
}

bool support_comma_locale_begin(void) {
  static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (locale_set(names[i])) return true;
  if (made_locale_set()) return true;
  setlocale(LC_ALL, "C");
  return false;
}

void support_comma_locale_end(void) { setlocale(LC_ALL, "C"); }
