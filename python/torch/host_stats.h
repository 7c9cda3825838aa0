// SPDX-License-Identifier: Apache-2.0
//
// A pool's figures under PyTorch's names.
#ifndef LADE_TORCH_HOST_STATS_H
#define LADE_TORCH_HOST_STATS_H

#include "torch_abi.h"

#include <lade/pinned.h>

namespace lade_torch {

// The figures of torch.cuda.host_memory_stats(). Throws c10::Error in a forked child.
at::HostStats host_stats(lade_pinned_pool *pool);

} // namespace lade_torch

#endif // LADE_TORCH_HOST_STATS_H
