// SPDX-License-Identifier: Apache-2.0
#include "array.h"

namespace lade_python {

nb::dict array_interface(const void *data, const Layout &layout) {
  nb::dict out;
  out["version"] = 3;
  out["shape"] = layout.shape_tuple();
  out["typestr"] = layout.dtype()->typestr;
  out["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(data), false);
  out["strides"] = nb::none();
  return out;
}

DLDevice dlpack_device(const Block &block, int32_t type) {
  const Device &device = block.arena()->device();
  if (device.runtime->is_software()) return {kDLCPU, 0};
  return {type, device.ordinal};
}

} // namespace lade_python
