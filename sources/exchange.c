/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/exchange.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/size.h"

/* libcurl hands out at most 16 KiB at once, whatever this is, but it reads that much with one system call. */
enum { RECEIVE_BYTES = 512 << 10, SEND_BYTES = 512 << 10, STALL_BYTES = 1024, PATIENCE = 10 };

/* --- the answer --------------------------------------------------------------------------------------------------- */

/* The empty line after a head: the verdict, unless another head follows. */
static void head_judge(ladei_source_exchange *exchange) {
  const ladei_source_answer *answer = &exchange->answer;
  ladei_source_read *read = exchange->read;
  if (answer->status < 200 || answer->status >= 300 || exchange->accepted) return;
  if (read->sends != NULL) {
    exchange->accepted = true; /* so far: X5 */
    return;
  }
  lade_status status = ladei_source_answer_check(answer, read->offset + read->done, read->bytes - read->done,
                                                 read->may_end, &read->object->version);
  exchange->accepted = status == LADE_OK;
  if (status != LADE_OK)
    ladei_error_save(&exchange->refusal);
  else
    read->bytes = (size_t)(answer->last + 1 - read->offset);
}

static size_t head_take(char *data, size_t one, size_t bytes, void *user) {
  ladei_source_exchange *exchange = user;
  (void)one; /* always 1 */
  if (ladei_source_answer_line(&exchange->answer, data, bytes)) head_judge(exchange);
  return bytes;
}

/* The next bytes of the range go to their places. */
static void bytes_place(ladei_source_read *read, const char *data, size_t bytes) {
  ladei_source_place *rest = &read->rest;
  read->done += bytes;
  while (bytes > 0) {
    if (rest->bytes == 0) *rest = *read->places++;
    size_t skipped = ladei_size_min(bytes, rest->skip);
    size_t kept = ladei_size_min(bytes - skipped, rest->bytes);
    if (kept > 0) memcpy(rest->memory, data + skipped, kept);
    rest->skip -= skipped;
    rest->bytes -= kept;
    rest->memory += kept;
    data += skipped + kept;
    bytes -= skipped + kept;
  }
}

/* The first bytes of an answer to what was sent; the rest is of no interest. */
static void reply_keep(ladei_source_read *read, const char *data, size_t bytes) {
  size_t kept = ladei_size_min(bytes, read->bytes - 1 - read->done);
  if (kept > 0) memcpy(read->buffer + read->done, data, kept);
  read->done += kept;
  read->buffer[read->done] = '\0';
}

static size_t body_take(char *data, size_t one, size_t bytes, void *user) {
  ladei_source_exchange *exchange = user;
  ladei_source_read *read = exchange->read;
  (void)one;                         /* always 1 */
  assert(read->done <= read->bytes); /* X1 */
  if (exchange->accepted && read->sends != NULL) {
    reply_keep(read, data, bytes);
    return bytes;
  }
  if (exchange->accepted) {
    if (bytes > read->bytes - read->done) {
      ladei_error(LADE_ERR_IO, EPROTO, "HTTP 206 with more bytes than its Content-Range says");
      ladei_error_save(&exchange->refusal);
      return 0;
    }
    bytes_place(read, data, bytes);
    return bytes;
  }
  assert(exchange->body_bytes < sizeof exchange->body);
  size_t kept = ladei_size_min(bytes, sizeof exchange->body - 1 - exchange->body_bytes);
  memcpy(exchange->body + exchange->body_bytes, data, kept);
  exchange->body_bytes += kept;
  exchange->body[exchange->body_bytes] = '\0';
  return kept;
}

/* --- the request -------------------------------------------------------------------------------------------------- */

static bool option_set(const ladei_source_exchange *exchange, int option, const void *value) {
  return exchange->curl->easy_setopt(exchange->easy, option, value) == LADEI_CURL_OK;
}

static bool number_set(const ladei_source_exchange *exchange, int option, long value) {
  return exchange->curl->easy_setopt(exchange->easy, option, value) == LADEI_CURL_OK;
}

