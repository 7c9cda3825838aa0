/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this program still has its table of symbols: one that is carried to another machine is stripped (tools/bundle). */
#ifndef LADE_TESTS_SUPPORT_SYMBOLS_H
#define LADE_TESTS_SUPPORT_SYMBOLS_H

#include <stdbool.h>

bool support_has_symbols(void);

#endif /* LADE_TESTS_SUPPORT_SYMBOLS_H */
