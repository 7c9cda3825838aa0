// SPDX-License-Identifier: Apache-2.0
//
// Memory of the program's own that a pool has pinned in place.
#ifndef LADE_PYTHON_ADOPTED_H
#define LADE_PYTHON_ADOPTED_H

#include "pinned.h"
#include "tensor_view.h"

#include <atomic>

namespace lade_python {

// The C++ object of lade.Adopted. While it is open the memory is pinned: its object and the pool are kept alive.
class Adopted {
public:
  Adopted(const Owner<Pool> &pool, TensorView &&view, bool charged);
  Adopted(Adopted &&other) noexcept;
  ~Adopted();

  const TensorView &view() const noexcept { return view_; }
  bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }
  // Takes the pin off, and lets go of the memory. Of several threads one does it.
  void close();

private:
  Owner<Pool> pool_;
  TensorView view_;
  std::atomic<bool> open_{false};
};

void bind_adopted(nb::module_ &module, nb::class_<PoolObject> &pool);

} // namespace lade_python

#endif // LADE_PYTHON_ADOPTED_H
