/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/credentials.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { QUESTION_MS = 2000, CONNECT_MS = 1000, ANSWER_MOST = 16 << 10, TOKEN_MOST = 4096 };

static void secret_free(char *text) {
  if (text != NULL) explicit_bzero(text, strlen(text));
  free(text);
}

void ladei_source_credentials_free(ladei_source_credentials *credentials) {
  secret_free(credentials->key);
  secret_free(credentials->secret);
  secret_free(credentials->token);
  *credentials = (ladei_source_credentials){.key = NULL};
}

/* A header's value must not bring a line of its own. */
static bool is_header_value(const char *text) {
  for (; *text != '\0'; text++)
    if ((unsigned char)*text <= ' ' || (unsigned char)*text > '~') return false;
  return true;
}

static bool are_usable(const ladei_source_credentials *credentials) {
  return credentials->key != NULL && credentials->secret != NULL && credentials->key[0] != '\0' &&
         strlen(credentials->key) <= LADEI_SOURCE_KEY_MOST && is_header_value(credentials->key) &&
         (credentials->token == NULL || is_header_value(credentials->token));
}

/* --- container and instance --------------------------------------------------------------------------------------- */

typedef struct reply {
  const _Atomic(bool) *stop; /* NULL: never */
  size_t bytes;
  char text[ANSWER_MOST];
} reply;

static size_t reply_take(char *data, size_t one, size_t bytes, void *user) {
  reply *r = user;
  (void)one; /* always 1 */
  if (bytes >= sizeof r->text - r->bytes) return 0;
  memcpy(r->text + r->bytes, data, bytes);
  r->bytes += bytes;
  return bytes;
}

static bool is_stopped(const reply *r) {
  return r->stop != NULL && atomic_load_explicit(r->stop, memory_order_relaxed);
}

/* libcurl asks once in a second, at least. Not 0: the question ends. */
static int reply_go_on(void *user, int64_t down_all, int64_t down, int64_t up_all, int64_t up) {
  (void)down_all, (void)down, (void)up_all, (void)up;
  return is_stopped(user) ? 1 : 0;
}

