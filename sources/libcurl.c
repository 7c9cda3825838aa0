/* SPDX-License-Identifier: Apache-2.0 */
/* Opening libcurl. A failure is not kept: the package may be installed while the program runs. */
#include "sources/libcurl.h"

#include <dlfcn.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/library_functions.h"

static const char soname[] = "libcurl.so.4";

static const ladei_library_function functions[] = {
#define FUNCTION(result, member, function, parameters) LADEI_LIBRARY_FUNCTION(ladei_libcurl, member, function),
    LADEI_CURL_FUNCTIONS(FUNCTION)
#undef FUNCTION
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

/* PROTOCOLS_STR came with 7.85, as did an initialisation that any thread may make. */
static bool is_new_enough(const ladei_libcurl *curl) {
  ladei_curl *easy = curl->easy_init();
  bool good = easy != NULL && curl->easy_setopt(easy, LADEI_CURL_PROTOCOLS_STR, "http,https") == LADEI_CURL_OK;
  if (easy != NULL) curl->easy_cleanup(easy);
  return good;
}

lade_status ladei_libcurl_open(ladei_libcurl *out) {
  void *library = dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "URLs: %s; it is in the package libcurl4 (Debian) or libcurl (Fedora)",
                       dlerror());
  }
  const char *lacks = ladei_library_functions_find(library, functions, FUNCTIONS, out);
  if (lacks != NULL) return ladei_error(LADE_ERR_UNSUPPORTED, 0, "URLs: %s has no %s", soname, lacks);
  return is_new_enough(out) ? LADE_OK
                            : ladei_error(LADE_ERR_UNSUPPORTED, 0,
                                          "URLs: %s is too old, or without HTTPS; 7.85 or later is needed", soname);
}
