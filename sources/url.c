/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/url.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

static const char alphanumerics[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
static const char hex_digits[] = "0123456789ABCDEFabcdef";
enum { PORT_MOST = 65535, BUCKET_MOST = 255, LABEL_MOST = 63, REGION_MOST = 32 };

/* --- taking apart ------------------------------------------------------------------------------------------------- */

static bool span_has_only(ladei_source_span span, const char *more) {
  for (size_t i = 0; i < span.bytes; i++)
    if (span.at[i] == '\0' || (strchr(alphanumerics, span.at[i]) == NULL && strchr(more, span.at[i]) == NULL))
      return false;
  return true;
}

/* Bytes of the host; 0: there is none. */
static size_t host_bytes(ladei_source_span authority) {
  size_t bytes = 0;
  if (authority.bytes > 0 && authority.at[0] == '[') {
    while (bytes < authority.bytes && authority.at[bytes] != ']') bytes++;
    bool good =
        bytes > 1 && bytes < authority.bytes && strspn(authority.at + 1, "0123456789ABCDEFabcdef:.") == bytes - 1;
    return good ? bytes + 1 : 0;
  }
  while (bytes < authority.bytes && authority.at[bytes] != ':') bytes++;
  return span_has_only((ladei_source_span){authority.at, bytes}, ".-") ? bytes : 0;
}

/* 0: it is none. */
static unsigned port_read(ladei_source_span digits) {
  unsigned port = 0;
  if (digits.bytes > 5) return 0;
  for (size_t i = 0; i < digits.bytes; i++) {
    if (digits.at[i] < '0' || digits.at[i] > '9') return 0;
    port = port * 10 + (unsigned)(digits.at[i] - '0');
  }
  return port <= PORT_MOST ? port : 0;
}

static const char *authority_check(ladei_source_url *url, const char **at) {
  ladei_source_span *authority = &url->authority;
  size_t host = host_bytes(*authority);
  *at = authority->at;
  if (host == 0) return "a host of letters, digits, '.' and '-', or an address, without a user";
  if (host == authority->bytes) return NULL;
  *at = authority->at + host;
  unsigned port = authority->at[host] == ':' ? port_read((ladei_source_span){*at + 1, authority->bytes - host - 1}) : 0;
  if (port == 0) return "a port from 1 to 65535";
  if (port == (url->tls ? 443 : 80)) authority->bytes = host;
  return NULL;
}

/* Path and query as HTTP sends them. */
static const char *path_check(const char *text, const char **at) {
  for (*at = text; **at != '\0'; (*at)++) {
    unsigned char byte = (unsigned char)**at;
    if (byte <= ' ' || byte > '~' || strchr("\"#<>\\^`{|}", byte) != NULL)
      return "printable ASCII, anything else and \"#<>\\^`{|} as %XX";
    if (byte == '%' && strspn(*at + 1, hex_digits) < 2) return "two hexadecimal digits after %";
  }
  return NULL;
}

static const char *http_parse(const char *rest, ladei_source_url *out, const char **at) {
  out->authority = (ladei_source_span){rest, strcspn(rest, "/?#")};
  const char *path = rest + out->authority.bytes;
  out->path = (ladei_source_span){path, strcspn(path, "?")};
  out->query = (ladei_source_span){path + out->path.bytes, strlen(path + out->path.bytes)};
  const char *expected = authority_check(out, at);
  return expected == NULL ? path_check(path, at) : expected;
}

static const char *s3_parse(const char *rest, ladei_source_url *out, const char **at) {
  out->s3 = true;
  out->authority = (ladei_source_span){rest, strcspn(rest, "/")};
  *at = rest;
  if (out->authority.bytes == 0 || out->authority.bytes > BUCKET_MOST || !span_has_only(out->authority, ".-_"))
    return "a bucket of letters, digits, '.', '-' and '_'";
  *at = rest + out->authority.bytes;
  if ((*at)[0] != '/' || (*at)[1] == '\0') return "'/' and a key";
  out->path = (ladei_source_span){*at + 1, strlen(*at + 1)};
  return NULL;
}

static bool is_s3(const char *text) { return strncasecmp(text, "s3://", 5) == 0; }

bool ladei_source_url_is(const char *text) {
  return is_s3(text) || strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0;
}

const char *ladei_source_url_parse(const char *text, ladei_source_url *out, size_t *out_at) {
  const char *at = text, *expected = "http://, https:// or s3://";
  *out = (ladei_source_url){.tls = strncasecmp(text, "https://", 8) == 0};
  if (is_s3(text))
    expected = s3_parse(text + 5, out, &at);
  else if (ladei_source_url_is(text))
    expected = http_parse(text + (out->tls ? 8 : 7), out, &at);
  *out_at = (size_t)(at - text);
  return expected;
}

/* --- targets ------------------------------------------------------------------------------------------------------ */

static char *key_encode(char *to, ladei_source_span key) {
  for (size_t i = 0; i < key.bytes; i++) {
    unsigned char byte = (unsigned char)key.at[i];
    if (strchr(alphanumerics, byte) != NULL || strchr("-_.~/", byte) != NULL)
      *to++ = (char)byte;
    else
      to += sprintf(to, "%%%02X", byte);
  }
  *to = '\0';
  return to;
}

size_t ladei_source_url_path_bytes(const char *url) { return is_s3(url) ? strlen(url) : strcspn(url, "?"); }

char *ladei_source_url_beside(const char *url, const char *name) {
  size_t folder = ladei_source_url_path_bytes(url), room = strlen(url) + 3 * strlen(name) + 1;
  const char *query = url + folder;
  while (folder > 0 && url[folder - 1] != '/') folder--;
  char *beside = malloc(room), *at = beside + folder;
  if (beside == NULL) return NULL;
  memcpy(beside, url, folder);
  at = is_s3(url) ? stpcpy(at, name) : key_encode(at, (ladei_source_span){name, strlen(name)});
  strcpy(at, query);
  return beside;
}

/* Whether the bucket is one label of a host's name, which certificates of the service hold for. */
static bool bucket_is_label(ladei_source_span bucket) {
  bool lower = true;
  for (size_t i = 0; i < bucket.bytes; i++) lower = lower && !(bucket.at[i] >= 'A' && bucket.at[i] <= 'Z');
  return lower && bucket.bytes >= 3 && bucket.bytes <= LABEL_MOST && span_has_only(bucket, "-") &&
         bucket.at[0] != '-' && bucket.at[bucket.bytes - 1] != '-';
}

/* Everything before the path. `room` is enough for it. */
static int service_print(char *to, size_t room, const char *region, bool label, ladei_source_span bucket) {
  const char *country = strncmp(region, "cn-", 3) == 0 ? ".cn" : "";
  return label ? snprintf(to, room, "https://%.*s.s3.%s.amazonaws.com%s", (int)bucket.bytes, bucket.at, region, country)
               : snprintf(to, room, "https://s3.%s.amazonaws.com%s", region, country);
}

static lade_status endpoint_check(const char *endpoint, ladei_source_url *out) {
  size_t at = 0;
  const char *expected = endpoint != NULL ? ladei_source_url_parse(endpoint, out, &at) : NULL;
  if (expected == NULL && endpoint != NULL && (out->s3 || out->query.bytes > 0))
    expected = "http:// or https://, no query";
  return expected == NULL
             ? LADE_OK
             : ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                           "the endpoint URL of the settings is refused at byte %zu; expected %s", at, expected);
}

