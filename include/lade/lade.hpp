/* SPDX-License-Identifier: Apache-2.0 */
/**
 * lade for C++: objects that destroy themselves, errors as exceptions, and a memory resource of pinned memory. Header-only;
 * C++11, the memory resource C++17, views as std::span C++20. The C functions take what get() gives.
 *
 *   auto runtime = lade::open_runtime();
 *   auto pool = lade::make_pinned_pool(runtime.get());
 *   lade::pinned_resource pinned(pool.get());
 *   std::pmr::vector<float> batch(1 << 20, &pinned);
 *
 * Destructors wait: for the work that uses a pool's memory, for transfers under way. An object must be destroyed before what it
 * uses, as declared variables are. A failure in a destructor is kept for lade_last_error().
 */
#ifndef LADE_LADE_HPP
#define LADE_LADE_HPP

#include <lade/lade.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#if __cplusplus >= 201703L && defined(__has_include)
#if __has_include(<memory_resource>)
#include <memory_resource>
#define LADE_HAS_MEMORY_RESOURCE 1
#endif
#endif
#if __cplusplus >= 202002L && defined(__has_include)
#if __has_include(<span>)
#include <span>
#define LADE_HAS_SPAN 1
#endif
#endif

namespace lade {

/** A call that failed: its status, and the text of lade_last_error(). */
class error : public std::runtime_error {
public:
  /** Of a status and a text. */
  error(lade_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
  /** What the call returned. */
  lade_status status() const noexcept { return status_; }

private:
  lade_status status_;
};

/** Throws error unless the status is LADE_OK. LADE_NOT_READY throws, too: ask where it is an answer. */
inline void check(lade_status status) {
  if (status == LADE_OK) return;
  const lade_error last = *lade_last_error();
  const bool own = last.status == status && last.text[0] != '\0';
  throw error(status, own ? last.text : lade_status_text(status));
}

namespace detail {
struct destroy {
  void operator()(lade_runtime *object) const noexcept { (void)lade_runtime_close(object); }
  void operator()(lade_pinned_pool *object) const noexcept { (void)lade_pinned_pool_destroy(object, true); }
  void operator()(lade_device_allocator *object) const noexcept { (void)lade_device_allocator_destroy(object, true); }
  void operator()(lade_pipeline *object) const noexcept { (void)lade_pipeline_destroy(object, false); }
  void operator()(lade_pair *object) const noexcept { (void)lade_pair_destroy(object, false); }
  void operator()(lade_ticket *object) const noexcept { lade_ticket_release(object); }
  void operator()(lade_stacks *object) const noexcept { (void)lade_stacks_destroy(object); }
  void operator()(lade_history *object) const noexcept { lade_history_destroy(object); }
  void operator()(lade_snapshot *object) const noexcept { lade_snapshot_destroy(object); }
  void operator()(lade_publisher *object) const noexcept { lade_publisher_destroy(object); }
  void operator()(lade_safetensors *object) const noexcept { lade_safetensors_close(object); }
  void operator()(lade_tensor_load *object) const noexcept { (void)lade_tensor_load_destroy(object, false); }
  void operator()(lade_save *object) const noexcept { (void)lade_save_destroy(object, false); }
  void operator()(lade_record_index *object) const noexcept { lade_index_destroy(object); }
  void operator()(lade_loader *object) const noexcept { (void)lade_loader_destroy(object); }
  void operator()(lade_graph *object) const noexcept { (void)lade_graph_destroy(object, true); }
  void operator()(lade_graph_tree *object) const noexcept { (void)lade_graph_tree_destroy(object, true); }
};
} // namespace detail

/** Owners: movable, get() borrows, release() gives the object away. A ticket's owner releases it; the transfer goes on. */
using runtime = std::unique_ptr<lade_runtime, detail::destroy>;
using pinned_pool = std::unique_ptr<lade_pinned_pool, detail::destroy>;
using device_allocator = std::unique_ptr<lade_device_allocator, detail::destroy>;
using pipeline = std::unique_ptr<lade_pipeline, detail::destroy>;
using pair = std::unique_ptr<lade_pair, detail::destroy>;
using ticket = std::unique_ptr<lade_ticket, detail::destroy>;
/** Stacks, histories that were taken, snapshots, and the publisher of a process. */
using stacks = std::unique_ptr<lade_stacks, detail::destroy>;
using history = std::unique_ptr<lade_history, detail::destroy>;
using snapshot = std::unique_ptr<lade_snapshot, detail::destroy>;
using publisher = std::unique_ptr<lade_publisher, detail::destroy>;
/** Checkpoints and data sets. The end of a load frees its memory: release() it, and destroy it by hand to keep that. That of a save
 * waits for the file. */
using safetensors = std::unique_ptr<lade_safetensors, detail::destroy>;
using tensor_load = std::unique_ptr<lade_tensor_load, detail::destroy>;
using save = std::unique_ptr<lade_save, detail::destroy>;
using record_index = std::unique_ptr<lade_record_index, detail::destroy>;
using loader = std::unique_ptr<lade_loader, detail::destroy>;
/** Graphs, and trees of them; the end waits for launches under way. */
using graph = std::unique_ptr<lade_graph, detail::destroy>;
using graph_tree = std::unique_ptr<lade_graph_tree, detail::destroy>;

/** lade_runtime_open(); all of these throw error. */
inline runtime open_runtime(const char *name = nullptr, const lade_runtime_options *options = nullptr) {
  lade_runtime *object = nullptr;
  check(lade_runtime_open(name, options, &object));
  return runtime(object);
}

/** lade_pinned_pool_create(). */
inline pinned_pool make_pinned_pool(lade_runtime *on, const lade_pinned_options *options = nullptr) {
  lade_pinned_pool *object = nullptr;
  check(lade_pinned_pool_create(on, options, &object));
  return pinned_pool(object);
}

/** lade_device_allocator_create(). */
inline device_allocator make_device_allocator(lade_runtime *on, int device,
                                              const lade_device_options *options = nullptr) {
  lade_device_allocator *object = nullptr;
  check(lade_device_allocator_create(on, device, options, &object));
  return device_allocator(object);
}

/** lade_pipeline_create(). */
inline pipeline make_pipeline(lade_runtime *on, lade_pinned_pool *pool,
                              const lade_pipeline_options *options = nullptr) {
  lade_pipeline *object = nullptr;
  check(lade_pipeline_create(on, pool, options, &object));
  return pipeline(object);
}

/** lade_pair_create(). */
inline pair make_pair(lade_runtime *on, int device, const lade_pair_options *options = nullptr) {
  lade_pair *object = nullptr;
  check(lade_pair_create(on, device, options, &object));
  return pair(object);
}

/** lade_pipeline_submit(). */
inline ticket submit(lade_pipeline *to, const lade_transfer &transfer) {
  lade_ticket *object = nullptr;
  check(lade_pipeline_submit(to, &transfer, &object));
  return ticket(object);
}

/** lade_snapshot_take() of parts, such as {lade_part_pinned(pool.get())}. */
inline snapshot take_snapshot(std::initializer_list<lade_part> parts, const lade_snapshot_options *options = nullptr) {
  lade_snapshot *object = nullptr;
  check(lade_snapshot_take(parts.begin(), parts.size(), options, &object));
  return snapshot(object);
}

/** lade_snapshot_open(). */
inline snapshot open_snapshot(const char *path) {
  lade_snapshot *object = nullptr;
  check(lade_snapshot_open(path, &object));
  return snapshot(object);
}

/** lade_publish() of parts, which must outlive the publisher. */
inline publisher publish(std::initializer_list<lade_part> parts, const lade_publish_options *options = nullptr) {
  lade_publisher *object = nullptr;
  check(lade_publish(parts.begin(), parts.size(), options, &object));
  return publisher(object);
}

/** lade_stacks_create(). */
inline stacks make_stacks(const lade_stacks_options *options = nullptr) {
  lade_stacks *object = nullptr;
  check(lade_stacks_create(options, &object));
  return stacks(object);
}

/** lade_safetensors_open(). */
inline safetensors open_safetensors(const char *path) {
  lade_safetensors *object = nullptr;
  check(lade_safetensors_open(path, &object));
  return safetensors(object);
}

/** lade_safetensors_load(). */
inline tensor_load load(lade_safetensors *file, const lade_load_target *targets, std::uint64_t count,
                        const lade_load_options *options = nullptr) {
  lade_tensor_load *object = nullptr;
  check(lade_safetensors_load(file, targets, count, options, &object));
  return tensor_load(object);
}

/** lade_safetensors_save_begin(). */
inline save begin_save(const char *path, const lade_load_target *targets, std::uint64_t target_count,
                       const lade_tensor *tensors, std::uint64_t tensor_count,
                       const lade_save_options *options = nullptr) {
  lade_save *object = nullptr;
  check(lade_safetensors_save_begin(path, targets, target_count, tensors, tensor_count, options, &object));
  return save(object);
}

/** lade_loader_create(). */
inline loader make_loader(const lade_record_index *index, lade_pipeline *through, lade_device_allocator *allocator,
                          const lade_loader_options *options = nullptr) {
  lade_loader *object = nullptr;
  check(lade_loader_create(index, through, allocator, options, &object));
  return loader(object);
}

/** lade_graph_capture() of what `work` queues. */
inline graph capture_graph(lade_device_allocator *allocator, lade_graph_work work, void *user,
                           const lade_graph_options *options = nullptr) {
  lade_graph *object = nullptr;
  check(lade_graph_capture(allocator, options, work, user, &object));
  return graph(object);
}

/** lade_graph_tree_create(). */
inline graph_tree make_graph_tree(lade_device_allocator *allocator, const lade_graph_tree_options *options = nullptr) {
  lade_graph_tree *object = nullptr;
  check(lade_graph_tree_create(allocator, options, &object));
  return graph_tree(object);
}

/** A block of pinned memory; freed with its owner, reused when the streams recorded for it are done. */
class pinned_block {
public:
  pinned_block() = default;
  /** Allocates: lade_pinned_alloc(). The pool must outlive the block. */
  pinned_block(lade_pinned_pool *pool, std::size_t bytes) : pool_(pool), bytes_(bytes) {
    check(lade_pinned_alloc(pool, bytes, &data_));
  }
  /** Takes what `other` has. */
  pinned_block(pinned_block &&other) noexcept { swap(other); }
  /** Frees its own, and takes what `other` has. */
  pinned_block &operator=(pinned_block &&other) noexcept {
    pinned_block taken(std::move(other));
    swap(taken);
    return *this;
  }
  pinned_block(const pinned_block &) = delete;
  pinned_block &operator=(const pinned_block &) = delete;
  ~pinned_block() {
    if (data_ != nullptr) (void)lade_pinned_free(pool_, data_);
  }

