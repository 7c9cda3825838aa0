// SPDX-License-Identifier: Apache-2.0
//
// The differences between the minor versions of PyTorch, in one place. The build gives LADE_TORCH_MINOR and the headers of that
// version; the macros below say what its interfaces have.
//
//   2.8   at::setHostAllocator; figures of the host cache by "allocation" and "segment"
//   2.9   device allocators derive from c10::DeviceAllocator; graph_capture_record_stream_reuse
//   2.10  settings that all accelerators have in common; figures by "active_requests" and "allocations"; user metadata and no_split of device allocators, sizes of expandable segments
//   2.11  begin_allocate_to_pool, end_allocate_to_pool, release_pool of host allocators; of device allocators snapshots without traces,
//         histories that skip actions, use_on_oom that can be turned off, pools that own what provides their segments
//   2.12  getContextForPointer, attachOomRejectionObserver of device allocators
//   2.13  reserved bytes by private pool; requests for an address, of device allocators
//   2.14  record_history, get_segments, get_traces, record_external_register of host allocators; notes on live device memory
#ifndef LADE_TORCH_ABI_H
#define LADE_TORCH_ABI_H

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == LADE_TORCH_MINOR, "headers of another PyTorch");
static_assert(LADE_TORCH_MINOR >= 8 && LADE_TORCH_MINOR <= 15, "a version of PyTorch that nobody has looked at");
static_assert(_GLIBCXX_USE_CXX11_ABI == 1, "PyTorch's packages have std::string of C++11");

#define LADE_TORCH_HAS_ACTIVE_STATS   (LADE_TORCH_MINOR >= 10)
#define LADE_TORCH_HAS_HOST_POOLS     (LADE_TORCH_MINOR >= 11)
#define LADE_TORCH_HAS_HOST_HISTORY   (LADE_TORCH_MINOR >= 14)

#define LADE_TORCH_HAS_CAPTURE_REUSE  (LADE_TORCH_MINOR >= 9)
#define LADE_TORCH_HAS_COMMON_CONFIG  (LADE_TORCH_MINOR >= 10)
#define LADE_TORCH_HAS_USER_METADATA  (LADE_TORCH_MINOR >= 10)
#define LADE_TORCH_HAS_NO_SPLIT       (LADE_TORCH_MINOR >= 10)
#define LADE_TORCH_HAS_SKIP_ACTIONS   (LADE_TORCH_MINOR >= 11)
#define LADE_TORCH_HAS_SHARED_OWNERS  (LADE_TORCH_MINOR >= 11)
#define LADE_TORCH_HAS_OOM_REJECTIONS (LADE_TORCH_MINOR >= 12)
#define LADE_TORCH_HAS_POOL_STATS     (LADE_TORCH_MINOR >= 13)
#define LADE_TORCH_HAS_ADDRESSES      (LADE_TORCH_MINOR >= 13)
#define LADE_TORCH_HAS_ANNOTATIONS    (LADE_TORCH_MINOR >= 14)

#include <utility>

namespace lade_torch {

// PyTorch's MempoolId_t, which moved between namespaces.
using PoolId = std::pair<unsigned long long, unsigned long long>;

} // namespace lade_torch

#endif // LADE_TORCH_ABI_H
