/* SPDX-License-Identifier: Apache-2.0 */
#include "base/decimal.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The "C" locale is constant in the C library: nothing is allocated, and nothing needs to be freed. */
static locale_t c_locale(void) { return newlocale(LC_ALL_MASK, "C", (locale_t)0); }

int ladei_decimal_print(char *text, size_t bytes, const char *format, ...) {
  va_list arguments;
  locale_t own = uselocale(c_locale()); /* of this thread alone */
  va_start(arguments, format);
  int length = vsnprintf(text, bytes, format, arguments);
  va_end(arguments);
  (void)uselocale(own);
  return length;
}

double ladei_decimal_read(const char *text) { return strtod_l(text, NULL, c_locale()); }
