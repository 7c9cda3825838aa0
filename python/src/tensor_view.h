// SPDX-License-Identifier: Apache-2.0
//
// Memory that a program passes: a lade buffer, a NumPy array, torch's or CuPy's tensor, whatever shows its memory by the buffer
// protocol, DLPack or one of the array interfaces.
//
//   asked, in this order        for example
//   lade's own                  Buffer, DeviceBuffer
//   torch.Tensor                also those that DLPack refuses (requires_grad), by its own methods
//   __cuda_array_interface__    CuPy, Numba
//   buffer protocol             NumPy, bytes, bytearray, memoryview, mmap, array
//   __array_interface__         NumPy's types that the buffer protocol cannot name, Pillow
//   __dlpack__                  JAX, TensorFlow; where the buffer protocol refuses, such as of bfloat16, what has both
//
// T1  The memory stays as it is while the TensorView lives: it holds the object, and the view or capsule taken from it. It is
//     made and dropped under the GIL; its fields may be read without.
// T2  The memory is contiguous (in C order), and writable where that was asked for. Everything else is refused by name.
// T3  Nothing is waited for: `stream` says after which work the bytes are valid, where the object tells.
#ifndef LADE_PYTHON_TENSOR_VIEW_H
#define LADE_PYTHON_TENSOR_VIEW_H

#include "arena.h"
#include "dlpack.h"
#include "layout.h"

#include <memory>
#include <vector>

namespace lade_python {

class TensorView {
public:
  TensorView() = default;
  TensorView(TensorView &&other) noexcept { *this = std::move(other); }
  TensorView &operator=(TensorView &&other) noexcept;
  ~TensorView() { reset(); }

  void *data = nullptr; // NULL where bytes is 0
  size_t bytes = 0;
  bool on_device = false; // device memory of a GPU or software device; else host memory
  int ordinal = -1;       // of the device; -1: host memory, or not told
  bool read_only = false;
  const DType *dtype = nullptr; // NULL: a type without a name here
  std::vector<int64_t> shape;
  bool has_stream = false; // `stream` is told
  lade_stream stream = nullptr;
  Arena *arena = nullptr; // that a lade buffer is from; held by it

  // Lets go of the memory. Under the GIL.
  void reset() noexcept;

private:
  friend struct TensorViewReader;
  nb::object owner_;
  std::unique_ptr<Py_buffer> buffer_;
  nb::object capsule_; // DLPack's, not taken: its destructor calls the deleter
};

// The purpose of the memory.
enum class Access { read, write };

// The memory that an argument means. `name` is the argument's, for messages.
TensorView tensor_view(nb::handle object, Access access, const char *name);

// Refuses memory of another runtime.
void require_runtime(const TensorView &view, const Device &device, const char *name);
// Refuses device memory of another device than `device`, and lade buffers of another runtime.
void require_reachable(const TensorView &view, const Device &device, const char *name);

void bind_tensor_view(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_TENSOR_VIEW_H
