/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The k-th allocation of host memory fails, for every k, while settings and credentials are read: they are those that there are, or an
 * error. Bug: an endpoint for which there was no memory was taken for none, and requests would have gone to AWS.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "sources/credentials.h"
#include "tests/failing_memory/failing_memory.h"
#include "tests/shim/lade_test.h"
#include "tests/sources/servers.h"

/* The C library's own would not be counted. */
char *__wrap_strndup(const char *text, size_t most);
char *__wrap_strdup(const char *text);

char *__wrap_strndup(const char *text, size_t most) {
  size_t bytes = strnlen(text, most);
  char *copy = malloc(bytes + 1);
  if (copy == NULL) return NULL;
  memcpy(copy, text, bytes);
  copy[bytes] = '\0';
  return copy;
}

char *__wrap_strdup(const char *text) { return __wrap_strndup(text, strlen(text)); }

/* Every way that settings and credentials come: one of each kind by a variable, the rest by the profile. */
static void round_run(uint64_t k, bool by_variables, bool *out_whole) {
  ladei_source_settings settings;
  ladei_source_credentials credentials;
  failing_memory_fail(k, FAILING_MEMORY_OF_ALL);
  lade_status status = ladei_source_settings_read(&settings), loaded = LADE_ERR_INTERNAL;
  if (status == LADE_OK) loaded = ladei_source_credentials_load(NULL, &settings, NULL, &credentials);
  *out_whole = failing_memory_whole() < k;
  failing_memory_fail(0, FAILING_MEMORY_OF_ALL);
  LADE_EXPECT(status == LADE_OK || (k > 0 && status == LADE_ERR_OUT_OF_HOST_MEMORY));
  if (status != LADE_OK) return;
  LADE_EXPECT_EQ_STR(settings.endpoint, "http://127.0.0.1:9");
  LADE_EXPECT_EQ_STR(settings.region, "eu-test-1");
  LADE_EXPECT_EQ_STR(settings.ca_file, "/ca");
  LADE_EXPECT(loaded == LADE_OK || (k > 0 && loaded == LADE_ERR_OUT_OF_HOST_MEMORY));
  if (loaded == LADE_OK) {
    LADE_EXPECT_EQ_STR(credentials.key, by_variables ? "KEY" : "key");
    LADE_EXPECT_EQ_STR(credentials.secret, by_variables ? "SECRET" : "secret");
    LADE_EXPECT_EQ_STR(credentials.token, by_variables ? "TOKEN" : "token");
    ladei_source_credentials_free(&credentials);
  }
  ladei_source_settings_free(&settings);
}

static void rounds_run(bool by_variables) {
  bool whole = false;
  for (uint64_t k = 1; !whole && !lade_test_has_failed(); k++) {
    lade_test_context("allocation %llu", (unsigned long long)k);
    round_run(k, by_variables, &whole);
    LADE_ASSERT(k < 1000);
    LADE_EXPECT(!whole || k > 8);
  }
  lade_test_context("%s", "");
}

LADE_TEST(SettingsMemory, EachAllocationFails) {
  support_temp_dir dir;
  LADE_ASSERT(support_temp_dir_create(&dir));
  support_temp_dir_write(
      &dir, "profiles",
      "[default]\naws_access_key_id = key\naws_secret_access_key = secret\naws_session_token = token\n"
      "region = eu-test-1\nendpoint_url = http://127.0.0.1:9\nca_bundle = /ca\n");
  char *file = support_temp_dir_path(&dir, "profiles");
  const char *profile[] = {"AWS_SHARED_CREDENTIALS_FILE", file, NULL};
  server_environment(profile);
  rounds_run(false);
  const char *variables[] = {"AWS_CONFIG_FILE",
                             file,
                             "AWS_ACCESS_KEY_ID",
                             "KEY",
                             "AWS_SECRET_ACCESS_KEY",
                             "SECRET",
                             "AWS_SESSION_TOKEN",
                             "TOKEN",
                             "AWS_ENDPOINT_URL",
                             "http://127.0.0.1:9",
                             "AWS_REGION",
                             "eu-test-1",
                             "AWS_CA_BUNDLE",
                             "/ca",
                             NULL};
  server_environment(variables);
  rounds_run(true);
  server_environment(NULL);
  free(file);
  support_temp_dir_remove(&dir);
}
