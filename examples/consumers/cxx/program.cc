/* SPDX-License-Identifier: Apache-2.0 */
/* A std::vector in pinned memory, and an error as an exception. */
#include <lade/lade.hpp>

#include <cstdio>
#include <numeric>
#include <vector>

int main() {
  auto runtime = lade::open_runtime("sim");
  auto pool = lade::make_pinned_pool(runtime.get());
  lade::pinned_resource pinned(pool.get());
  std::pmr::vector<int> batch(1 << 16, &pinned);
  std::iota(batch.begin(), batch.end(), 0);
  lade_pinned_info info;
  lade_pinned_info_init(&info);
  lade::check(lade_pinned_find(pool.get(), batch.data(), &info));
  try {
    lade::pinned_block too_large(pool.get(), static_cast<std::size_t>(1) << 61);
  } catch (const lade::error &refused) {
    std::printf("refused as it should be: %s\n", refused.what());
    return batch.back() == (1 << 16) - 1 && refused.status() == LADE_ERR_INVALID_ARGUMENT ? 0 : 1;
  }
  return 1;
}
