/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of sources that call nothing: URLs, signatures (against those of botocore), heads of answers, profiles. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "sources/answer.h"
#include "sources/credentials.h"
#include "sources/md5.h"
#include "sources/sha256.h"
#include "sources/sign.h"
#include "sources/upload_id.h"
#include "tests/shim/lade_test.h"

/* --- URLs --------------------------------------------------------------------------------------------------------- */

static const char region[] = "eu-west-1";

static ladei_source_target target_of(const char *text, const char *endpoint) {
  ladei_source_target target = {.url = NULL};
  ladei_source_url url;
  size_t at;
  LADE_EXPECT_EQ_STR(ladei_source_url_parse(text, &url, &at), NULL);
  LADE_EXPECT_OK(ladei_source_target_make(&url, endpoint, region, &target));
  return target;
}

/* U1, U2, U3 */
LADE_TEST(Url, WhatIsAskedFor) {
  static const struct {
    const char *text, *endpoint, *url, *shown;
  } cases[] = {
      {"http://HOST.example", NULL, "http://host.example/", "http://HOST.example"},
      {"HTTPS://h:443/a/../b?X=%2f&y", NULL, "https://h/a/../b?X=%2f&y", "https://h/a/../b"},
      {"http://h:80?q", NULL, "http://h/?q", "http://h"},
      {"http://[::1]:8080/%7e", NULL, "http://[::1]:8080/%7e", "http://[::1]:8080/%7e"},
      {"s3://bucket/k", NULL, "https://bucket.s3.eu-west-1.amazonaws.com/k", "s3://bucket/k"},
      {"s3://b.with.dots/k", NULL, "https://s3.eu-west-1.amazonaws.com/b.with.dots/k", "s3://b.with.dots/k"},
      {"s3://Old_Bucket/k", NULL, "https://s3.eu-west-1.amazonaws.com/Old_Bucket/k", "s3://Old_Bucket/k"},
      {"s3://bucket//../a b?c#d=%41\xc3\xa4~", "http://Min.io:9000/at/",
       "http://min.io:9000/at/bucket//../a%20b%3Fc%23d%3D%2541%C3%A4~", "s3://bucket//../a b?c#d=%41\xc3\xa4~"},
      {"s3://bucket/k", "https://h", "https://h/bucket/k", "s3://bucket/k"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ladei_source_target target = target_of(cases[i].text, cases[i].endpoint);
    LADE_EXPECT_EQ_STR(target.url, cases[i].url);
    LADE_EXPECT_EQ_STR(target.shown, cases[i].shown);
    LADE_EXPECT_EQ_INT(target.is_signed, strncmp(cases[i].text, "s3:", 3) == 0);
    LADE_EXPECT_EQ_INT(target.tls, strncmp(cases[i].url, "https:", 6) == 0);
    ladei_source_target_free(&target);
  }
}

LADE_TEST(Url, RefusedAtAByte) {
  static const struct {
    const char *text;
    size_t at;
    const char *words;
  } cases[] = {
      {"", 0, "s3://"},
      {"ftp://h/a", 0, "s3://"},
      {"http://", 7, "a host"},
      {"http://user:secret@h/", 11, "a port"},
      {"http://user@h/", 7, "without a user"},
      {"http://h:0/", 8, "a port"},
      {"http://h:65536/", 8, "a port"},
      {"http://h:/", 8, "a port"},
      {"http://[::1/", 7, "a host"},
      {"http://[x]/", 7, "a host"},
      {"http://h/a b", 10, "%XX"},
      {"http://h/\xc3\xa4", 9, "%XX"},
      {"http://h/a#b", 10, "%XX"},
      {"http://h/%2", 9, "two hexadecimal digits"},
      {"http://h/a\r\nX: y", 10, "%XX"},
      {"s3://", 5, "a bucket"},
      {"s3://b:c/k", 5, "a bucket"},
      {"s3://bucket", 11, "a key"},
      {"s3://bucket/", 11, "a key"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    ladei_source_url url;
    size_t at = 99;
    const char *expected = ladei_source_url_parse(cases[i].text, &url, &at);
    lade_test_context("%s", cases[i].text);
    LADE_EXPECT(expected != NULL && strstr(expected, cases[i].words) != NULL);
    LADE_EXPECT_EQ_SIZE(at, cases[i].at);
  }
}

LADE_TEST(Url, BesideAnother) {
  static const char *const cases[][3] = {
      {"s3://b/a/x?y.json", "c d/e", "s3://b/a/c d/e"},
      {"s3://b/x.json", "c", "s3://b/c"},
      {"https://h/a/x.json", "c d/\xc3\xa4?", "https://h/a/c%20d/%C3%A4%3F"},
      {"HTTP://h/x.json?k=a/b", "c", "HTTP://h/c?k=a/b"},
      {"http://h/a/?k", "c", "http://h/a/c?k"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *beside = ladei_source_url_beside(cases[i][0], cases[i][1]);
    LADE_EXPECT_EQ_STR(beside, cases[i][2]);
    LADE_EXPECT(ladei_source_url_is(beside));
    free(beside);
  }
  LADE_EXPECT(!ladei_source_url_is("./s3://b/k") && !ladei_source_url_is("s3:/b/k") &&
              !ladei_source_url_is("file:///a"));
}

LADE_TEST(Url, EndpointAndRegionOfTheSettings) {
  ladei_source_target target;
  ladei_source_url url;
  size_t at;
  static const char *const endpoints[] = {"s3://bucket/k", "h", "http://h/?q", "http://user:secret@h"};
  LADE_EXPECT_EQ_STR(ladei_source_url_parse("s3://bucket/k", &url, &at), NULL);
  for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++) {
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_source_target_make(&url, endpoints[i], region, &target));
    LADE_EXPECT(strstr(lade_last_error()->text, "secret") == NULL);
  }
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_source_target_make(&url, NULL, "a.evil/", &target));
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, ladei_source_target_make(&url, NULL, "", &target));
  LADE_ASSERT_OK(ladei_source_target_make(&url, NULL, "cn-north-1", &target));
  LADE_EXPECT_EQ_STR(target.url, "https://bucket.s3.cn-north-1.amazonaws.com.cn/k");
  ladei_source_target_free(&target);
}