/* Options that hold for all requests of the handle. */
static bool handle_prepare(ladei_source_exchange *exchange, const ladei_source_settings *settings,
                           const ladei_source_options *limits) {
  const ladei_libcurl *curl = exchange->curl;
  const char *no_proxy = ladei_source_variable(settings, "no_proxy");
  if (no_proxy == NULL) no_proxy = ladei_source_variable(settings, "NO_PROXY");
  (void)number_set(exchange, LADEI_CURL_UPLOAD_BUFFERSIZE, SEND_BYTES); /* else less, at more system calls */
  return curl->easy_setopt(exchange->easy, LADEI_CURL_HEADERFUNCTION, head_take) == LADEI_CURL_OK &&
         curl->easy_setopt(exchange->easy, LADEI_CURL_WRITEFUNCTION, body_take) == LADEI_CURL_OK &&
         option_set(exchange, LADEI_CURL_HEADERDATA, exchange) &&
         option_set(exchange, LADEI_CURL_WRITEDATA, exchange) && option_set(exchange, LADEI_CURL_PRIVATE, exchange) &&
         option_set(exchange, LADEI_CURL_ERRORBUFFER, exchange->error) &&
         option_set(exchange, LADEI_CURL_USERAGENT, "lade") &&
         option_set(exchange, LADEI_CURL_PROTOCOLS_STR, "http,https") &&
         option_set(exchange, LADEI_CURL_NOPROXY, no_proxy != NULL ? no_proxy : "") &&
         (settings->ca_file == NULL || option_set(exchange, LADEI_CURL_CAINFO, settings->ca_file)) &&
         number_set(exchange, LADEI_CURL_HTTP_VERSION, LADEI_CURL_HTTP_1_1) &&
         number_set(exchange, LADEI_CURL_BUFFERSIZE, RECEIVE_BYTES) && number_set(exchange, LADEI_CURL_NOSIGNAL, 1) &&
         number_set(exchange, LADEI_CURL_PATH_AS_IS, 1) && number_set(exchange, LADEI_CURL_FOLLOWLOCATION, 0) &&
         number_set(exchange, LADEI_CURL_CONNECTTIMEOUT_MS, limits->connect_ms) &&
         number_set(exchange, LADEI_CURL_LOW_SPEED_LIMIT, STALL_BYTES);
}

static bool header_add(ladei_source_exchange *exchange, const char *header) {
  ladei_curl_list *longer = exchange->curl->slist_append(exchange->headers, header);
  if (longer != NULL) exchange->headers = longer;
  return longer != NULL;
}

static bool named_header_add(ladei_source_exchange *exchange, const char *name, const char *value) {
  char *header;
  if (asprintf(&header, "%s: %s", name, value) < 0) return false;
  bool added = header_add(exchange, header);
  explicit_bzero(header, strlen(header));
  free(header);
  return added;
}

static bool signature_add(ladei_source_exchange *exchange, const ladei_source_target *target,
                          const ladei_source_settings *settings, const ladei_source_credentials *credentials,
                          time_t now) {
  static const ladei_source_wording get = {.method = "GET", .query = ""};
  const ladei_source_sending *sends = exchange->read->sends;
  ladei_source_signature signature;
  bool added = true;
  ladei_source_sign(target, sends != NULL ? &sends->wording : &get, credentials, settings->region, now, &signature);
  for (size_t i = 0; i < LADEI_SOURCE_SIGNED_HEADERS && added; i++) added = header_add(exchange, signature.headers[i]);
  if (credentials->token == NULL) return added;
  return added && named_header_add(exchange, "x-amz-security-token", credentials->token);
}

static void headers_drop(ladei_source_exchange *exchange) {
  exchange->curl->slist_free_all(exchange->headers);
  exchange->headers = NULL;
}

