/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/answer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Reads decimal digits; false: there are none, or too many. */
static bool number_take(const char **at, uint64_t *out) {
  uint64_t value = 0;
  const char *from = *at;
  for (; **at >= '0' && **at <= '9'; (*at)++) {
    if (value > (UINT64_MAX - 9) / 10) return false;
    value = value * 10 + (uint64_t)(**at - '0');
  }
  *out = value;
  return *at > from;
}

static bool byte_take(const char **at, char byte) {
  bool there = **at == byte;
  *at += there ? 1 : 0;
  return there;
}

/* "bytes 0-99/1000"; of a 416 with an asterisk instead of the range, which then ends before it begins: no request's. */
static void range_read(ladei_source_answer *answer, const char *value) {
  const char *at = value;
  bool good = strncasecmp(at, "bytes ", 6) == 0;
  at += good ? 6 : 0;
  answer->first = 1;
  answer->last = 0;
  if (good && byte_take(&at, '*'))
    good = byte_take(&at, '/') && number_take(&at, &answer->total);
  else
    good = good && number_take(&at, &answer->first) && byte_take(&at, '-') && number_take(&at, &answer->last) &&
           byte_take(&at, '/') && number_take(&at, &answer->total) && answer->first <= answer->last &&
           answer->last < answer->total;
  answer->bad_range = answer->has_range || !good || *at != '\0';
  answer->has_range = true;
}

static void text_keep(char *to, size_t room, const char *value) {
  to[0] = '\0';
  if (strlen(value) < room) strcpy(to, value);
}

static void field_read(ladei_source_answer *answer, const char *name, const char *value) {
  uint64_t number = 0;
  const char *at = value;
  if (strcasecmp(name, "Content-Range") == 0) {
    range_read(answer, value);
  } else if (strcasecmp(name, "Content-Length") == 0) {
    answer->has_length = number_take(&at, &answer->length);
  } else if (strcasecmp(name, "Content-Encoding") == 0) {
    answer->encoded = strcasecmp(value, "identity") != 0;
  } else if (strcasecmp(name, "Retry-After") == 0) {
    answer->retry_after_s = number_take(&at, &number) && number < 3600 ? (uint32_t)number : 0;
  } else if (strcasecmp(name, "ETag") == 0) {
    text_keep(answer->etag, sizeof answer->etag, value);
  } else if (strcasecmp(name, "Last-Modified") == 0) {
    text_keep(answer->modified, sizeof answer->modified, value);
  } else if (strcasecmp(name, "Date") == 0) {
    text_keep(answer->date, sizeof answer->date, value);
  } else if (strcasecmp(name, "x-amz-server-side-encryption") == 0) {
    answer->keyed = answer->keyed || strcasecmp(value, "AES256") != 0;
  } else if (strcasecmp(name, "x-amz-server-side-encryption-customer-algorithm") == 0) {
    answer->keyed = true;
  } else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
    text_keep(answer->region, sizeof answer->region, value);
    ladei_text_tame(answer->region);
  }
}

bool ladei_source_answer_line(ladei_source_answer *answer, const char *line, size_t bytes) {
  char text[256], *colon;
  while (bytes > 0 && strchr(" \t\r\n", line[bytes - 1]) != NULL) bytes--;
  if (bytes == 0) return true;
  if (bytes >= sizeof text) return false; /* no field that counts is so long, except an ETag, which is then not kept */
  memcpy(text, line, bytes);
  text[bytes] = '\0';
  if (strncmp(text, "HTTP/", 5) == 0) {
    const char *at = text + strcspn(text, " ");
    uint64_t status = 0;
    *answer = (ladei_source_answer){.status = 0};
    (void)byte_take(&at, ' ');
    if (number_take(&at, &status) && status < 1000) answer->status = (int)status;
  } else if ((colon = strchr(text, ':')) != NULL) {
    *colon = '\0';
    field_read(answer, text, colon + 1 + strspn(colon + 1, " \t"));
  }
  return false;
}

/* --- the verdict -------------------------------------------------------------------------------------------------- */

static bool is_weak(const char *etag) { return strncmp(etag, "W/", 2) == 0; }

bool ladei_source_version_is_strong(const ladei_source_version *version) {
  return version->known && version->etag[0] != '\0' && !is_weak(version->etag);
}

static const char *etag_opaque(const char *etag) { return is_weak(etag) ? etag + 2 : etag; }

const char *ladei_source_version_tag(const ladei_source_version *version) {
  return version->etag[0] != '\0' ? etag_opaque(version->etag) : version->modified;
}

static bool version_is(const ladei_source_version *version, const ladei_source_answer *answer) {
  bool by_etag = ladei_source_version_is_strong(version);
  return version->total == answer->total && strcmp(etag_opaque(version->etag), etag_opaque(answer->etag)) == 0 &&
         (by_etag || strcmp(version->modified, answer->modified) == 0);
}

lade_status ladei_source_answer_truncated(uint64_t total, uint64_t end) {
  assert(total < end);
  return ladei_error(LADE_ERR_TRUNCATED, 0, "it ends at byte %llu, %llu bytes before the end of the range",
                     (unsigned long long)total, (unsigned long long)(end - total));
}

lade_status ladei_source_answer_check(const ladei_source_answer *answer, uint64_t offset, uint64_t bytes, bool may_end,
                                      ladei_source_version *version) {
  uint64_t last = offset + bytes - 1;
  assert(bytes > 0 && last >= offset);
  if (answer->status != 206)
    return ladei_error(LADE_ERR_IO, EPROTO, "HTTP %d; expected 206: the server does not serve ranges of it",
                       answer->status);
  if (answer->encoded) return ladei_error(LADE_ERR_IO, EPROTO, "HTTP 206 with an encoding; expected plain bytes");
  if (!answer->has_range || answer->bad_range)
    return ladei_error(LADE_ERR_IO, EPROTO, "HTTP 206 with %s Content-Range; expected bytes %llu-%llu and the size",
                       answer->has_range ? "a bad" : "no", (unsigned long long)offset, (unsigned long long)last);
  if (version->known && !version_is(version, answer))
    return ladei_error(LADE_ERR_IO, ESTALE, "it was replaced while it was read");
  bool ends = answer->first == offset && answer->first <= answer->last && answer->last < last &&
              answer->last + 1 == answer->total;
  if (ends && !may_end) return ladei_source_answer_truncated(answer->total, last + 1);
  if (ends) last = answer->last;
  if (answer->first != offset || answer->last != last)
    return ladei_error(LADE_ERR_IO, EPROTO, "HTTP 206 with bytes %llu-%llu; expected %llu-%llu",
                       (unsigned long long)answer->first, (unsigned long long)answer->last, (unsigned long long)offset,
                       (unsigned long long)last);
  bytes = last + 1 - offset;
  if (answer->has_length && answer->length != bytes)
    return ladei_error(LADE_ERR_IO, EPROTO, "HTTP 206 with Content-Length %llu; expected %llu",
                       (unsigned long long)answer->length, (unsigned long long)bytes);
  assert(!answer->encoded && answer->last < answer->total); /* A1 */
  if (!version->known) {
    *version = (ladei_source_version){.known = true, .total = answer->total};
    strcpy(version->etag, answer->etag);
    strcpy(version->modified, answer->modified);
  }
  assert(version->known && version->total == answer->total); /* A2 */
  return LADE_OK;
}
