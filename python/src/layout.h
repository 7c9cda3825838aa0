// SPDX-License-Identifier: Apache-2.0
//
// Element types and shapes, as NumPy, torch and CuPy name them.
#ifndef LADE_PYTHON_LAYOUT_H
#define LADE_PYTHON_LAYOUT_H

#include "status.h"

#include <cstdint>
#include <memory>

namespace lade_python {

// An element type; one object for each, of static storage.
struct DType {
  const char *name;    // as NumPy and torch have it: "float32"
  const char *typestr; // of the array interfaces: "<f4"; of types that NumPy lacks the void type of that size
  const char *format;  // of the struct module, for the buffer protocol; NULL: none
  uint8_t code;        // DLPack's DLDataTypeCode
  uint8_t bytes;       // one element
};

// The element type that an argument means: None (uint8), a name or typestr, numpy.dtype, a scalar type of NumPy, bool, int, float,
// complex, torch.dtype. Refuses the rest by name. Some tens of nanoseconds for one that was seen before.
const DType *dtype_from(nb::handle object);

// The element type of a name or typestr, or NULL.
const DType *dtype_find(const char *text);

// The element type of DLPack's code and bits, or NULL where the package has no name for it.
const DType *dtype_of_dlpack(uint8_t code, uint8_t bits, uint16_t lanes);

// Shape of a C-contiguous array. Up to `near` dimensions without an allocation.
//
// L1  bytes() = product of the extents and the size of an element; it and every stride fit into ptrdiff_t.
class Layout {
public:
  static constexpr int near = 4;
  static constexpr int max_dims = 64; // as many as NumPy and memoryview have

  // An empty one-dimensional array.
  Layout() : dtype_(nullptr), dims_(1), bytes_(0) { near_[0] = 0, near_[1] = 1; }
  // Of arguments of Python: an int, or a sequence of ints. Refuses negative extents, and sizes above ptrdiff_t.
  Layout(nb::handle shape, const DType *dtype);
  // Of a native shape. Refuses as above.
  Layout(const int64_t *shape, int dims, const DType *dtype);
  Layout(Layout &&) = default;
  Layout &operator=(Layout &&) = default;

  const DType *dtype() const noexcept { return dtype_; }
  int dims() const noexcept { return dims_; }
  size_t bytes() const noexcept { return bytes_; }
  const int64_t *shape() const noexcept { return far_ ? far_.get() : near_; }
  // In elements; of length dims().
  const int64_t *strides() const noexcept { return shape() + dims_; }
  int64_t elements() const noexcept { return static_cast<int64_t>(bytes_ / dtype_->bytes); }
  nb::tuple shape_tuple() const;
  // "(2, 3) float32"
  std::string text() const;

private:
  int64_t *extents(int dims);
  void finish();

  const DType *dtype_;
  int dims_;
  size_t bytes_;
  int64_t near_[2 * near];         // extents, then strides in elements
  std::unique_ptr<int64_t[]> far_; // instead, where there are more than `near` dimensions
};

} // namespace lade_python

#endif // LADE_PYTHON_LAYOUT_H
