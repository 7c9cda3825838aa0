/* SPDX-License-Identifier: Apache-2.0 */
/* Names of addresses: from libdw, which is opened at the first question, or from the loader. */
#ifndef LADE_HISTORY_SYMBOLS_H
#define LADE_HISTORY_SYMBOLS_H

#include "history/modules.h"
#include "lade/stacks.h"

/* Shows the frames at an address of a module (NULL: unknown), inlined ones first. `address` is as captured: the call
 * ends before it. No lock held. */
lade_status ladei_symbols_describe(ladei_module *module, uint64_t address, lade_stack_frame_visit visit, void *visitor);
/* Frees the data opened for the module. */
void ladei_symbols_close(ladei_module *module);

#endif /* LADE_HISTORY_SYMBOLS_H */
