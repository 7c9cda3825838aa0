// SPDX-License-Identifier: Apache-2.0
//
// Copies of blocks by number: arguments to tables of lade_copy_blocks().
//
// C1  All arguments are checked before anything is queued; of several pairs each is a call of its own, so a later one that the library
//     refuses leaves the earlier ones queued.
// C2  Ids in host memory are read before the call returns; those of a Python sequence are copied first.
#include "copies.h"

#include "lade/copy.h"
#include "natural.h"
#include "status.h"
#include "stream.h"
#include "tensor_view.h"

#include <cstring>
#include <string>
#include <vector>

namespace lade_python {
namespace {

// Numbers of blocks, in host or device memory.
struct Ids {
  TensorView view;          // of an array
  std::vector<int64_t> own; // of a sequence
  const void *data = nullptr;
  size_t count = 0, bytes = 8;

  bool on_device() const { return view.on_device; }
};

Ids ids_from(nb::handle object, const char *name) {
  Ids ids;
  if (PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()) || PyRange_Check(object.ptr())) {
    for (nb::handle item : nb::borrow<nb::sequence>(object)) {
      const nb::object number = integer_of(item);
      if (!number) refuse(std::string(name) + " has a " + class_text(item) + "; expected integers");
      int overflow = 0;
      const long long id = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
      if (overflow != 0) refuse(std::string(name) + " has " + nb::str(number).c_str() + "; expected ids below 2^63");
      ids.own.push_back(id);
    }
    ids.data = ids.own.data();
    ids.count = ids.own.size();
    return ids;
  }
  ids.view = tensor_view(object, Access::read, name);
  const std::string type = ids.view.dtype ? ids.view.dtype->name : "unknown";
  if (ids.view.shape.size() != 1 || (type != "int64" && type != "int32" && type != "uint64" && type != "uint32"))
    refuse(std::string(name) + " is of type " + type + " with " + std::to_string(ids.view.shape.size()) +
           " dimensions; expected one dimension of int32 or int64");
  ids.data = ids.view.data;
  ids.count = static_cast<size_t>(ids.view.shape[0]);
  ids.bytes = ids.view.dtype->bytes;
  return ids;
}

// An array of blocks: its first dimension counts them.
struct Blocks {
  TensorView view;
  size_t count = 0, bytes = 0;
};

Blocks blocks_from(nb::handle object, Access access, const char *name, const Device &device) {
  Blocks blocks;
  blocks.view = tensor_view(object, access, name);
  require_reachable(blocks.view, device, name);
  if (blocks.view.shape.empty() || blocks.view.shape[0] == 0 || blocks.view.bytes == 0)
    refuse(std::string(name) + " has no blocks; expected an array whose first dimension counts them");
  blocks.count = static_cast<size_t>(blocks.view.shape[0]);
  blocks.bytes = blocks.view.bytes / blocks.count;
  return blocks;
}

struct Pair {
  Blocks to, from;
};

void pair_add(std::vector<Pair> &pairs, nb::handle destination, nb::handle source, const Device &device) {
  Pair pair{blocks_from(destination, Access::write, "destination", device),
            blocks_from(source, Access::read, "source", device)};
  if (pair.to.bytes != pair.from.bytes)
    refuse("source has blocks of " + std::to_string(pair.from.bytes) + " bytes and destination of " +
           std::to_string(pair.to.bytes) + "; expected blocks of one size");
  pairs.push_back(std::move(pair));
}

bool is_list(nb::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

std::vector<Pair> pairs_from(nb::handle destination, nb::handle source, const Device &device) {
  std::vector<Pair> pairs;
  if (!is_list(destination) && !is_list(source)) {
    pair_add(pairs, destination, source, device);
    return pairs;
  }
  if (!is_list(destination) || !is_list(source) || nb::len(destination) != nb::len(source))
    refuse("destination and source are not both arrays, nor lists of as many arrays");
  for (size_t i = 0; i < nb::len(destination); i++) pair_add(pairs, destination[i], source[i], device);
  return pairs;
}

void copy_blocks(const DeviceObject &device, nb::handle destination, nb::handle source, nb::handle destination_ids,
                 nb::handle source_ids, nb::handle stream) {
  const std::vector<Pair> pairs = pairs_from(destination, source, device);
  const Ids to = ids_from(destination_ids, "destination_ids"), from = ids_from(source_ids, "source_ids");
  if (to.count != from.count)
    refuse("source_ids has " + std::to_string(from.count) + " ids and destination_ids " + std::to_string(to.count) +
           "; expected as many");
  if (to.bytes != from.bytes)
    refuse("source_ids and destination_ids are of two types; expected int32 or int64 for both");
  const lade_stream on = stream_from(*device.runtime, stream, device.ordinal);
  lade_status status = LADE_OK;
  {
    Unlocked unlocked;
    for (size_t i = 0; i < pairs.size() && status == LADE_OK; i++) {
      lade_copy_table table;
      lade_copy_table_init(&table);
      table.dst = pairs[i].to.view.data;
      table.src = pairs[i].from.view.data;
      table.dst_count = pairs[i].to.count;
      table.src_count = pairs[i].from.count;
      table.bytes = pairs[i].to.bytes;
      table.dst_ids = to.data;
      table.src_ids = from.data;
      table.id_bytes = to.bytes;
      table.count = to.count;
      status = lade_copy_blocks(device.get(), &table, on);
    }
  }
  check(status);
}

void copy_prepare(const DeviceObject &device) {
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_copy_prepare(device.get(), device.ordinal);
  }
  check(status);
}

nb::dict copy_stats(const DeviceObject &device) {
  static const char *const directions[] = {"to_device", "from_device", "within_device"};
  lade_copy_stats stats;
  lade_copy_stats_init(&stats);
  check(lade_copy_stats_get(device.get(), device.ordinal, &stats));
  nb::dict out;
  out["kernel_pieces"] = stats.kernel_pieces;
  out["kernel_bytes"] = stats.kernel_bytes;
  out["engine_pieces"] = stats.engine_pieces;
  out["engine_bytes"] = stats.engine_bytes;
  out["merged_pieces"] = stats.merged_pieces;
  out["kernel_loaded"] = stats.kernel_loaded;
  for (size_t i = 0; i < 3; i++) {
    out[(std::string("engine_from_bytes.") + directions[i]).c_str()] = stats.engine_from_bytes[i];
    out[(std::string("kernel_blocks.") + directions[i]).c_str()] = stats.kernel_blocks[i];
  }
  return out;
}

} // namespace

