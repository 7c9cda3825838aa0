/* SPDX-License-Identifier: Apache-2.0 */
/**
 * lade for C++: objects that destroy themselves, errors as exceptions, and a memory resource of pinned memory. Header-only;
 * C++11, the memory resource C++17. The C functions take what get() gives.
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

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#if __cplusplus >= 201703L && defined(__has_include)
#if __has_include(<memory_resource>)
#include <memory_resource>
#define LADE_HAS_MEMORY_RESOURCE 1
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
};
} // namespace detail

/** Owners: movable, get() borrows, release() gives the object away. A ticket's owner releases it; the transfer goes on. */
using runtime = std::unique_ptr<lade_runtime, detail::destroy>;
using pinned_pool = std::unique_ptr<lade_pinned_pool, detail::destroy>;
using device_allocator = std::unique_ptr<lade_device_allocator, detail::destroy>;
using pipeline = std::unique_ptr<lade_pipeline, detail::destroy>;
using pair = std::unique_ptr<lade_pair, detail::destroy>;
using ticket = std::unique_ptr<lade_ticket, detail::destroy>;

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
