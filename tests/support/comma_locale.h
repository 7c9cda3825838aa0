/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A locale in which numbers have a comma where C has a point, as a program in many countries has once it calls setlocale().
 *
 *   if (!support_comma_locale_begin()) LADE_SKIP("no locale with a decimal comma can be had");
 *   ...
 *   support_comma_locale_end();
 */
#ifndef LADE_TESTS_SUPPORT_COMMA_LOCALE_H
#define LADE_TESTS_SUPPORT_COMMA_LOCALE_H

#include <stdbool.h>

/* An installed one, or one that localedef makes. False: neither is there. */
bool support_comma_locale_begin(void);
void support_comma_locale_end(void);

#endif /* LADE_TESTS_SUPPORT_COMMA_LOCALE_H */
