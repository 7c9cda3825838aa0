/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers with a decimal point, whatever locale the program has set. printf() and strtod() go by the locale, whose numbers may have
 * a comma: what is written is no number to others then, and what is read ends at the point.
 */
#ifndef LADE_BASE_DECIMAL_H
#define LADE_BASE_DECIMAL_H

#include <stddef.h>

/* snprintf(). */
int ladei_decimal_print(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* strtod() of all that it takes. */
double ladei_decimal_read(const char *text);

#endif /* LADE_BASE_DECIMAL_H */
