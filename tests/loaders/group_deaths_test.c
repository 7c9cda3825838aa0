/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that load together, one of which is killed at any call of the driver: none of the others hangs, and each says who died. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/group/ranks.h"
#include "tests/loaders/fixture.h"
#include "tests/shim/lade_test.h"
#include "tests/support/interposer.h"

enum { SIZE = 3, LONGEST_MS = 40000 };

/* What a process found. */
typedef struct verdict {
  int32_t status;
  uint32_t calls; /* of the driver */
  char text[496];
} verdict;

typedef struct plan {
  const char *name, *path;
  uint32_t victim; /* SIZE: nobody */
  uint32_t at;     /* which call of the driver it does not live to see */
} plan;

/* --- one rank ----------------------------------------------------------------------------------------------------- */

typedef struct death {
  uint32_t calls, at; /* at 0: never */
} death;

static void call_count(void *user, const char *op) {
  death *d = user;
  (void)op;
  if (__atomic_add_fetch(&d->calls, 1, __ATOMIC_RELAXED) == d->at) (void)raise(SIGKILL);
}

static lade_status rank_load(lade_runtime *runtime, lade_group *group, const char *path) {
  static const lade_load_rule rule = {.pattern = "s*", .spread = LADE_SPREAD_SLICE, .dim = 1};
  fixture f;
  lade_safetensors *file = NULL;
  lade_tensor_load *load = NULL;
  lade_load_options options;
  lade_load_options_init(&options);
  options.group = group;
  options.rules = &rule;
  options.rule_count = 1;
  options.part_bytes = 4096;
  lade_status status = fixture_open_some(&f, runtime, 1);
  if (status == LADE_OK) status = lade_safetensors_open(path, &file);
  if (status == LADE_OK) status = lade_safetensors_load(file, f.targets, 1, &options, &load);
  return status; /* the process ends with all of it */
}

static void rank_main(const plan *p, uint32_t rank, int out) {
  verdict v = {0};
  death d = {.at = rank == p->victim ? p->at : 0};
  lade_group_local_options options;
  lade_group *group = NULL;
  lade_runtime *runtime = support_interposer_open("cpu", NULL);
  if (runtime == NULL) _exit(2);
  support_on_call(runtime, call_count, &d);
  lade_group_local_options_init(&options);
  options.name = p->name;
  options.rank = rank;
  options.size = SIZE;
  options.timeout_ns = UINT64_C(30000000000);
  options.slot_bytes = 4096;
  options.slots = 3;
  lade_status status = lade_group_create_local(runtime, &options, &group);
  if (status == LADE_OK) status = rank_load(runtime, group, p->path);
  v.status = (int32_t)status;
  v.calls = __atomic_load_n(&d.calls, __ATOMIC_RELAXED);
  if (status != LADE_OK) (void)snprintf(v.text, sizeof v.text, "%s", lade_last_error()->text);
  (void)!write(out, &v, sizeof v);
  _exit(0);
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

/* False where the process died without a verdict. Fails the test where it takes too long. */
static bool verdict_read(int in, uint32_t rank, verdict *out) {
  struct pollfd p = {.fd = in, .events = POLLIN};
  int ready = poll(&p, 1, LONGEST_MS);
  if (ready <= 0) LADE_FAIL("rank %u hangs", (unsigned)rank);
  return ready > 0 && read(in, out, sizeof *out) == (long)sizeof *out;
}

/* Calls of the driver that the victim lived to see; 0: it was killed. */
static uint32_t processes_run(const plan *p, verdict *verdicts) {
  pid_t pids[SIZE];
  int pipes[SIZE][2];
  uint32_t calls = 0;
  for (uint32_t i = 0; i < SIZE; i++) {
    LADE_EXPECT_EQ_INT(pipe(pipes[i]), 0);
    pids[i] = fork();
    if (pids[i] == 0) {
      for (uint32_t k = 0; k <= i; k++) (void)close(pipes[k][0]);
      rank_main(p, i, pipes[i][1]);
    }
    (void)close(pipes[i][1]);
  }
  for (uint32_t i = 0; i < SIZE; i++) {
    bool told = verdict_read(pipes[i][0], i, &verdicts[i]);
    if (told && i == p->victim) calls = verdicts[i].calls;
    if (!told && i != p->victim) LADE_FAIL("rank %u died, too", (unsigned)i);
    (void)close(pipes[i][0]);
    (void)kill(pids[i], SIGKILL);
    (void)waitpid(pids[i], NULL, 0);
  }
  return calls;
}

static void checkpoint_write(const char *path) {
  fixture_safetensors_write(path,
                            "{\"replicated\":{\"dtype\":\"U8\",\"shape\":[10000],\"data_offsets\":[0,10000]},"
                            "\"sliced\":{\"dtype\":\"U8\",\"shape\":[100,150],\"data_offsets\":[10000,25000]}}",
                            25000);
}

/* Kills one rank at each call of the driver, some calls apart, until it gets through. */
static void victim_try(uint32_t victim, uint32_t step) {
  support_temp_dir dir;
  verdict verdicts[SIZE];
  char name[64], words[32];
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "model.safetensors");
  checkpoint_write(path);
  (void)snprintf(words, sizeof words, "rank %u", (unsigned)victim);
  uint32_t lived = 0, deaths = 0;
  /* The first call is made before the ranks meet: who dies there never came. */
  for (uint32_t at = 2; lived == 0 && !lade_test_has_failed(); at += step) {
    ranks_name(name, sizeof name);
    lade_test_context("rank %u killed at call %u", (unsigned)victim, (unsigned)at);
    lived = processes_run(&(plan){name, path, victim, at}, verdicts);
    deaths += lived == 0;
    for (uint32_t i = 0; i < SIZE; i++) {
      if (i == victim) continue;
      if (lived > 0) LADE_EXPECT_EQ_INT(verdicts[i].status, LADE_OK);
      if (lived > 0 || verdicts[i].status == LADE_OK) continue; /* it died behind its part */
      LADE_EXPECT_EQ_INT(verdicts[i].status, LADE_ERR_PEER);
      if (strstr(verdicts[i].text, words) == NULL) LADE_FAIL("rank %u says: %s", (unsigned)i, verdicts[i].text);
    }
  }
  lade_test_context("%s", "");
  LADE_EXPECT_GE_UINT(deaths, 5);
  free(path);
  support_temp_dir_remove(&dir);
}

LADE_TEST(GroupDeaths, TheRankThatHandsOutTheMemory) { victim_try(0, 23); }
LADE_TEST(GroupDeaths, AnotherRank) { victim_try(2, 17); }

LADE_TEST(GroupDeaths, NobodyDies) {
  support_temp_dir dir;
  verdict verdicts[SIZE];
  char name[64];
  if (!support_temp_dir_create(&dir)) return;
  char *path = support_temp_dir_path(&dir, "model.safetensors");
  checkpoint_write(path);
  ranks_name(name, sizeof name);
  (void)processes_run(&(plan){name, path, SIZE, 0}, verdicts);
  for (uint32_t i = 0; i < SIZE; i++) LADE_EXPECT_EQ_INT(verdicts[i].status, LADE_OK);
  free(path);
  support_temp_dir_remove(&dir);
}