/* A request for the rest of a range. */
static bool range_set(ladei_source_exchange *exchange, const ladei_source_read *read) {
  const ladei_source_object *object = read->object;
  char range[48];
  _Static_assert(sizeof range > 2 * 20 + 1, "two numbers of 64 bits");
  (void)snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)(read->offset + read->done),
                 (unsigned long long)(read->offset + read->bytes - 1));
  return number_set(exchange, LADEI_CURL_HTTPGET, 1) && option_set(exchange, LADEI_CURL_CUSTOMREQUEST, NULL) &&
         option_set(exchange, LADEI_CURL_URL, object->target.url) && option_set(exchange, LADEI_CURL_RANGE, range) &&
         (!ladei_source_version_is_strong(&object->version) ||
          named_header_add(exchange, "If-Match", object->version.etag));
}

/* A request that sends. libcurl takes the body from where it is, again if it must; the type that it gives it is taken away. */
static bool sending_set(ladei_source_exchange *exchange, ladei_source_read *read) {
  const ladei_source_sending *sends = read->sends;
  const ladei_source_wording *wording = &sends->wording;
  char *url;
  read->done = 0;
  read->buffer[0] = '\0';
  if (asprintf(&url, "%s%s%s", read->object->target.url, wording->query[0] != '\0' ? "?" : "", wording->query) < 0)
    return false;
  bool set = option_set(exchange, LADEI_CURL_URL, url) && option_set(exchange, LADEI_CURL_RANGE, NULL);
  free(url);
  if (strcmp(wording->method, "DELETE") == 0)
    set = set && number_set(exchange, LADEI_CURL_HTTPGET, 1);
  else
    set = set && number_set(exchange, LADEI_CURL_POST, 1) &&
          option_set(exchange, LADEI_CURL_POSTFIELDS, sends->bytes > 0 ? sends->body : "") &&
          number_set(exchange, LADEI_CURL_POSTFIELDSIZE_LARGE, (long)sends->bytes) &&
          header_add(exchange, "Content-Type:");
  return set && option_set(exchange, LADEI_CURL_CUSTOMREQUEST, wording->method) &&
         (wording->md5 == NULL || named_header_add(exchange, "Content-MD5", wording->md5));
}

lade_status ladei_source_exchange_begin(ladei_source_exchange *exchange, ladei_source_read *read,
                                        const ladei_source_settings *settings,
                                        const ladei_source_credentials *credentials, time_t now) {
  const ladei_source_target *target = &read->object->target;
  const ladei_source_sending *sends = read->sends;
  assert(exchange->read == NULL && (sends != NULL || read->done < read->bytes)); /* X2: the rest */
  exchange->read = read;
  exchange->answer = (ladei_source_answer){.status = 0};
  exchange->accepted = false;
  exchange->refusal.status = LADE_OK;
  exchange->body_bytes = 0;
  exchange->body[0] = exchange->error[0] = '\0';
  headers_drop(exchange);
  bool fresh = sends != NULL && sends->begins;
  uint32_t stall_s = exchange->stall_s * (sends != NULL && sends->patient ? PATIENCE : 1);
  bool made = (sends != NULL ? sending_set(exchange, read) : range_set(exchange, read)) &&
              number_set(exchange, LADEI_CURL_LOW_SPEED_TIME, stall_s) &&
              number_set(exchange, LADEI_CURL_FRESH_CONNECT, fresh ? 1 : 0) &&
              option_set(exchange, LADEI_CURL_PROXY, ladei_source_proxy(settings, target->tls)) &&
              (!target->is_signed || signature_add(exchange, target, settings, credentials, now)) &&
              option_set(exchange, LADEI_CURL_HTTPHEADER, exchange->headers);
  return made ? LADE_OK : ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a request");
}

/* --- the outcome -------------------------------------------------------------------------------------------------- */

