/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that the system does not pin (model in pages.c).
 */
#ifndef LADE_RUNTIME_SOFT_OPS_PAGES_H
#define LADE_RUNTIME_SOFT_OPS_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* NULL: the system pins them, for writing or only for reading. Otherwise a text: which pages it would pin. */
const char *ladei_soft_pages_refused(const void *pointer, size_t bytes, bool read_only);

#endif /* LADE_RUNTIME_SOFT_OPS_PAGES_H */
