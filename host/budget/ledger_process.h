/* SPDX-License-Identifier: Apache-2.0 */
/* A process as a slot of a ledger describes it, for people: ids mean something in their own namespace alone. */
#ifndef LADE_HOST_BUDGET_LEDGER_PROCESS_H
#define LADE_HOST_BUDGET_LEDGER_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* When the process began, in the kernel's ticks; 0 where that cannot be read. */
uint64_t ladei_ledger_process_start(uint32_t process_id);
/* Whether it reads the same to that process as to the calling one: not in another namespace of time, nor where that
 * cannot be told. */
bool ladei_ledger_process_shares_time(uint32_t process_id);
/* The calling process's namespace of process ids: its inode; 0 where that cannot be read. */
uint32_t ladei_ledger_namespace(void);
/* Whether a process of the calling one's namespace has ended, as far as can be told: another may have its id since. */
bool ladei_ledger_process_is_gone(uint32_t process_id);
/* The calling process's name, without a 0 at its end where it is that long. */
void ladei_ledger_command(char out[16]);

#endif /* LADE_HOST_BUDGET_LEDGER_PROCESS_H */
