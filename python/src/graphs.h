// SPDX-License-Identifier: Apache-2.0
//
// Graph trees: what lade/graphs.py stands on.
//
//   _GraphTree --------+                               (Python objects)
//   _GraphFunction ----+--> Tree --> Allocator         Tree: an Arena, whose last owner destroys it
//   graphs.Array       |
//   DLPack capsule ----+--> Block --> Output           a count of a lade_graph_buffer
//
// G1  A tree and its functions hold no Python object: what a run calls comes with the run (Running), in its thread. So no cycle
//     goes through native memory.
// G2  A count of a buffer is given back when the last array, tensor or capsule over it goes, in whatever thread that is.
// G3  given_ has every Output of a buffer, so that memory that comes back as an input is known by its address, whichever object made the
//     tensor. Guarded by lock_, under which only buffers are asked about.
// G4  A tree closes at the user's word while no Output and no call stands on it: both are counted in uses_. A call counts before it looks
//     whether the tree is closed (GraphUse), until its outputs count; a close takes the last count in one step. Functions are no use: those
//     of a closed tree do nothing.
// G5  In a body no tree is destroyed, as that waits: it is kept in a list, and goes after the run.
// G6  A lade.Stream that runs or notes were made on lives until the next run is over.
#ifndef LADE_PYTHON_GRAPHS_H
#define LADE_PYTHON_GRAPHS_H

#include "arena.h"
#include "device.h"
#include "layout.h"

#include <lade/graph.h>

#include <map>

namespace lade_python {

class GraphOutput;

class GraphTree final : public Arena {
public:
  GraphTree(Owner<Allocator> allocator, lade_graph_tree *handle);
  ~GraphTree() override;

  // Refuses a closed tree.
  lade_graph_tree *get() const {
    if (__builtin_expect(is_closed(), 0)) refuse("the Tree is closed");
    return handle_.load();
  }
  bool is_closed() const noexcept { return !handle_.load() || (uses_.load() & closing_bit) != 0; }
  void close();
  // Outputs give their buffers back themselves.
  void free(void *) noexcept override {}
  lade_status retire(lade_stream) noexcept override { return LADE_OK; }

  // G3. The newest valid buffer that has the bytes, or one that is not valid any more; {0, 0}: none.
  lade_graph_buffer find(uintptr_t address, size_t bytes, size_t *out_offset, size_t *out_bytes);
  // A number and its function's name.
  using Overwritten = std::pair<uint64_t, std::shared_ptr<const std::string>>;
  // Numbers of outputs that are held: all, or those that were watched and have become invalid; they are watched no more.
  std::vector<uint64_t> held();
  std::vector<Overwritten> overwritten();

private:
  friend class GraphOutput;
  friend struct GraphCalls;
  friend class GraphUse;
  void streams_keep(std::shared_ptr<Stream> stream);
  Owner<Allocator> allocator_;
  std::atomic<lade_graph_tree *> handle_; // NULL: closed
  static constexpr long closing_bit = 1L << 62;
  std::atomic<long> uses_{0};
  std::mutex lock_;
  std::multimap<uintptr_t, GraphOutput *> given_;
  uint64_t given_count_ = 0;                     // so far; guarded by lock_
  std::vector<std::shared_ptr<Stream>> streams_; // G6; guarded by lock_
};

// A call on a tree (G4).
class GraphUse {
public:
  explicit GraphUse(GraphTree &tree) noexcept : tree_(tree) { tree_.uses_++; }
  ~GraphUse() { tree_.uses_--; }
  GraphUse(const GraphUse &) = delete;
  GraphUse &operator=(const GraphUse &) = delete;

private:
  GraphTree &tree_;
};

// A count of a buffer; or the memory of an input, for the time of a body.
class GraphOutput {
public:
  GraphOutput(GraphTree &tree, const lade_graph_value &value, std::shared_ptr<const std::string> function);
  ~GraphOutput();
  GraphOutput(const GraphOutput &) = delete;
  GraphOutput &operator=(const GraphOutput &) = delete;
  // Raises OverwrittenError where it is not valid any more.
  void check_valid() const;
  bool is_valid() const noexcept;
  void body_end() noexcept { ended_ = true; }
  lade_graph_buffer buffer() const noexcept { return buffer_; }
  size_t bytes() const noexcept { return bytes_; }
  uint64_t number() const noexcept { return number_; }
  void watch();

private:
  friend class GraphTree;
  GraphTree &tree_; // which the block over this holds
  const lade_graph_buffer buffer_;
  const uintptr_t address_;
  const size_t bytes_;
  const std::shared_ptr<const std::string> function_;
  std::atomic<bool> ended_{false};
  uint64_t number_ = 0;     // among those of a buffer, from 1 on
  bool is_watched_ = false; // guarded by the tree's lock_
};

// The C++ object of lade.GraphArray: a C-contiguous array in a buffer, ready for work queued on `stream`.
class GraphArray {
public:
  // Takes over a count of the block, which keeps the output.
  GraphArray(Block *block, GraphOutput *output, Layout &&layout, lade_stream stream) noexcept
      : block_(block), output_(output), layout_(std::move(layout)), stream_(stream) {}
  GraphArray(GraphArray &&other) noexcept
      : block_(other.block_), output_(other.output_), layout_(std::move(other.layout_)), stream_(other.stream_) {
    other.block_ = nullptr;
  }
  ~GraphArray() {
    if (block_) let_go(block_);
  }

  Block &block() const noexcept { return *block_; }
  GraphOutput &output() const noexcept { return *output_; }
  GraphTree &tree() const noexcept { return static_cast<GraphTree &>(*block_->arena()); }
  const Layout &layout() const noexcept { return layout_; }
  lade_stream stream() const noexcept { return stream_; }

private:
  Block *block_;
  GraphOutput *output_;
  Layout layout_;
  lade_stream stream_;
};

void bind_graphs(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_GRAPHS_H