/* --- signatures --------------------------------------------------------------------------------------------------- */

static void hash_expect(const char *text, size_t times, const char *expected) {
  unsigned char hash[LADEI_SHA256_BYTES];
  char hex[2 * LADEI_SHA256_BYTES + 1];
  ladei_sha256 sum;
  ladei_sha256_begin(&sum);
  for (size_t i = 0; i < times; i++) ladei_sha256_add(&sum, text, strlen(text));
  ladei_sha256_end(&sum, hash);
  for (size_t i = 0; i < sizeof hash; i++) (void)sprintf(hex + 2 * i, "%02x", hash[i]);
  LADE_EXPECT_EQ_STR(hex, expected);
}

/* FIPS 180-4, examples of NIST. */
LADE_TEST(Sha256, ExamplesOfTheStandard) {
  hash_expect("", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  hash_expect("abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  hash_expect("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  hash_expect("aaaaaaaaaa", 100000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* What botocore 1.44 signs at the same time: an encoded path; a path that is left as it is, a port, a long secret, a
 * token. */
LADE_TEST(Signature, AsThatOfBotocore) {
  static const char *const signatures[] = {"353c9dc58f4ccc5e88610803769d270621cd1c7443405061a557503e00b2f3b1",
                                           "d1882346ad15727657ee4eef1f63789c7b9f38ce730cf534b080155512418153"};
  const time_t now = 1795827723; /* 2026-11-28 01:02:03 */
  char secret[101] = "", key[] = "user:name", token[] = "to/ken+=", other[] = "AKIDEXAMPLE",
       example[] = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
  static const ladei_source_wording get = {.method = "GET", .query = ""};
  ladei_source_signature signature;
  memset(secret, 's', sizeof secret - 1);
  ladei_source_target target = target_of("s3://bucket/dir/a b+c=\xc3\xa4.bin", NULL);
  ladei_source_credentials credentials = {.key = other, .secret = example};
  ladei_source_sign(&target, &get, &credentials, region, now, &signature);
  LADE_EXPECT(strstr(signature.headers[0], signatures[0]) != NULL);
  LADE_EXPECT(strstr(signature.headers[0], "Credential=AKIDEXAMPLE/20261128/eu-west-1/s3/aws4_request, "
                                           "SignedHeaders=host;x-amz-content-sha256;x-amz-date, ") != NULL);
  LADE_EXPECT_EQ_STR(signature.headers[1], "x-amz-date: 20261128T010203Z");
  ladei_source_target_free(&target);
  target = target_of("s3://bucket/a/../b//c", "http://127.0.0.1:9000");
  credentials = (ladei_source_credentials){.key = key, .secret = secret, .token = token};
  ladei_source_sign(&target, &get, &credentials, "us-east-1", now, &signature);
  LADE_EXPECT(strstr(signature.headers[0], signatures[1]) != NULL);
  ladei_source_target_free(&target);
}

/* What an upload sends: a body of which the MD5 is signed, a query; no body, a token. */
LADE_TEST(Signature, OfUploadsAsThatOfBotocore) {
  static const char *const signatures[] = {"539f9bda13e96ed17a18b71a22d2fd646e888d863a6e20c681ca6c718cf1e9a6",
                                           "3b18e035553ca53ce70f6becbbd83785bc61478af75909691ef1351a00646329"};
  static const ladei_source_wording part = {
      .method = "PUT", .query = "partNumber=3&uploadId=an%2Fid%2B1", .md5 = "kAFQmDzST7DWlj99KOF/cg=="};
  static const ladei_source_wording begin = {.method = "POST", .query = "uploads="};
  const time_t now = 1795827723; /* 2026-11-28 01:02:03 */
  char key[] = "AKIDEXAMPLE", secret[] = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token[] = "to/ken+=";
  ladei_source_signature signature;
  ladei_source_target target = target_of("s3://bucket/dir/a b", NULL);
  ladei_source_credentials credentials = {.key = key, .secret = secret};
  ladei_source_sign(&target, &part, &credentials, region, now, &signature);
  LADE_EXPECT(strstr(signature.headers[0], signatures[0]) != NULL);
  LADE_EXPECT_EQ_STR(signature.headers[2], "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  credentials.token = token;
  ladei_source_sign(&target, &begin, &credentials, region, now, &signature);
  LADE_EXPECT(strstr(signature.headers[0], signatures[1]) != NULL);
  ladei_source_target_free(&target);
}

/* RFC 1321, its test suite, and lengths around that of a block (of Python's hashlib). */
LADE_TEST(Md5, ExamplesOfTheStandard) {
  static const struct {
    const char *text;
    size_t times;
    const char *expected;
  } cases[] = {
      {"", 1, "d41d8cd98f00b204e9800998ecf8427e"},
      {"abc", 1, "900150983cd24fb0d6963f7d28e17f72"},
      {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", 1, "d174ab98d277d9f5a5611c2c9f419d9f"},
      {"1234567890", 8, "57edf4a22be3c955ac49da2e2107b67a"},
      {"a", 55, "ef1772b6dff9a122358552954ad0df65"},
      {"a", 56, "3b0c8ac703f828b04c6c197006d17218"},
      {"a", 64, "014842d480b571495a4a0363793f7367"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[128] = "", hex[2 * LADEI_MD5_BYTES + 1];
    unsigned char sum[LADEI_MD5_BYTES];
    for (size_t j = 0; j < cases[i].times; j++) strcat(text, cases[i].text);
    ladei_md5(text, strlen(text), sum);
    for (size_t j = 0; j < sizeof sum; j++) (void)sprintf(hex + 2 * j, "%02x", sum[j]);
    LADE_EXPECT_EQ_STR(hex, cases[i].expected);
  }
}

LADE_TEST(Upload, IdAsAQueryHasIt) {
  char id[3 * LADEI_SOURCE_UPLOAD_ID_MOST + 1], text[1024] = "<UploadId>";
  LADE_EXPECT(ladei_source_upload_id("<R><Key>k</Key><UploadId>a/b+~_-.=9</UploadId></R>", id, sizeof id));
  LADE_EXPECT_EQ_STR(id, "a%2Fb%2B~_-.%3D9");
  LADE_EXPECT(!ladei_source_upload_id("<UploadId></UploadId>", id, sizeof id));
  LADE_EXPECT(!ladei_source_upload_id("<UploadId>a", id, sizeof id));
  LADE_EXPECT(!ladei_source_upload_id("a</UploadId>", id, sizeof id));
  LADE_EXPECT(!ladei_source_upload_id("<UploadId>a&amp;</UploadId>", id, sizeof id));
  LADE_EXPECT(!ladei_source_upload_id("<UploadId>a b</UploadId>", id, sizeof id));
  memset(text + 10, '/', LADEI_SOURCE_UPLOAD_ID_MOST);
  strcpy(text + 10 + LADEI_SOURCE_UPLOAD_ID_MOST, "</UploadId>");
  LADE_EXPECT(ladei_source_upload_id(text, id, sizeof id));
  LADE_EXPECT_EQ_SIZE(strlen(id), sizeof id - 1);
  strcpy(text + 10 + LADEI_SOURCE_UPLOAD_ID_MOST, "/</UploadId>");
  LADE_EXPECT(!ladei_source_upload_id(text, id, sizeof id));
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

static ladei_source_answer answer_of(const char *const *lines) {
  ladei_source_answer answer = {.status = 0};
  for (; *lines != NULL; lines++)
    LADE_EXPECT_EQ_INT(ladei_source_answer_line(&answer, *lines, strlen(*lines)), **lines == '\r');
  return answer;
}

LADE_TEST(Answer, LastHeadCounts) {
  const char *lines[] = {"HTTP/1.1 100 Continue\r\n",
                         "ETag: \"no\"\r\n",
                         "\r\n",
                         "HTTP/1.1 206 Partial Content\r\n",
                         "content-RANGE:bytes 5-9/77\r\n",
                         "Content-Length:   5 \r\n",
                         "Retry-After: 7\r\n",
                         "ETag: W/\"x\"\r\n",
                         "Content-Encoding: identity\r\n",
                         "\r\n",
                         NULL};
  ladei_source_answer answer = answer_of(lines);
  ladei_source_version version = {.known = false};
  LADE_EXPECT_EQ_INT(answer.status, 206);
  LADE_EXPECT_EQ_UINT(answer.retry_after_s, 7);
  LADE_EXPECT_OK(ladei_source_answer_check(&answer, 5, 5, false, &version));
  LADE_EXPECT_EQ_UINT(version.total, 77);
  LADE_EXPECT(!ladei_source_version_is_strong(&version));
}

/* A1 */
LADE_TEST(Answer, RangesThatAreNone) {
  static const char *const ranges[] = {"Content-Range: bytes 5-9/*",  "Content-Range: bytes 5-9/9",
                                       "Content-Range: bytes 9-5/77", "Content-Range: bytes 5-9/77 x",
                                       "Content-Range: bits 5-9/77",  "Content-Range: bytes 5-9",
                                       "Content-Range: bytes -9/77",  "Content-Range: bytes 5-99999999999999999999/77",
                                       "Content-Range: bytes */77",   "Content-Range:"};
  for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
    const char *lines[] = {"HTTP/1.1 206 x", ranges[i], NULL};
    ladei_source_answer answer = answer_of(lines);
    ladei_source_version version = {.known = false};
    lade_test_context("%s", ranges[i]);
    LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_source_answer_check(&answer, 5, 5, false, &version));
    LADE_EXPECT(!version.known);
  }
  const char *two[] = {"HTTP/1.1 206 x", "Content-Range: bytes 5-9/77", "Content-Range: bytes 5-9/77", NULL};
  ladei_source_answer answer = answer_of(two);
  ladei_source_version version = {.known = false};
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_source_answer_check(&answer, 5, 5, false, &version));
}

/* A1: was taken for byte 0. */
LADE_TEST(Answer, TotalAloneIsNoRange) {
  const char *lines[] = {"HTTP/1.1 206 x", "Content-Range: bytes */77", NULL};
  ladei_source_answer answer = answer_of(lines);
  ladei_source_version version = {.known = false};
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_source_answer_check(&answer, 0, 1, false, &version));
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_source_answer_check(&answer, 1, 1, false, &version));
  LADE_EXPECT(!version.known);
}

/* --- settings ----------------------------------------------------------------------------------------------------- */

static void profile_expect(const char *text, const char *section, const char *expected) {
  ladei_source_span found = ladei_source_profile_find(text, section, "region");
  LADE_EXPECT_EQ_SIZE(found.bytes, strlen(expected));
  LADE_EXPECT(memcmp(found.at, expected, found.bytes) == 0);
}

LADE_TEST(Profile, ValuesOfOneSection) {
  static const char text[] =
      "region=outside\n[default]\nregions = no\n region = nested\nregion\t=  a b \r\n"
      "[profile  two ]\noutput=x\nregion=two\n[ three]\n[four\nregion = four\n[five]\nregion=five";
  profile_expect(text, "default", "a b");
  profile_expect(text, "two", "two");
  profile_expect(text, "three", "");
  profile_expect(text, "four", "");
  profile_expect(text, "five", "five");
  profile_expect("", "default", "");
}

LADE_TEST(Credentials, AnswersOfServices) {
  static const char *const bad[] = {"",
                                    "[]",
                                    "{}",
                                    "{\"AccessKeyId\":\"a\"}",
                                    "{\"AccessKeyId\":1,\"SecretAccessKey\":\"b\"}",
                                    "{\"AccessKeyId\":\"a\\r\\nX: y\",\"SecretAccessKey\":\"b\"}",
                                    "{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Token\":\"c d\"}"};
  ladei_source_credentials got;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) LADE_EXPECT(!ladei_source_credentials_parse(bad[i], &got));
  LADE_ASSERT(ladei_source_credentials_parse(
      "{\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"Token\":\"c\",\"Expiration\":\"2026-11-28T01:02:03Z\"}",
      &got));
  LADE_EXPECT_EQ_STR(got.token, "c");
  LADE_EXPECT_EQ_INT(got.until, 1795827723);
  ladei_source_credentials_free(&got);
}
