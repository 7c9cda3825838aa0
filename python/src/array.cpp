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

void refuse_numpy(nb::handle self, const Block &block) {
  PyErr_Format(
      PyExc_TypeError,
      "a %s on %s is memory of the device, which NumPy cannot read: copy it, into lade.PinnedPool().empty() with "
      "lade.copy_async() for example, or take it with from_dlpack() of torch or CuPy",
      class_text(self).c_str(), block.arena()->device().text().c_str());
  throw nb::python_error();
}

DLDevice dlpack_device(const Block &block, int32_t type) {
  const Device &device = block.arena()->device();
  if (device.runtime->is_software()) return {kDLCPU, 0};
  return {type, device.ordinal};
}

} // namespace lade_python
