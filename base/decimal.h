/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers with a decimal point, whatever locale the program has set. printf() and strtod() follow the locale, which may
 * use a comma: other programs could not read the numbers written, and reading would end at the point.
 */
#ifndef LADE_BASE_DECIMAL_H
#define LADE_BASE_DECIMAL_H

#include <stddef.h>

/* snprintf(). */
int ladei_decimal_print(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* strtod(); reads as much as that does. */
double ladei_decimal_read(const char *text);

#endif /* LADE_BASE_DECIMAL_H */
