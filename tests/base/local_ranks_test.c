/* SPDX-License-Identifier: Apache-2.0 */
/* What the variables of launchers say, and which of them are refused. */
#include "base/local_ranks.h"

#include <string.h>

#include "tests/shim/lade_test.h"

typedef struct variable {
  const char *name;
  char *value;
} variable;

/* Of the environment that is read, up to the one without a name. */
static const variable *environment;

static char *environment_get(const char *name) {
  for (const variable *v = environment; v->name != NULL; v++)
    if (strcmp(v->name, name) == 0) return v->value;
  return NULL;
}

static lade_status read_from(const variable *variables, ladei_local_ranks *out) {
  environment = variables;
  memset(out, 0xee, sizeof *out);
  return ladei_local_ranks_read(environment_get, out);
}

static void expect_ranks(const variable *variables, const char *launcher, ladei_local_ranks expected) {
  ladei_local_ranks ranks;
  LADE_ASSERT_OK(read_from(variables, &ranks));
  LADE_EXPECT_EQ_STR(ranks.launcher == NULL ? "none" : ranks.launcher, launcher);
  LADE_EXPECT_EQ_UINT(ranks.rank, expected.rank);
  LADE_EXPECT_EQ_UINT(ranks.count, expected.count);
  LADE_EXPECT_EQ_UINT(ranks.world_rank, expected.world_rank);
  LADE_EXPECT_EQ_UINT(ranks.world_count, expected.world_count);
}

static void expect_refused(const variable *variables, const char *words) {
  ladei_local_ranks ranks, before;
  memset(&before, 0xee, sizeof before);
  LADE_EXPECT_STATUS(LADE_ERR_CONFIG, read_from(variables, &ranks));
  LADE_EXPECT_EQ_INT(memcmp(&ranks, &before, sizeof before), 0);
  LADE_EXPECT_NE_PTR(strstr(lade_last_error()->text, words), NULL);
}

LADE_TEST(LocalRanks, NoLauncherIsOneOfOne) {
  const variable none[] = {{"HOME", "/"}, {NULL, NULL}};
  expect_ranks(none, "none", (ladei_local_ranks){.count = 1});
}

LADE_TEST(LocalRanks, EachLauncherIsUnderstood) {
  const variable torchrun[] = {
      {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "8"}, {"RANK", "19"}, {"WORLD_SIZE", "32"}, {NULL, NULL}};
  const variable ompi[] = {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"OMPI_COMM_WORLD_RANK", "5"},
                           {"OMPI_COMM_WORLD_SIZE", "6"},
                           {NULL, NULL}};
  const variable mpich[] = {
      {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}, {"PMI_RANK", "7"}, {"PMI_SIZE", "8"}, {NULL, NULL}};
  const variable slurm[] = {{"SLURM_LOCALID", "3"},
                            {"SLURM_NTASKS_PER_NODE", "4"},
                            {"SLURM_PROCID", "1048575"},
                            {"SLURM_NTASKS", "1048576"},
                            {NULL, NULL}};
  expect_ranks(torchrun, "torchrun", (ladei_local_ranks){NULL, 3, 8, 19, 32, NULL});
  expect_ranks(ompi, "Open MPI", (ladei_local_ranks){NULL, 1, 2, 5, 6, NULL});
  expect_ranks(mpich, "MPICH", (ladei_local_ranks){NULL, 0, 1, 7, 8, NULL});
  expect_ranks(slurm, "Slurm", (ladei_local_ranks){NULL, 3, 4, 1048575, 1048576, NULL});
}

/* The number that was asked for of the allocation came before that of the step: 8 for 1. */
LADE_TEST(LocalRanks, SlurmsStepIsNotItsAllocation) {
  const variable fewer[] = {{"SLURM_LOCALID", "0"},
                            {"SLURM_NTASKS_PER_NODE", "8"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_PROCID", "0"},
                            {"SLURM_NTASKS", "1"},
                            {NULL, NULL}};
  const variable more[] = {{"SLURM_LOCALID", "5"},
                           {"SLURM_NTASKS_PER_NODE", "4"},
                           {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                           {"SLURM_NODEID", "1"},
                           {NULL, NULL}};
  expect_ranks(fewer, "Slurm", (ladei_local_ranks){.count = 1, .world_count = 1});
  expect_ranks(more, "Slurm", (ladei_local_ranks){.rank = 5, .count = 8});
}

/* All of them counted as one of one. */
LADE_TEST(LocalRanks, OtherLaunchersAreUnderstood) {
  const variable deepspeed[] = {{"LOCAL_RANK", "3"}, {"LOCAL_SIZE", "4"}, {"RANK", "3"}, {"WORLD_SIZE", "4"},
                                {"CROSS_RANK", "0"}, {"CROSS_SIZE", "1"}, {NULL, NULL}};
  const variable pals[] = {
      {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "4"}, {"PMI_RANK", "9"}, {"PMI_SIZE", "16"}, {NULL, NULL}};
  const variable gforker[] = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {NULL, NULL}};
  const variable slurm_pmi2[] = {
      {"SLURM_LOCALID", "0"}, {"SLURM_NTASKS_PER_NODE", "2"}, {"PMI_RANK", "6"}, {"PMI_SIZE", "8"}, {NULL, NULL}};
  expect_ranks(deepspeed, "DeepSpeed", (ladei_local_ranks){NULL, 3, 4, 3, 4, NULL});
  expect_ranks(pals, "PALS", (ladei_local_ranks){NULL, 1, 4, 9, 16, NULL});
  expect_ranks(gforker, "gforker", (ladei_local_ranks){NULL, 2, 3, 2, 3, NULL});
  expect_ranks(slurm_pmi2, "Slurm", (ladei_local_ranks){NULL, 0, 2, 0, 0, NULL});
}

LADE_TEST(LocalRanks, RankWithoutItsCountIsNamed) {
  const variable lightning[] = {{"LOCAL_RANK", "1"}, {"NODE_RANK", "0"}, {"WORLD_SIZE", "2"}, {NULL, NULL}};
  const variable under_slurm[] = {
      {"LOCAL_RANK", "1"}, {"SLURM_LOCALID", "1"}, {"SLURM_NTASKS_PER_NODE", "2"}, {NULL, NULL}};
  ladei_local_ranks ranks;
  LADE_ASSERT_OK(read_from(lightning, &ranks));
  LADE_EXPECT(ranks.launcher == NULL && ranks.count == 1);
  LADE_EXPECT_EQ_STR(ranks.lone_rank == NULL ? "none" : ranks.lone_rank, "LOCAL_RANK");
  LADE_ASSERT_OK(read_from(under_slurm, &ranks));
  LADE_EXPECT(ranks.count == 2 && ranks.lone_rank == NULL);
}

LADE_TEST(LocalRanks, RanksOfAllMayBeUnknown) {
  const variable host_alone[] = {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"RANK", "1"}, {NULL, NULL}};
  expect_ranks(host_alone, "torchrun", (ladei_local_ranks){NULL, 1, 2, 0, 0, NULL});
}

