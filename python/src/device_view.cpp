// SPDX-License-Identifier: Apache-2.0
#include "device_view.h"

#include "array.h"
#include "stream.h"

#include <nanobind/stl/string.h>

namespace lade_python {

namespace {

// V2. None is the legacy default stream; -1: the consumer keeps order itself.
void consumer_record(const DeviceView &view, nb::handle stream) {
  if (!view.block().pointer()) return;
  if (stream.is_none()) return check(view.range().record(LADE_STREAM_LEGACY));
  if (keeps_order_itself(stream)) return;
  check(view.range().record(stream_from(view.range().runtime(), stream)));
}

nb::object dlpack(const DeviceView &view, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  const DLDevice own = dlpack_device(view.block(), kDLCUDA);
  dlpack_refuse_copy("DeviceView", own, dl_device, copy);
  if (own.type == kDLCUDA) consumer_record(view, stream);
  return dlpack_export(view.block(), view.layout(), own, max_version, false);
}

nb::dict interface(const DeviceView &view, bool cuda) {
  if (view.range().runtime().is_software() == cuda)
    throw nb::attribute_error(cuda ? "__cuda_array_interface__: the memory of a software device is no memory of CUDA"
                                   : "__array_interface__: the memory of a GPU is no memory of the host");
  return array_interface(view.block().pointer(), view.layout());
}

} // namespace

void bind_device_view(nb::module_ &module) {
  nb::class_<DeviceView> type(
      module, "DeviceView", nb::is_weak_referenceable(),
      "An array in device memory that is part of a larger block: a tensor of a checkpoint, a field of a batch.\n\n"
      "C-contiguous; its bytes are there. It has DLPack, and ``__cuda_array_interface__``, on a software device\n"
      "``__array_interface__`` instead. The block goes back when the last array in it, and the last capsule of one, is "
      "gone.");
  bind_array(type);
  type.def_prop_ro(
          "__cuda_array_interface__", [](const DeviceView &view) { return interface(view, true); },
          "Version 3 of the interface. Not on software devices.",
          nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"))
      .def_prop_ro(
          "__array_interface__", [](const DeviceView &view) { return interface(view, false); },
          "Version 3 of the interface. On software devices alone.",
          nb::sig("def __array_interface__(self) -> dict[str, object]"))
      .def(
          "__array__",
          [](nb::handle self, nb::args, nb::kwargs) { refuse_numpy(self, nb::cast<DeviceView &>(self).block()); },
          nb::sig("def __array__(self, *args: object, **kwargs: object) -> typing.NoReturn"),
          "TypeError: NumPy cannot read memory of a GPU. On software devices NumPy reads ``__array_interface__``.")
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: typing.SupportsIndex | None = None, max_version: tuple[int, int] | "
                   "None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
           "A DLPack capsule. The consumer's stream is recorded: the block is not used again before its work is done.")
      .def(
          "__dlpack_device__",
          [](const DeviceView &view) {
            const DLDevice device = dlpack_device(view.block(), kDLCUDA);
            return nb::make_tuple(device.type, device.id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

} // namespace lade_python
