// SPDX-License-Identifier: Apache-2.0
//
// Tensors by name that a program saves, or loads into: what a file has to know of each.
//
//   dict --> a tensor of torch:        DLPack's exchange API, one call of C for address, type, shape, strides and device
//            a DeviceBuffer:           as it is
//            others, and odd tensors:  the function `read` of lade/safetensors/_rows.py, which refuses what it has to
//
// A call for each of a tensor's attributes takes a microsecond, and models have 20,000 tensors.
//
// W1  The memory stays while the rows live, whatever becomes of the program's tensors: they hold the storage, or the view.
// W2  A row of a tensor that was read by DLPack says what `read` would: contiguous, dense, neither conjugate nor negative.
// W3  Names are those of the keys, which the rows hold.
#ifndef LADE_PYTHON_TENSOR_ROWS_H
#define LADE_PYTHON_TENSOR_ROWS_H

#include "tensor_view.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lade_python {

// The C++ object of lade._lade._Rows.
struct TensorRows {
  struct Row {
    nb::object key;
    std::string_view name; // the key's; a null character follows it
    int32_t dtype;
    uint32_t rank;
    size_t shape; // in `extents`
    void *data;   // NULL: no bytes
    uint64_t bytes;
    int device; // in `devices`; -1: the host
    bool of_torch;
    size_t view; // in `views`; SIZE_MAX: it has none
  };
  TensorRows() = default;
  TensorRows(TensorRows &&) = default;

  std::vector<Row> rows;
  std::vector<uint64_t> extents;
  std::vector<std::pair<nb::object, size_t>> devices; // each, with the number of the first row that is on it
  std::vector<TensorView> views;
  std::vector<nb::object> storages;

  const uint64_t *shape_of(const Row &row) const noexcept { return extents.data() + row.shape; }
  std::string title_of(const Row &row) const { return "tensor `" + std::string(row.name) + "`"; }
  // For each row the number of the first, by name, that lies in the same bytes; its own where there is none.
  std::vector<size_t> firsts() const;
};

// The format's number of a type; refuses names that it has not.
int32_t dtype_number(const std::string &name);

void bind_tensor_rows(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_TENSOR_ROWS_H