LADE_TEST(LocalRanks, InnermostLauncherCounts) {
  const variable all[] = {{"SLURM_LOCALID", "0"},
                          {"SLURM_NTASKS_PER_NODE", "1"},
                          {"LOCAL_RANK", "2"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {NULL, NULL}};
  expect_ranks(all, "torchrun", (ladei_local_ranks){NULL, 2, 4, 0, 0, NULL});
}

LADE_TEST(LocalRanks, HalfOfAPairIsNoLauncher) {
  const variable half[] = {{"LOCAL_RANK", "2"},      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                           {"SLURM_LOCALID", "1"},   {"MPI_LOCALRANKID", "1"},
                           {"MPI_LOCALNRANKS", "2"}, {NULL, NULL}};
  expect_ranks(half, "MPICH", (ladei_local_ranks){NULL, 1, 2, 0, 0, NULL});
}

static void expect_slurm_list(const char *list, const char *node, const char *rank, uint32_t count) {
  const variable slurm[] = {{"SLURM_LOCALID", (char *)rank},
                            {"SLURM_STEP_TASKS_PER_NODE", (char *)list},
                            {"SLURM_NODEID", (char *)node},
                            {NULL, NULL}};
  if (count > 0)
    expect_ranks(slurm, "Slurm", (ladei_local_ranks){NULL, (uint32_t)(rank[0] - '0'), count, 0, 0, NULL});
  else
    expect_refused(slurm, "SLURM_STEP_TASKS_PER_NODE");
}

LADE_TEST(LocalRanks, SlurmListsProcessesByNode) {
  expect_slurm_list("4(x2),3", "0", "3", 4);
  expect_slurm_list("4(x2),3", "1", "0", 4);
  expect_slurm_list("4(x2),3", "2", "2", 3);
  expect_slurm_list("7", "0", "6", 7);
  expect_slurm_list("4(x2),3", "3", "0", 0); /* ends before */
  expect_slurm_list("4(x2),3", "2", "3", 0); /* a rank too many */
  static const char *const malformed[] = {"", ",", "0", "4(x0)", "4(x2", "4(2)", "4(x2),", "x", "4 ", "99999999999"};
  for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) expect_slurm_list(malformed[i], "1", "0", 0);
}

LADE_TEST(LocalRanks, MalformedNumbersAreRefusedByName) {
  static const char *const malformed[] = {"", " ", "-1", "+1", "1 ", "0x1", "1.0", "four", "1048577", "4294967297"};
  for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
    const variable rank[] = {{"LOCAL_RANK", (char *)malformed[i]}, {"LOCAL_WORLD_SIZE", "2"}, {NULL, NULL}};
    const variable count[] = {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", (char *)malformed[i]}, {NULL, NULL}};
    expect_refused(rank, "LOCAL_RANK is \"");
    expect_refused(count, "LOCAL_WORLD_SIZE is \"");
  }
}

LADE_TEST(LocalRanks, RankIsBelowItsCount) {
  const variable host[] = {{"SLURM_LOCALID", "4"}, {"SLURM_NTASKS_PER_NODE", "4"}, {NULL, NULL}};
  const variable none[] = {{"SLURM_LOCALID", "0"}, {"SLURM_NTASKS_PER_NODE", "0"}, {NULL, NULL}};
  const variable all[] = {
      {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}, {"RANK", "9"}, {"WORLD_SIZE", "8"}, {NULL, NULL}};
  expect_refused(host, "SLURM_LOCALID is 4 and SLURM_NTASKS_PER_NODE is 4");
  expect_refused(none, "SLURM_NTASKS_PER_NODE is \"0\"");
  expect_refused(all, "RANK is 9 and WORLD_SIZE is 8");
}