/* Asks for a URL; `header` may be NULL. False: no answer with status 200. */
static bool ask(const ladei_libcurl *curl, const char *method, const char *url, const char *header, reply *r) {
  ladei_curl *easy = curl->easy_init();
  ladei_curl_list *headers = header != NULL ? curl->slist_append(NULL, header) : NULL;
  long status = 0;
  r->bytes = 0;
  bool good = !is_stopped(r) && easy != NULL && (header == NULL || headers != NULL) &&
              curl->easy_setopt(easy, LADEI_CURL_URL, url) == LADEI_CURL_OK &&
              curl->easy_setopt(easy, LADEI_CURL_HTTPHEADER, headers) == LADEI_CURL_OK;
  if (good) {
    (void)curl->easy_setopt(easy, LADEI_CURL_PROTOCOLS_STR, "http,https");
    (void)curl->easy_setopt(easy, LADEI_CURL_CUSTOMREQUEST, method);
    (void)curl->easy_setopt(easy, LADEI_CURL_NOSIGNAL, 1L);
    (void)curl->easy_setopt(easy, LADEI_CURL_PROXY, "");
    (void)curl->easy_setopt(easy, LADEI_CURL_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    (void)curl->easy_setopt(easy, LADEI_CURL_TIMEOUT_MS, (long)QUESTION_MS);
    (void)curl->easy_setopt(easy, LADEI_CURL_WRITEFUNCTION, reply_take);
    (void)curl->easy_setopt(easy, LADEI_CURL_WRITEDATA, r);
    (void)curl->easy_setopt(easy, LADEI_CURL_NOPROGRESS, 0L);
    (void)curl->easy_setopt(easy, LADEI_CURL_XFERINFODATA, r);
    (void)curl->easy_setopt(easy, LADEI_CURL_XFERINFOFUNCTION, reply_go_on);
    good = curl->easy_perform(easy) == LADEI_CURL_OK &&
           curl->easy_getinfo(easy, LADEI_CURL_INFO_STATUS, &status) == LADEI_CURL_OK && status == 200;
  }
  assert(r->bytes < sizeof r->text);
  r->text[r->bytes] = '\0';
  if (easy != NULL) curl->easy_cleanup(easy);
  curl->slist_free_all(headers);
  return good;
}

static char *member_copy(const json_t *json, const char *name) {
  const char *value = json_string_value(json_object_get(json, name));
  return value != NULL ? strdup(value) : NULL;
}

bool ladei_source_credentials_parse(const char *text, ladei_source_credentials *out) {
  struct tm utc = {.tm_year = 0};
  json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  const char *until = json_string_value(json_object_get(json, "Expiration"));
  ladei_source_credentials found = {.key = member_copy(json, "AccessKeyId"),
                                    .secret = member_copy(json, "SecretAccessKey"),
                                    .token = member_copy(json, "Token")};
  if (until != NULL && strptime(until, "%Y-%m-%dT%H:%M:%S", &utc) != NULL) found.until = timegm(&utc);
  json_decref(json);
  if (!are_usable(&found)) {
    ladei_source_credentials_free(&found);
    return false;
  }
  *out = found;
  return true;
}

/* Whether a token may be sent there: to this machine, to the containers' services, or encrypted. */
static bool is_trusted(const char *uri) {
  static const char *const hosts[] = {"127.0.0.1",     "localhost",      "[::1]",
                                      "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  ladei_source_url url;
  size_t at;
  if (ladei_source_url_parse(uri, &url, &at) != NULL || url.s3) return false;
  for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
    size_t bytes = strlen(hosts[i]);
    if (url.authority.bytes >= bytes && strncasecmp(url.authority.at, hosts[i], bytes) == 0 &&
        (url.authority.bytes == bytes || url.authority.at[bytes] == ':'))
      return true;
  }
  return url.tls;
}

/* The header that a container's service asks for; false: none. */
static bool container_header(const ladei_source_settings *settings, char *out, size_t room) {
  const char *path = ladei_source_variable(settings, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  const char *token = ladei_source_variable(settings, "AWS_CONTAINER_AUTHORIZATION_TOKEN");
  char text[TOKEN_MOST];
  FILE *file = path != NULL ? fopen(path, "re") : NULL;
  if (file != NULL) {
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    (void)fclose(file);
    token = text;
  }
  if (token == NULL || !is_header_value(token)) return false;
  return snprintf(out, room, "Authorization: %s", token) < (int)room;
}

static bool container_load(const ladei_libcurl *curl, const ladei_source_settings *settings, reply *r,
                           ladei_source_credentials *out) {
  const char *full = ladei_source_variable(settings, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const char *relative = ladei_source_variable(settings, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  char uri[2048], header[TOKEN_MOST + 32];
  int length = relative != NULL ? snprintf(uri, sizeof uri, "http://169.254.170.2%s", relative)
                                : snprintf(uri, sizeof uri, "%s", full != NULL ? full : "");
  if (length >= (int)sizeof uri || !is_trusted(uri)) return false;
  bool has_header = container_header(settings, header, sizeof header);
  return ask(curl, "GET", uri, has_header ? header : NULL, r) && ladei_source_credentials_parse(r->text, out);
}

/* A token, the name of the instance's role, the credentials of that role. */
static bool instance_load(const ladei_libcurl *curl, const ladei_source_settings *settings, reply *r,
                          ladei_source_credentials *out) {
  static const char roles[] = "/latest/meta-data/iam/security-credentials/";
  const char *off = ladei_source_variable(settings, "AWS_EC2_METADATA_DISABLED");
  const char *service = ladei_source_variable(settings, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  char url[2048], header[TOKEN_MOST + 32];
  if (off != NULL && strcasecmp(off, "true") == 0) return false;
  if (service == NULL) service = "http://169.254.169.254";
  size_t bytes = strlen(service);
  if (bytes > sizeof url / 2) return false;
  bytes -= service[bytes - 1] == '/' ? 1 : 0;
  (void)snprintf(url, sizeof url, "%.*s/latest/api/token", (int)bytes, service);
  if (!ask(curl, "PUT", url, "X-aws-ec2-metadata-token-ttl-seconds: 300", r) || r->bytes >= TOKEN_MOST ||
      !is_header_value(r->text))
    return false;
  (void)snprintf(header, sizeof header, "X-aws-ec2-metadata-token: %.*s", TOKEN_MOST, r->text);
  (void)snprintf(url, sizeof url, "%.*s%s", (int)bytes, service, roles);
  if (!ask(curl, "GET", url, header, r)) return false;
  r->text[strcspn(r->text, "\r\n")] = '\0';
  if (strlen(r->text) > 256 || !is_header_value(r->text)) return false;
  (void)snprintf(url, sizeof url, "%.*s%s%.256s", (int)bytes, service, roles, r->text);
  return ask(curl, "GET", url, header, r) && ladei_source_credentials_parse(r->text, out);
}

/* --- all places --------------------------------------------------------------------------------------------------- */

static char *copy_of(const ladei_source_settings *settings, const char *name, bool *lost) {
  return ladei_source_text_copy(ladei_source_variable(settings, name), lost);
}

static bool variables_load(const ladei_source_settings *settings, ladei_source_credentials *out, bool *lost) {
  *out = (ladei_source_credentials){.key = copy_of(settings, "AWS_ACCESS_KEY_ID", lost),
                                    .secret = copy_of(settings, "AWS_SECRET_ACCESS_KEY", lost),
                                    .token = copy_of(settings, "AWS_SESSION_TOKEN", lost)};
  return are_usable(out);
}

static bool profile_load(const ladei_source_settings *settings, ladei_source_credentials *out, bool *lost) {
  *out = (ladei_source_credentials){.key = ladei_source_profile_value(settings, "aws_access_key_id", lost),
                                    .secret = ladei_source_profile_value(settings, "aws_secret_access_key", lost),
                                    .token = ladei_source_profile_value(settings, "aws_session_token", lost)};
  return are_usable(out);
}

static bool services_load(const ladei_libcurl *curl, const ladei_source_settings *settings, const _Atomic(bool) *stop,
                          ladei_source_credentials *out, bool *lost) {
  reply *r = malloc(sizeof *r);
  *lost = *lost || r == NULL;
  if (r == NULL) return false;
  r->stop = stop;
  bool good = container_load(curl, settings, r, out) || instance_load(curl, settings, r, out);
  explicit_bzero(r, sizeof *r);
  free(r);
  return good;
}

/* Without memory for those of one place none of the next are taken: they may be another's. */
lade_status ladei_source_credentials_load(const ladei_libcurl *curl, const ladei_source_settings *settings,
                                          const _Atomic(bool) *stop, ladei_source_credentials *out) {
  ladei_source_credentials found = {.key = NULL};
  bool lost = false, good = variables_load(settings, &found, &lost);
  if (!good) ladei_source_credentials_free(&found);
  if (!good && !lost && !(good = profile_load(settings, &found, &lost))) ladei_source_credentials_free(&found);
  if (!good && !lost) good = services_load(curl, settings, stop, &found, &lost);
  assert(!good || lost || are_usable(&found));
  if (good && !lost) {
    *out = found;
    return LADE_OK;
  }
  ladei_source_credentials_free(&found);
  if (lost) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for credentials");
  return ladei_error(
      LADE_ERR_IO, EACCES,
      "no credentials that can be used: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, those of the "
      "profile, of the container or of the instance");
}
