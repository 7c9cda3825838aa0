/* SPDX-License-Identifier: Apache-2.0 */
/* The k-th allocation of host memory fails, for every k, in saves to objects: they say so, and no upload and no shard is left. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lade/safetensors.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"

enum { LONG = 9 << 20, SHORT = 1000 };

static unsigned names_count(const server *s, const char *begin) {
  unsigned count = 0;
  DIR *dir = opendir(s->dir.path);
  for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;)
    count += strncmp(entry->d_name, begin, strlen(begin)) == 0 ? 1 : 0;
  if (dir != NULL) closedir(dir);
  return count;
}

static lade_status save(char *host, uint64_t max_shard_bytes) {
  static const uint64_t shapes[][1] = {{LONG}, {SHORT}};
  const lade_tensor tensors[] = {{"a", shapes[0], 1, host, LADE_TARGET_HOST, LADE_DTYPE_U8},
                                 {"b", shapes[1], 1, host, LADE_TARGET_HOST, LADE_DTYPE_U8}};
  lade_save_options options;
  lade_save_options_init(&options);
  options.max_shard_bytes = max_shard_bytes;
  return lade_safetensors_save("s3://bucket/m", NULL, 0, tensors, 2, &options);
}

static void rounds_run(server *s, char *host, uint64_t max_shard_bytes) {
  bool whole = false;
  unsigned before = names_count(s, "m");
  for (uint64_t k = 1; !whole && !lade_test_has_failed(); k += FAILING_MEMORY_STEP) {
    lade_test_context("allocation %llu", (unsigned long long)k);
    failing_memory_fail(k, FAILING_MEMORY_OF_ALL);
    lade_status status = save(host, max_shard_bytes);
    whole = failing_memory_whole() < k;
    failing_memory_fail(0, FAILING_MEMORY_OF_ALL);
    LADE_EXPECT(whole ? status == LADE_OK : status == LADE_OK || status == LADE_ERR_OUT_OF_HOST_MEMORY);
    LADE_EXPECT_EQ_UINT(names_count(s, "open."), 0);
    if (status != LADE_OK) LADE_EXPECT_EQ_UINT(names_count(s, "m"), before);
    before = names_count(s, "m");
    LADE_ASSERT(k < 2000);
    LADE_EXPECT(!whole || k > 20);
  }
  lade_test_context("%s", "");
}

LADE_TEST(SaveUrlMemory, EachAllocationFails) {
  server s;
  char endpoint[96];
  char *host = calloc(1, LONG);
  if (!server_start(&s, "faults", NULL, NULL)) return;
  (void)snprintf(endpoint, sizeof endpoint, "%s/signed", s.url);
  const char *const variables[] = {
      "AWS_ENDPOINT_URL_S3",   endpoint,         "AWS_REGION", "eu-test-1", "AWS_ACCESS_KEY_ID", "AKTEST",
      "AWS_SECRET_ACCESS_KEY", "secret/of+test", NULL};
  server_environment(variables);
  rounds_run(&s, host, 0);
  rounds_run(&s, host, SHORT);
  server_stop(&s);
  free(host);
}
