/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/upload_id.h"

#include <stdio.h>
#include <string.h>

bool ladei_source_upload_id(const char *answer, char *out, size_t room) {
  static const char tag[] = "<UploadId>";
  const char *at = strstr(answer, tag), *end = at != NULL ? strstr(at, "</UploadId>") : NULL;
  if (end == NULL) return false;
  at += sizeof tag - 1;
  if (end == at || end - at > LADEI_SOURCE_UPLOAD_ID_MOST || room < 3 * LADEI_SOURCE_UPLOAD_ID_MOST + 1) return false;
  for (; at < end; at++) {
    unsigned char byte = (unsigned char)*at;
    bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
                 byte == '-' || byte == '.' || byte == '_' || byte == '~';
    if (byte <= ' ' || byte > '~' || byte == '&' || byte == '<') return false; /* '&': one of XML's own */
    if (plain)
      *out++ = (char)byte;
    else
      out += sprintf(out, "%%%02X", byte);
  }
  *out = '\0';
  return true;
}
