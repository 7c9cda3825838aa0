/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/sign.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "sources/sha256.h"

static const char empty_hash[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
enum { HASH_TEXT = 2 * LADEI_SHA256_BYTES + 1 };

static void text_add(ladei_sha256 *sum, const char *text) { ladei_sha256_add(sum, text, strlen(text)); }

void ladei_source_hex(const unsigned char *bytes, size_t count, char *out) {
  for (size_t i = 0; i < count; i++) (void)sprintf(out + 2 * i, "%02x", bytes[i]);
}

static const char *body_hash(const ladei_source_wording *wording) {
  return wording->md5 != NULL ? "UNSIGNED-PAYLOAD" : empty_hash;
}

/* Method, path, query, headers in the order of their names, those names, hash of the body: each on lines of its own. */
static void request_hash(const ladei_source_target *target, const ladei_source_wording *wording,
                         const ladei_source_credentials *credentials, const char *stamp, const char *names,
                         char out[HASH_TEXT]) {
  unsigned char hash[LADEI_SHA256_BYTES];
  ladei_sha256 sum;
  ladei_sha256_begin(&sum);
  text_add(&sum, wording->method);
  text_add(&sum, "\n");
  ladei_sha256_add(&sum, target->path.at, target->path.bytes);
  text_add(&sum, "\n");
  text_add(&sum, wording->query);
  text_add(&sum, wording->md5 != NULL ? "\ncontent-md5:" : "");
  text_add(&sum, wording->md5 != NULL ? wording->md5 : "");
  text_add(&sum, "\nhost:");
  ladei_sha256_add(&sum, target->authority.at, target->authority.bytes);
  text_add(&sum, "\nx-amz-content-sha256:");
  text_add(&sum, body_hash(wording));
  text_add(&sum, "\nx-amz-date:");
  text_add(&sum, stamp);
  if (credentials->token != NULL) {
    text_add(&sum, "\nx-amz-security-token:");
    text_add(&sum, credentials->token);
  }
  text_add(&sum, "\n\n");
  text_add(&sum, names);
  text_add(&sum, "\n");
  text_add(&sum, body_hash(wording));
  ladei_sha256_end(&sum, hash);
  ladei_source_hex(hash, sizeof hash, out);
}

/* The key of a day, a region and a service. */
static void key_derive(const char *secret, const char *day, const char *region, unsigned char out[LADEI_SHA256_BYTES]) {
  unsigned char seed[LADEI_SHA256_BLOCK] = "AWS4";
  const char *const steps[] = {region, "s3", "aws4_request"};
  size_t bytes = strlen(secret);
  /* A key longer than a block is hashed first, prefix and all. */
  if (bytes + 4 <= sizeof seed) {
    memcpy(seed + 4, secret, bytes);
    ladei_sha256_hmac(seed, bytes + 4, day, strlen(day), out);
  } else {
    ladei_sha256 sum;
    ladei_sha256_begin(&sum);
    ladei_sha256_add(&sum, seed, 4);
    ladei_sha256_add(&sum, secret, bytes);
    ladei_sha256_end(&sum, seed);
    ladei_sha256_hmac(seed, LADEI_SHA256_BYTES, day, strlen(day), out);
  }
  explicit_bzero(seed, sizeof seed);
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
    ladei_sha256_hmac(out, LADEI_SHA256_BYTES, steps[i], strlen(steps[i]), out);
}

void ladei_source_sign(const ladei_source_target *target, const ladei_source_wording *wording,
                       const ladei_source_credentials *credentials, const char *region, time_t now,
                       ladei_source_signature *out) {
  char names[80], stamp[32], day[16], hash[HASH_TEXT], text[256];
  unsigned char key[LADEI_SHA256_BYTES];
  struct tm utc;
  assert(target->is_signed && strlen(credentials->key) <= LADEI_SOURCE_KEY_MOST && target->path.at[0] == '/');
  gmtime_r(&now, &utc);
  (void)strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc);
  (void)strftime(day, sizeof day, "%Y%m%d", &utc);
  (void)snprintf(names, sizeof names, "%shost;x-amz-content-sha256;x-amz-date%s",
                 wording->md5 != NULL ? "content-md5;" : "", credentials->token != NULL ? ";x-amz-security-token" : "");
  request_hash(target, wording, credentials, stamp, names, hash);
  int length = snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n%s", stamp, day, region, hash);
  key_derive(credentials->secret, day, region, key);
  ladei_sha256_hmac(key, sizeof key, text, (size_t)length, key);
  ladei_source_hex(key, LADEI_SHA256_BYTES, hash);
  (void)snprintf(out->headers[0], sizeof out->headers[0],
                 "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request, SignedHeaders=%s, Signature=%s",
                 credentials->key, day, region, names, hash);
  (void)snprintf(out->headers[1], sizeof out->headers[1], "x-amz-date: %s", stamp);
  (void)snprintf(out->headers[2], sizeof out->headers[2], "x-amz-content-sha256: %s", body_hash(wording));
}