/* The code of an error of S3, as "<Code>SlowDown</Code>"; "": there is none. */
static void code_find(const char *body, char *out, size_t room) {
  const char *at = strstr(body, "<Code>");
  size_t bytes = at != NULL ? strspn(at + 6, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.") : 0;
  (void)snprintf(out, room, "%.*s", (int)bytes, at != NULL ? at + 6 : "");
}

bool ladei_source_exchange_is_sent(const ladei_source_exchange *exchange) {
  const ladei_source_sending *sends = exchange->read->sends;
  int64_t sent = 0;
  return sends != NULL &&
         exchange->curl->easy_getinfo(exchange->easy, LADEI_CURL_INFO_SIZE_UPLOAD, &sent) == LADEI_CURL_OK &&
         sent >= (int64_t)sends->bytes;
}

bool ladei_source_exchange_says(const ladei_source_exchange *exchange, const char *code) {
  char said[64];
  code_find(exchange->body, said, sizeof said);
  return strcmp(said, code) == 0;
}

static int errno_of(int http_status) {
  switch (http_status) {
  case 401:
  case 403:
  case 407: return EACCES;
  case 404:
  case 410: return ENOENT;
  case 408:
  case 504: return ETIMEDOUT;
  case 429:
  case 503: return EAGAIN;
  default: return EIO;
  }
}

static bool is_temporary(int http_status) {
  switch (http_status) {
  case 408:
  case 429:
  case 500:
  case 502:
  case 503:
  case 504: return true;
  default: return false;
  }
}

/* Of an answer to what was sent: another attempt may do better, whatever the status says. */
static bool is_temporary_code(const char *code) {
  static const char *const codes[] = {"InternalError",  "SlowDown",  "ServiceUnavailable", "RequestTimeout",
                                      "IncompleteBody", "BadDigest", "OperationAborted"};
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
    if (strcmp(code, codes[i]) == 0) return true;
  return false;
}

/* A 416, whose server may say how long the object is, or not. */
static lade_status answer_unsatisfied(const ladei_source_exchange *exchange) {
  const ladei_source_answer *answer = &exchange->answer;
  const ladei_source_read *read = exchange->read;
  const ladei_source_version *version = &read->object->version;
  uint64_t end = read->offset + read->bytes;
  bool said = answer->has_range && !answer->bad_range;
  uint64_t total = said ? answer->total : version->total;
  if (said && version->known && version->total != total)
    return ladei_error(LADE_ERR_IO, ESTALE, "it was replaced while it was read");
  if ((said || version->known) && total < end) return ladei_source_answer_truncated(total, end);
  return ladei_error(LADE_ERR_TRUNCATED, 0, "HTTP 416: it ends before byte %llu",
                     (unsigned long long)(read->offset + read->done));
}

/* An answer that is no 2xx. */
static lade_status answer_refused(const ladei_source_exchange *exchange) {
  const ladei_source_answer *answer = &exchange->answer;
  bool sends = exchange->read->sends != NULL;
  char code[64];
  if (answer->status == 412 && !sends) return ladei_error(LADE_ERR_IO, ESTALE, "it was replaced while it was read");
  if (answer->status == 416 && !sends) return answer_unsatisfied(exchange);
  code_find(exchange->body, code, sizeof code);
  bool temporary = is_temporary(answer->status) || (sends && is_temporary_code(code));
  lade_status status = temporary ? LADE_NOT_READY : LADE_ERR_IO;
  const char *why = answer->status < 400 ? "; redirections are not followed" : "";
  const char *region = answer->region[0] != '\0' ? "; its bucket is in region " : "";
  return ladei_error(status, errno_of(answer->status), "HTTP %d%s%s%s%s%s", answer->status, code[0] != '\0' ? " " : "",
                     code, why, region, answer->region);
}

static bool is_final(int result) {
  switch (result) {
  case LADEI_CURL_UNSUPPORTED_PROTOCOL:
  case LADEI_CURL_BAD_URL:
  case LADEI_CURL_BAD_CLIENT_CERTIFICATE:
  case LADEI_CURL_BAD_CERTIFICATE:
  case LADEI_CURL_BAD_CA_FILE: return true;
  default: return false;
  }
}

/* "0123...": 32 digits in quotes. */
static bool is_md5(const char *etag) {
  return strlen(etag) == 34 && etag[0] == '"' && etag[33] == '"' && strspn(etag + 1, "0123456789abcdefABCDEF") == 32;
}

static lade_status etag_check(const ladei_source_answer *answer, ladei_source_sending *sends) {
  if (answer->etag[0] == '\0' || strlen(answer->etag) >= sizeof sends->etag || strpbrk(answer->etag, "<>&") != NULL)
    return ladei_error(LADE_ERR_IO, EPROTO, "HTTP %d without an ETag of at most %zu bytes", answer->status,
                       sizeof sends->etag - 1);
  if (is_md5(answer->etag) && !answer->keyed && strncasecmp(answer->etag + 1, sends->md5, 32) != 0)
    return ladei_error(LADE_NOT_READY, EIO, "HTTP %d with ETag %.40s; expected \"%s\", the MD5 of what was sent",
                       answer->status, answer->etag, sends->md5);
  strcpy(sends->etag, answer->etag);
  return LADE_OK;
}

/* X5, of a whole answer with a status of 2xx. */
static lade_status sending_judge(const ladei_source_exchange *exchange) {
  const ladei_source_answer *answer = &exchange->answer;
  const ladei_source_read *read = exchange->read;
  char code[64];
  if (read->sends->expects == NULL) return etag_check(answer, read->sends);
  if (strstr(read->buffer, read->sends->expects) != NULL) return LADE_OK;
  code_find(read->buffer, code, sizeof code);
  lade_status status = code[0] == '\0' || is_temporary_code(code) ? LADE_NOT_READY : LADE_ERR_IO;
  int reason = strcmp(code, "NoSuchUpload") == 0 ? ENOENT : EIO; /* as where the status says so */
  return ladei_error(status, reason, "HTTP %d with %s in its body; expected %s", answer->status,
                     code[0] != '\0' ? code : "nothing of use", read->sends->expects);
}

lade_status ladei_source_exchange_end(const ladei_source_exchange *exchange, int result) {
  const ladei_source_read *read = exchange->read;
  if (exchange->refusal.status != LADE_OK) {
    ladei_error_restore(&exchange->refusal);
    return exchange->refusal.status;
  }
  bool sends = read->sends != NULL;
  if (exchange->accepted && (sends ? result == LADEI_CURL_OK : read->done == read->bytes))
    return sends ? sending_judge(exchange) : LADE_OK;
  if (exchange->answer.status >= 300) return answer_refused(exchange);
  const char *why = exchange->error[0] != '\0' ? exchange->error : exchange->curl->easy_strerror(result);
  if (result != LADEI_CURL_OK) return ladei_error(is_final(result) ? LADE_ERR_IO : LADE_NOT_READY, EIO, "%.200s", why);
  return ladei_error(LADE_NOT_READY, EIO, "the answer ended after %zu of %zu bytes", read->done, read->bytes);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

lade_status ladei_source_exchange_create(const ladei_libcurl *curl, const ladei_source_settings *settings,
                                         const ladei_source_options *limits, ladei_source_exchange **out) {
  ladei_source_exchange *exchange = calloc(1, sizeof *exchange);
  if (exchange != NULL) {
    exchange->curl = curl;
    exchange->stall_s = limits->stall_s;
    exchange->easy = curl->easy_init();
    if (exchange->easy != NULL && handle_prepare(exchange, settings, limits)) {
      *out = exchange;
      return LADE_OK;
    }
    ladei_source_exchange_destroy(exchange);
  }
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a request");
}

void ladei_source_exchange_destroy(ladei_source_exchange *exchange) {
  if (exchange->easy != NULL) exchange->curl->easy_cleanup(exchange->easy);
  headers_drop(exchange);
  free(exchange);
}
