/* SPDX-License-Identifier: Apache-2.0 */
/* LADE_STATS=exit: what is alive at exit is summed up, what was destroyed is not; not by children. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lade/config.h"
#include "lade/runtime.h"
#include "tests/shim/lade_test.h"

static lade_runtime *runtime;
static lade_pinned_pool *pool, *gone;
static lade_device_allocator *allocator;
static lade_pipeline *pipeline;

static int parts_make(void) {
  void *block = NULL;
  if (lade_runtime_open("sim", NULL, &runtime) != LADE_OK) return 1;
  if (lade_pinned_pool_create(runtime, NULL, &gone) != LADE_OK) return 2;
  if (lade_pinned_pool_create(runtime, NULL, &pool) != LADE_OK) return 3;
  if (lade_device_allocator_create(runtime, 0, NULL, &allocator) != LADE_OK) return 4;
  if (lade_pipeline_create(runtime, pool, NULL, &pipeline) != LADE_OK) return 5;
  if (lade_pinned_alloc(pool, 4096, &block) != LADE_OK || lade_pinned_alloc(gone, 4096, &block) != LADE_OK) return 6;
  if (lade_pinned_pool_destroy(gone, false) != LADE_ERR_BUSY) return 7; /* is listed again */
  return lade_pinned_free(gone, block) == LADE_OK && lade_pinned_pool_destroy(gone, true) == LADE_OK ? 0 : 8;
}

/* The file's text after a child that made the parts has exited. */
static void child_text(const char *path, bool forks, char text[4096]) {
  int status = -1;
  text[0] = '\0';
  pid_t child = fork();
  if (child == 0) {
    char variable[300];
    lade_config config;
    lade_config_init(&config);
    snprintf(variable, sizeof variable, "exit:%s", path);
    setenv("LADE_STATS", variable, 1);
    int code = lade_config_from_env(&config) == LADE_OK ? parts_make() : 9;
    if (forks && fork() == 0) exit(0);
    if (forks) wait(NULL);
    exit(code);
  }
  LADE_ASSERT(waitpid(child, &status, 0) == child && WIFEXITED(status));
  LADE_EXPECT_EQ_INT(WEXITSTATUS(status), 0);
  FILE *file = fopen(path, "r");
  LADE_ASSERT(file != NULL);
  size_t length = fread(text, 1, 4095, file);
  text[length] = '\0';
  fclose(file);
  unlink(path);
}

static int words_count(const char *text, const char *words) {
  int count = 0;
  for (const char *at = text; (at = strstr(at, words)) != NULL; at++) count++;
  return count;
}

LADE_TEST(Stats, LivingObjectsAreSummedUpAtExit) {
  const char *folder = getenv("TEST_TMPDIR");
  char path[256], text[4096];
  snprintf(path, sizeof path, "%s/stats_%d", folder != NULL ? folder : "/tmp", (int)getpid());
  for (int forks = 0; forks < 2; forks++) {
    child_text(path, forks != 0, text);
    LADE_EXPECT_EQ_INT(words_count(text, ": pinned pool "), 1);
    LADE_EXPECT_EQ_INT(words_count(text, ": device allocator "), 1);
    LADE_EXPECT_EQ_INT(words_count(text, ": pipeline "), 1);
    LADE_EXPECT_CONTAINS_STR(text, "in use 4096 (most 4096)");
    LADE_EXPECT_EQ_INT(words_count(text, "at exit: 3 pools, allocators and pipelines are alive"), 1);
    LADE_EXPECT_EQ_INT(words_count(text, "at exit:"), 1); /* a child of fork() writes none */
  }
}

LADE_TEST(Stats, BadVariablesAreRefused) {
  static const char *const bad[] = {"atexit", "exit:", "exit:/no/such/folder/file"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    lade_config config;
    lade_config_init(&config);
    setenv("LADE_STATS", bad[i], 1);
    LADE_EXPECT_STATUS(i < 2 ? LADE_ERR_CONFIG : LADE_ERR_IO, lade_config_from_env(&config));
    LADE_EXPECT_EQ_INT(strncmp(lade_last_error()->text, "LADE_STATS", 10), 0);
  }
  unsetenv("LADE_STATS");
}
