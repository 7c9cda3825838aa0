/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy of PyTorch's pinned cache: its decisions, for comparison and for programs that depend on them.
 *
 *   sizes     whole powers of two, from one byte up; one driver allocation per block; never split
 *   reuse     the smallest cached block that is large enough, however large; of equal ones the lowest address
 *   events    one per block and stream, recorded in the free
 *   pending   one queue over all streams, in the order of the frees; looked at by every alloc and by empty_cache, up to
 *             the first block that is not done
 */
#ifndef LADE_HOST_POLICIES_POLICY_PYTORCH_H
#define LADE_HOST_POLICIES_POLICY_PYTORCH_H

#include "host/state/policy.h"

extern const ladei_pinned_policy ladei_pinned_policy_pytorch;

#endif /* LADE_HOST_POLICIES_POLICY_PYTORCH_H */