void bind_copies(nb::module_ &module) {
  module.def(
      "copy_blocks", &copy_blocks, nb::arg("device"), nb::arg("destination").none(), nb::arg("source").none(),
      nb::arg("destination_ids").none(), nb::arg("source_ids").none(), nb::arg("stream").none(),
      nb::sig("def copy_blocks(device: Device, destination: object, source: object, destination_ids: object, "
              "source_ids: object, stream: StreamLike) -> None"),
      "Queue copies of blocks by number, such as pages of a cache: source[source_ids[i]] to "
      "destination[destination_ids[i]].\n\n"
      "Short blocks are copied by a kernel, long ones by copy engines.\n\n"
      "Parameters\n----------\ndevice : Device\ndestination, source : object\n"
      "    Arrays whose first dimension counts blocks, or lists of as many arrays, such as one for each layer, of "
      "which the "
      "same\n    blocks are copied. In device memory, or one of both in pinned memory; see memory_info(). All must "
      "live, and the source\n    stay as it is, until the copies are done.\n"
      "destination_ids, source_ids : object\n    Sequences of integers, or arrays of int32 or int64: in host memory, "
      "read at "
      "the call, or both in device memory, read in\n    stream order, which needs copy_prepare(). No block of the "
      "destination comes twice.\n"
      "stream : int or object\n    The copies come after the work queued on it so far, and may be captured.\n\n"
      "Raises\n------\nInvalidArgumentError\n    Names the first wrong block; nothing of that array is queued.");
  module.def(
      "copy_prepare", &copy_prepare, nb::arg("device"), nb::sig("def copy_prepare(device: Device) -> None"),
      "Load the kernel of copy_blocks() and measure from which length on copy engines are as fast.\n\n"
      "Call it when the device is idle, as it waits for all its work. Without it, the first copy_blocks() on an idle "
      "stream does\nthe same.\n\nRaises\n------\nUnsupportedError\n    The device or its driver cannot have the "
      "kernel: copy engines copy all blocks.");
  module.def("copy_stats", &copy_stats, nb::arg("device"), nb::sig("def copy_stats(device: Device) -> dict[str, int]"),
             "What copy_blocks() and lade_copy_pieces() did on a device.\n\n"
             "Returns\n-------\ndict\n    kernel_pieces, kernel_bytes, engine_pieces, engine_bytes, merged_pieces, "
             "kernel_loaded (2: device or driver cannot\n    have it), and for each direction engine_from_bytes and "
             "kernel_blocks: the measured length and number of blocks of\n    threads.");
}

} // namespace lade_python
