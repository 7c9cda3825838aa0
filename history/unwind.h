/* SPDX-License-Identifier: Apache-2.0 */
/* Walking the stack of the calling thread: by libunwind, frame pointers or glibc. */
#ifndef LADE_HISTORY_UNWIND_H
#define LADE_HISTORY_UNWIND_H

#include "lade/stacks.h"

/* A walker for the method; LADE_ERR_UNSUPPORTED if there is none. It writes return addresses, innermost first (its
 * caller's is the first or second), and returns their number. */
typedef int (*ladei_unwind)(void **addresses, int most);
lade_status ladei_unwind_choose(uint32_t method, uint32_t *out_method, ladei_unwind *out);

#endif /* LADE_HISTORY_UNWIND_H */