static lade_status region_check(const char *region) {
  size_t bytes = strlen(region);
  if (bytes > 0 && bytes <= REGION_MOST && span_has_only((ladei_source_span){region, bytes}, "-")) return LADE_OK;
  return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0,
                     "the region of the settings has %zu bytes; expected 1 to %d letters, digits and '-'", bytes,
                     REGION_MOST);
}

/* The URL to ask for; `room` is enough. */
static void s3_print(char *to, size_t room, const ladei_source_url *url, const ladei_source_url *endpoint,
                     const char *region) {
  bool label = endpoint->authority.bytes == 0 && bucket_is_label(url->authority);
  size_t path = endpoint->path.bytes;
  if (path > 0 && endpoint->path.at[path - 1] == '/') path--;
  to += endpoint->authority.bytes == 0
            ? service_print(to, room, region, label, url->authority)
            : sprintf(to, "%s://%.*s%.*s", endpoint->tls ? "https" : "http", (int)endpoint->authority.bytes,
                      endpoint->authority.at, (int)path, endpoint->path.at);
  if (!label) to += sprintf(to, "/%.*s", (int)url->authority.bytes, url->authority.at);
  *to++ = '/';
  (void)key_encode(to, url->path);
}

static void http_print(char *to, const ladei_source_url *url) {
  (void)sprintf(to, "%s://%.*s%s%.*s%.*s", url->tls ? "https" : "http", (int)url->authority.bytes, url->authority.at,
                url->path.bytes == 0 ? "/" : "", (int)url->path.bytes, url->path.at, (int)url->query.bytes,
                url->query.at != NULL ? url->query.at : "");
}

/* Finds the parts of the URL, and writes the host in lower case (U1). */
static void target_divide(ladei_source_target *target) {
  char *authority = strstr(target->url, "://") + 3;
  target->authority = (ladei_source_span){authority, strcspn(authority, "/")};
  target->path.at = authority + target->authority.bytes;
  target->path.bytes = strcspn(target->path.at, "?");
  target->tls = target->url[4] == 's';
  for (size_t i = 0; i < target->authority.bytes; i++)
    if (authority[i] >= 'A' && authority[i] <= 'Z') authority[i] = (char)(authority[i] - 'A' + 'a');
  assert(target->path.at[0] == '/');
  assert(strpbrk(target->url, "\t\r\n ") == NULL && memchr(authority, '@', target->authority.bytes) == NULL); /* U1 */
}

lade_status ladei_source_target_make(const ladei_source_url *url, const char *endpoint, const char *region,
                                     ladei_source_target *out) {
  ladei_source_url service = {.s3 = false};
  ladei_source_target target = {.is_signed = url->s3};
  if (url->s3) LADEI_TRY(endpoint_check(endpoint, &service));
  if (url->s3) LADEI_TRY(region_check(region));
  size_t room = 128 + service.authority.bytes + service.path.bytes + 2 * url->authority.bytes + 3 * url->path.bytes +
                url->query.bytes;
  size_t shown = 16 + url->authority.bytes + url->path.bytes;
  target.url = malloc(room);
  target.shown = malloc(shown);
  if (target.url == NULL || target.shown == NULL) {
    ladei_source_target_free(&target);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a URL");
  }
  if (url->s3)
    s3_print(target.url, room, url, &service, region);
  else
    http_print(target.url, url);
  target_divide(&target);
  const char *scheme = url->s3 ? "s3" : url->tls ? "https" : "http";
  (void)snprintf(target.shown, shown, "%s://%.*s%s%.*s", scheme, (int)url->authority.bytes, url->authority.at,
                 url->s3 ? "/" : "", (int)url->path.bytes, url->path.at);
  assert(strchr(target.shown, '?') == NULL || url->s3); /* U3 */
  *out = target;
  return LADE_OK;
}

void ladei_source_target_free(ladei_source_target *target) {
  free(target->url);
  free(target->shown);
}
