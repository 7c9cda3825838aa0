// SPDX-License-Identifier: Apache-2.0
//
// DLPack's structs (their layout is its ABI, versions 0.8 and 1.1), and the two directions: blocks of lade as capsules, and what
// other packages' capsules hold.
//
// D1  A capsule's name says which side owns: "dltensor..." the capsule, whose destructor then calls the deleter; "used_dltensor..." the
//     consumer, which calls it when it is done, in any thread, with or without the GIL.
#ifndef LADE_PYTHON_DLPACK_H
#define LADE_PYTHON_DLPACK_H

#include "arena.h"
#include "layout.h"

namespace lade_python {

// Device types of DLPack.
enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };

struct DLDevice {
  int32_t type;
  int32_t id;
};

struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

struct DLTensor {
  void *data;
  DLDevice device;
  int32_t dims;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; // in elements; NULL: C-contiguous
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor tensor;
  void *context;
  void (*deleter)(DLManagedTensor *);
};

struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void *context;
  void (*deleter)(DLManagedTensorVersioned *);
  uint64_t flags;
  DLTensor tensor;
};
enum : uint64_t { kDLReadOnly = 1, kDLCopied = 2 };

// A capsule of a block: the versioned struct where max_version is (1, ...) or later, else the old one. The capsule owns a count
// of the block.
nb::object dlpack_export(Block &block, const Layout &layout, DLDevice device, nb::handle max_version, bool is_copied);

// Whether an argument `copy` asks for one: whatever is true.
bool dlpack_is_copy(nb::handle copy);

// Device types and numbers of an argument dl_device: a pair of ints. False for None.
bool dlpack_device_from(nb::handle object, DLDevice &out);

// For memory that makes no copies, of the class `what`: BufferError for another device than its own, and for a copy.
void dlpack_refuse_copy(const char *what, DLDevice own, nb::handle dl_device, nb::handle copy);

} // namespace lade_python

#endif // LADE_PYTHON_DLPACK_H
