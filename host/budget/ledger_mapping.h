/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes share, as their mappings of one file show it. */
#ifndef LADE_HOST_BUDGET_LEDGER_MAPPING_H
#define LADE_HOST_BUDGET_LEDGER_MAPPING_H

#include <stddef.h>
#include <stdint.h>

/* A number of the bytes of a file that shared mappings have at `memory`: every process that maps them all finds the same. 0: some of the
 * memory is this process's alone, or that cannot be read. */
uint64_t ladei_ledger_mapping_id(const void *memory, size_t bytes);

#endif /* LADE_HOST_BUDGET_LEDGER_MAPPING_H */
