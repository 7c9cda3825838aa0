// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory of graph captures: capture_pools.h has the model and C1 to C5.

#include "capture_pools.h"

#include <algorithm>

namespace lade_torch {

namespace {

// A pool rarely has many free blocks, so the smallest that fits is searched for; a block of more than twice the size is not
// given away to a small request.
bool fits(size_t block_bytes, size_t bytes) { return block_bytes >= bytes && block_bytes / 2 <= bytes; }

void give_back(const Source &source, uintptr_t address) noexcept {
  // Refused in a forked child alone, whose parent has the memory (S3).
  (void)lade_pinned_free(source.pool, reinterpret_cast<void *>(address));
}

} // namespace

CapturePools &CapturePools::get() {
  static CapturePools *pools = new CapturePools;
  return *pools;
}

void release_captured(void *pointer) noexcept { CapturePools::get().free(pointer); }

// ---- Captures --------------------------------------------------------------------------------------------------------

void CapturePools::begin(PoolId id, StreamFilter filter) {
  std::lock_guard<std::mutex> lock(mutex_);
  captures_.reserve(captures_.size() + 1);
  users_[id]++;
  captures_.push_back({id, std::move(filter)});
  underway_.store(captures_.size(), std::memory_order_release);
}

void CapturePools::end(PoolId id) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(captures_.begin(), captures_.end(), [&](const Capture &each) { return each.id == id; });
  if (found != captures_.end()) captures_.erase(found);
  underway_.store(captures_.size(), std::memory_order_release);
}

void CapturePools::release(PoolId id) {
  std::vector<std::pair<uintptr_t, const Source *>> known;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto user = users_.find(id);
    if (user == users_.end()) return;
    known.reserve(blocks_.size());
    if (--user->second > 0) return;
    users_.erase(user);
    for (auto each = blocks_.begin(); each != blocks_.end();) {
      Block &block = each->second;
      bool is_mine = block.pool == id && !block.is_orphan;
      if (is_mine && block.state == State::kept) {
        known.emplace_back(each->first, block.source);
        each = blocks_.erase(each);
        continue;
      }
      if (is_mine && block.state == State::free) block.state = State::returning;
      if (is_mine && block.state == State::in_use) block.is_orphan = true;
      ++each;
    }
    blocks_changed();
  }
  for (const auto &[address, source] : known) give_back(*source, address);
}

const PoolId *CapturePools::pool_of(c10::Stream stream) const {
  for (const Capture &each : captures_)
    if (each.filter(stream)) return &each.id;
  return nullptr;
}

// ---- Blocks ----------------------------------------------------------------------------------------------------------

CapturePools::Blocks::iterator CapturePools::containing(const void *address) {
  auto next = blocks_.upper_bound(reinterpret_cast<uintptr_t>(address));
  if (next == blocks_.begin()) return blocks_.end();
  auto found = std::prev(next);
  return reinterpret_cast<uintptr_t>(address) - found->first < found->second.bytes ? found : blocks_.end();
}

// C2. Under mutex_.
void *CapturePools::reuse(const Source &source, PoolId id, size_t bytes) {
  auto best = blocks_.end();
  for (auto each = blocks_.begin(); each != blocks_.end(); ++each) {
    const Block &block = each->second;
    if (block.pool != id || block.state != State::free || block.source != &source || !fits(block.bytes, bytes))
      continue;
    if (best == blocks_.end() || block.bytes < best->second.bytes) best = each;
  }
  if (best == blocks_.end()) return nullptr;
  best->second.state = State::in_use;
  return reinterpret_cast<void *>(best->first);
}

void *CapturePools::allocate(const Source &source, size_t bytes, lade_status *out_status) {
  c10::Stream stream = current_stream(source.streams);
  PoolId id;
  *out_status = LADE_OK;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const PoolId *found = pool_of(stream);
    if (found == nullptr) return nullptr;
    id = *found;
    if (void *block = reuse(source, id, bytes)) return block;
  }
  void *pointer = source.allocate(bytes, out_status);
  if (pointer == nullptr) return nullptr;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    // Another thread may have released the pool meanwhile.
    bool is_orphan = users_.find(id) == users_.end();
    Block block = {bytes, &source, id, State::in_use, false, is_orphan, stream.device_index()};
    blocks_.emplace(reinterpret_cast<uintptr_t>(pointer), block);
    blocks_changed();
  } catch (...) {
    give_back(source, reinterpret_cast<uintptr_t>(pointer));
    throw;
  }
  return pointer;
}

void CapturePools::free(void *pointer) noexcept {
  const Source *source;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end()) return;
    Block &block = found->second;
    if (!block.is_recorded) {
      block.state = block.is_orphan ? State::returning : State::free;
      return;
    }
    block.state = State::kept;
    if (!block.is_orphan) return;
    source = block.source;
    blocks_.erase(found);
    blocks_changed();
  }
  give_back(*source, reinterpret_cast<uintptr_t>(pointer));
}

void CapturePools::record(const void *address) noexcept {
  if (C10_LIKELY(block_count_.load(std::memory_order_acquire) == 0)) return;
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = containing(address);
  if (found != blocks_.end()) found->second.is_recorded = true;
}

PoolId CapturePools::owner(const void *address) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = const_cast<CapturePools *>(this)->containing(address);
  return found == blocks_.end() ? PoolId(0, 0) : found->second.pool;
}

std::vector<std::pair<uintptr_t, CapturePools::Block>> CapturePools::returning() const {
  std::vector<std::pair<uintptr_t, Block>> blocks;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!captures_.empty()) return blocks;
  for (const auto &each : blocks_)
    if (each.second.state == State::returning) blocks.push_back(each);
  return blocks;
}

// The thread that takes a block out gives it back: of two threads that reclaim at once, one.
bool CapturePools::take_out(uintptr_t address) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  bool is_taken = blocks_.erase(address) != 0;
  blocks_changed();
  return is_taken;
}

void CapturePools::reclaim() {
  if (block_count_.load(std::memory_order_acquire) == 0) return;
  std::vector<c10::DeviceIndex> waited_for;
  for (const auto &[address, block] : returning()) {
    if (std::find(waited_for.begin(), waited_for.end(), block.device) == waited_for.end()) {
      block.source->synchronize(block.device);
      waited_for.push_back(block.device);
    }
    if (take_out(address)) give_back(*block.source, address);
  }
}

} // namespace lade_torch
