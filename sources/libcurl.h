/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcurl, opened at the first URL: few programs need it, and it brings twenty libraries. Its header is not needed: types
 * and numbers below are those of its ABI, unchanged since they came (libcurl.so.4).
 *
 * I1  Once open it stays open. A table is complete: a library lacking a function is refused.
 * Threads: any; each caller has a table of its own.
 */
#ifndef LADE_SOURCES_LIBCURL_H
#define LADE_SOURCES_LIBCURL_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "lade/status.h"

typedef struct ladei_curl ladei_curl;             /* CURL */
typedef struct ladei_curl_multi ladei_curl_multi; /* CURLM */
typedef struct ladei_curl_list ladei_curl_list;   /* struct curl_slist */

typedef struct ladei_curl_message { /* CURLMsg */
  int kind;                         /* CURLMSG_DONE: 1 */
  ladei_curl *easy;
  union {
    void *other;
    int result; /* CURLcode */
  } data;
} ladei_curl_message;

/* CURLoption; long, unless said otherwise. */
enum {
  LADEI_CURL_LOW_SPEED_LIMIT = 19, /* bytes in a second */
  LADEI_CURL_LOW_SPEED_TIME = 20,  /* seconds */
  LADEI_CURL_NOPROGRESS = 43,
  LADEI_CURL_POST = 47,
  LADEI_CURL_FOLLOWLOCATION = 52,
  LADEI_CURL_FRESH_CONNECT = 74,
  LADEI_CURL_HTTPGET = 80,
  LADEI_CURL_HTTP_VERSION = 84,
  LADEI_CURL_BUFFERSIZE = 98,
  LADEI_CURL_NOSIGNAL = 99,
  LADEI_CURL_TIMEOUT_MS = 155,
  LADEI_CURL_CONNECTTIMEOUT_MS = 156,
  LADEI_CURL_PATH_AS_IS = 234,
  LADEI_CURL_UPLOAD_BUFFERSIZE = 280,
  LADEI_CURL_WRITEDATA = 10001, /* pointers, texts */
  LADEI_CURL_URL = 10002,
  LADEI_CURL_PROXY = 10004,
  LADEI_CURL_RANGE = 10007,
  LADEI_CURL_ERRORBUFFER = 10010,
  LADEI_CURL_POSTFIELDS = 10015, /* read while the request is under way */
  LADEI_CURL_USERAGENT = 10018,
  LADEI_CURL_HTTPHEADER = 10023,
  LADEI_CURL_HEADERDATA = 10029,
  LADEI_CURL_CUSTOMREQUEST = 10036,
  LADEI_CURL_XFERINFODATA = 10057,
  LADEI_CURL_CAINFO = 10065,
  LADEI_CURL_PRIVATE = 10103,
  LADEI_CURL_NOPROXY = 10177,
  LADEI_CURL_PROTOCOLS_STR = 10318,
  LADEI_CURL_WRITEFUNCTION = 20011, /* functions */
  LADEI_CURL_HEADERFUNCTION = 20079,
  LADEI_CURL_XFERINFOFUNCTION = 20219,
  LADEI_CURL_POSTFIELDSIZE_LARGE = 30120, /* curl_off_t, of 64 bits */
};
enum { LADEI_CURL_HTTP_1_1 = 2, LADEI_CURL_ERROR_BYTES = 256, LADEI_CURL_DONE = 1 };
/* CURLINFO */
enum { LADEI_CURL_INFO_STATUS = 0x200002, LADEI_CURL_INFO_PRIVATE = 0x100015, LADEI_CURL_INFO_SIZE_UPLOAD = 0x600007 };
/* CURLcode: those that another attempt does not change. */
enum {
  LADEI_CURL_OK = 0,
  LADEI_CURL_UNSUPPORTED_PROTOCOL = 1,
  LADEI_CURL_BAD_URL = 3,
  LADEI_CURL_UNKNOWN_OPTION = 48,
  LADEI_CURL_BAD_CLIENT_CERTIFICATE = 58,
  LADEI_CURL_BAD_CERTIFICATE = 60,
  LADEI_CURL_BAD_CA_FILE = 77,
};

typedef size_t (*ladei_curl_sink)(char *data, size_t one, size_t bytes, void *user);

/* X(result, member, function, parameters) */
#define LADEI_CURL_FUNCTIONS(X)                                                                                        \
  X(ladei_curl *, easy_init, curl_easy_init, (void))                                                                   \
  X(int, easy_setopt, curl_easy_setopt, (ladei_curl *, int, ...))                                                      \
  X(int, easy_getinfo, curl_easy_getinfo, (ladei_curl *, int, ...))                                                    \
  X(int, easy_perform, curl_easy_perform, (ladei_curl *))                                                              \
  X(void, easy_cleanup, curl_easy_cleanup, (ladei_curl *))                                                             \
  X(const char *, easy_strerror, curl_easy_strerror, (int))                                                            \
  X(ladei_curl_multi *, multi_init, curl_multi_init, (void))                                                           \
  X(int, multi_add_handle, curl_multi_add_handle, (ladei_curl_multi *, ladei_curl *))                                  \
  X(int, multi_remove_handle, curl_multi_remove_handle, (ladei_curl_multi *, ladei_curl *))                            \
  X(int, multi_perform, curl_multi_perform, (ladei_curl_multi *, int *))                                               \
  X(int, multi_poll, curl_multi_poll, (ladei_curl_multi *, void *, unsigned, int, int *))                              \
  X(int, multi_wakeup, curl_multi_wakeup, (ladei_curl_multi *))                                                        \
  X(ladei_curl_message *, multi_info_read, curl_multi_info_read, (ladei_curl_multi *, int *))                          \
  X(int, multi_cleanup, curl_multi_cleanup, (ladei_curl_multi *))                                                      \
  X(ladei_curl_list *, slist_append, curl_slist_append, (ladei_curl_list *, const char *))                             \
  X(void, slist_free_all, curl_slist_free_all, (ladei_curl_list *))                                                    \
  X(time_t, getdate, curl_getdate, (const char *, const time_t *))

typedef struct ladei_libcurl {
#define LADEI_CURL_MEMBER(result, member, function, parameters) result(*member) parameters;
  LADEI_CURL_FUNCTIONS(LADEI_CURL_MEMBER)
#undef LADEI_CURL_MEMBER
} ladei_libcurl;

/* LADE_ERR_UNSUPPORTED: it is not on this machine, or older than 7.85; the message names the package to install. */
lade_status ladei_libcurl_open(ladei_libcurl *out);

#endif /* LADE_SOURCES_LIBCURL_H */