  /** The memory; nullptr without one. */
  void *data() const noexcept { return data_; }
  /** Bytes asked for. */
  std::size_t size() const noexcept { return bytes_; }
#ifdef LADE_HAS_SPAN
  /** The memory as elements; bytes behind the last whole one are left out. */
  template <typename T> std::span<T> as() const noexcept {
    static_assert(std::is_trivially_copyable<T>::value, "memory without objects in it");
    return {static_cast<T *>(data_), bytes_ / sizeof(T)};
  }
#endif
  /** The stream uses the block, which is reused after the work queued there until the free: lade_pinned_record_event(). */
  void record(lade_stream stream) const { check(lade_pinned_record_event(pool_, data_, stream)); }
  /** Exchanges the two. */
  void swap(pinned_block &other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

private:
  lade_pinned_pool *pool_ = nullptr;
  void *data_ = nullptr;
  std::size_t bytes_ = 0;
};

/** A block of device memory of a stream; freed with its owner, reused in the order of the stream. */
class device_block {
public:
  device_block() = default;
  /** Allocates: lade_device_alloc(). The allocator must outlive the block, and the stream its end. */
  device_block(lade_device_allocator *allocator, std::size_t bytes, lade_stream stream)
      : allocator_(allocator), bytes_(bytes) {
    check(lade_device_alloc(allocator, bytes, stream, &data_));
  }
  /** Takes what `other` has. */
  device_block(device_block &&other) noexcept { swap(other); }
  /** Frees its own, and takes what `other` has. */
  device_block &operator=(device_block &&other) noexcept {
    device_block taken(std::move(other));
    swap(taken);
    return *this;
  }
  device_block(const device_block &) = delete;
  device_block &operator=(const device_block &) = delete;
  ~device_block() {
    if (data_ != nullptr) (void)lade_device_free(allocator_, data_);
  }

