/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pages the system does not pin (model in pages.c).
 */
#ifndef LADE_RUNTIME_SOFT_OPS_PAGES_H
#define LADE_RUNTIME_SOFT_OPS_PAGES_H

#include <stdbool.h>
#include <stddef.h>

/* NULL: it pins them, for writing or only for reading. Else what it would pin. */
const char *ladei_soft_pages_refused(const void *pointer, size_t bytes, bool read_only);

#endif /* LADE_RUNTIME_SOFT_OPS_PAGES_H */
