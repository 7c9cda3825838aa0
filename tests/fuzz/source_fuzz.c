/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first byte says what the rest is:
 *   0  a URL, and after a line the URL of a service: what is asked for has printable ASCII alone, one host, and of a key
 *      its very bytes
 *   1  a head of an answer, line by line: what is accepted is the range that was asked for, of the version
 *   2  a file of profiles, and 3 an answer of a service of credentials
 *   4  an answer to the begin of an upload: its id can stand in a query
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "sources/answer.h"
#include "sources/credentials.h"
#include "sources/upload_id.h"
#include "sources/url.h"
#include "tests/fuzz/fuzz.h"

enum { TEXT_MAX = 4096 };

static size_t key_decode(const char *path, size_t bytes, char *out) {
  size_t count = 0;
  for (size_t i = 0; i < bytes; i++) {
    unsigned byte = (unsigned char)path[i];
    if (byte == '%' && i + 2 < bytes && sscanf(path + i + 1, "%2x", &byte) == 1) i += 2;
    out[count++] = (char)byte;
  }
  return count;
}

static void target_check(const ladei_source_url *url, const ladei_source_target *target) {
  static char decoded[3 * TEXT_MAX];
  for (const char *at = target->url; *at != '\0'; at++) FUZZ_CHECK(*at > ' ' && *at <= '~' && *at != '#'); /* U1 */
  FUZZ_CHECK(memchr(target->authority.at, '@', target->authority.bytes) == NULL);
  FUZZ_CHECK(target->path.at == target->authority.at + target->authority.bytes && target->path.at[0] == '/');
  FUZZ_CHECK(strncmp(target->url, target->tls ? "https://" : "http://", target->tls ? 8 : 7) == 0);
  if (!url->s3) {
    FUZZ_CHECK(strchr(target->shown, '?') == NULL); /* U3 */
    return;
  }
  size_t bytes = key_decode(target->path.at, target->path.bytes, decoded);
  FUZZ_CHECK(bytes >= url->path.bytes); /* U2 */
  FUZZ_CHECK(memcmp(decoded + bytes - url->path.bytes, url->path.at, url->path.bytes) == 0);
}

static void url_check(char *text) {
  ladei_source_url url;
  ladei_source_target target;
  size_t at;
  char *end = strchr(text, '\n');
  const char *endpoint = end != NULL ? end + 1 : NULL;
  if (end != NULL) *end = '\0';
  const char *expected = ladei_source_url_parse(text, &url, &at);
  FUZZ_CHECK(at <= strlen(text));
  if (expected != NULL || ladei_source_target_make(&url, endpoint, "eu-test-1", &target) != LADE_OK) return;
  target_check(&url, &target);
  ladei_source_target_free(&target);
}

static void answer_check(const char *text) {
  ladei_source_answer answer = {.status = 0};
  ladei_source_version version = {.known = false};
  for (size_t bytes; *text != '\0'; text += bytes) {
    bytes = strcspn(text, "\n") + 1;
    bytes = bytes > strlen(text) ? strlen(text) : bytes;
    if (!ladei_source_answer_line(&answer, text, bytes)) continue;
    bool may_end = answer.total % 2 == 1;
    if (ladei_source_answer_check(&answer, 100, 50, may_end, &version) != LADE_OK) continue;
    FUZZ_CHECK(answer.status == 206 && answer.first == 100 && answer.total > answer.last);
    FUZZ_CHECK(answer.last == 149 || (may_end && answer.last >= 100 && answer.last + 1 == answer.total));
    FUZZ_CHECK(version.known && version.total == answer.total);
  }
}

static void profile_check(const char *text) {
  ladei_source_span found = ladei_source_profile_find(text, "default", "region");
  FUZZ_CHECK(found.at >= text && found.at + found.bytes <= text + strlen(text));
  FUZZ_CHECK(memchr(found.at, '\n', found.bytes) == NULL);
}

static void credentials_check(const char *text) {
  ladei_source_credentials credentials;
  if (!ladei_source_credentials_parse(text, &credentials)) return;
  FUZZ_CHECK(credentials.key != NULL && credentials.secret != NULL && strpbrk(credentials.key, " \r\n") == NULL);
  ladei_source_credentials_free(&credentials);
}

static void upload_check(const char *text) {
  char id[3 * LADEI_SOURCE_UPLOAD_ID_MOST + 1];
  if (!ladei_source_upload_id(text, id, sizeof id)) return;
  FUZZ_CHECK(id[0] != '\0' && strpbrk(id, " &<>?#/+=\r\n") == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char text[TEXT_MAX];
  if (size == 0 || size >= sizeof text) return 0;
  memcpy(text, data + 1, size - 1);
  text[size - 1] = '\0';
  switch ((uint8_t)(data[0] - '0') % 5) {
  case 0: url_check(text); break;
  case 1: answer_check(text); break;
  case 2: profile_check(text); break;
  case 3: credentials_check(text); break;
  default: upload_check(text); break;
  }
  return 0;
}