  /** The address on the device; nullptr without one. */
  void *data() const noexcept { return data_; }
  /** Bytes asked for. */
  std::size_t size() const noexcept { return bytes_; }
  /** Another stream uses the block, which is reused after the work queued there until the free: lade_device_record_stream(). */
  void record(lade_stream stream) const { check(lade_device_record_stream(allocator_, data_, stream)); }
  /** Exchanges the two. */
  void swap(device_block &other) noexcept {
    std::swap(allocator_, other.allocator_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

private:
  lade_device_allocator *allocator_ = nullptr;
  void *data_ = nullptr;
  std::size_t bytes_ = 0;
};

#ifdef LADE_HAS_MEMORY_RESOURCE
/**
 * Pinned memory for std::pmr containers. Alignments up to 4096 bytes; others, and a pool that refuses, throw std::bad_alloc.
 *
 * Threads: as the pool, any. The pool must outlive the resource, and the resource its containers.
 */
class pinned_resource : public std::pmr::memory_resource {
public:
  /** Of a pool, borrowed. */
  explicit pinned_resource(lade_pinned_pool *pool) noexcept : pool_(pool) {}
  /** Its pool. */
  lade_pinned_pool *pool() const noexcept { return pool_; }

private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override {
    void *memory = nullptr;
    if (alignment > page || lade_pinned_alloc(pool_, rounded(bytes, alignment), &memory) != LADE_OK)
      throw std::bad_alloc();
    return memory;
  }
  void do_deallocate(void *memory, std::size_t, std::size_t) override { (void)lade_pinned_free(pool_, memory); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    const auto *same = dynamic_cast<const pinned_resource *>(&other);
    return same != nullptr && same->pool_ == pool_;
  }

  static constexpr std::size_t page = 4096;
  /* Blocks below a page start at a multiple of 512 bytes, others at a page. Of 0 bytes lade has none, and std::pmr's allocate()
   * is never nullptr. */
  static std::size_t rounded(std::size_t bytes, std::size_t alignment) noexcept {
    if (alignment > 512 && bytes < page) return page;
    return bytes > 0 ? bytes : 1;
  }

  lade_pinned_pool *pool_;
};
#endif

} // namespace lade

#endif /* LADE_LADE_HPP */
