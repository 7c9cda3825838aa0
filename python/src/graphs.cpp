// SPDX-License-Identifier: Apache-2.0
#include "graphs.h"

#include "array.h"
#include "natural.h"
#include "stream.h"
#include "tensor_view.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

namespace lade_python {

namespace {

constexpr lade_graph_buffer none = {0, 0};
bool is_buffer(lade_graph_buffer buffer) { return buffer.slot != 0 || buffer.generation != 0; }

// One run, in its thread. It calls Python.
struct Running {
  nb::handle call; // called by the body
  const std::vector<size_t> *offsets;
  uint32_t output_count;
  std::unique_ptr<nb::python_error> raised;
  bool called = false; // the body was
};
thread_local Running *running = nullptr;

// G5
struct LateTree {
  lade_graph_tree *handle;
  Owner<Allocator> *allocator;
};
std::mutex &late_lock = *new std::mutex;
std::vector<LateTree> &late = *new std::vector<LateTree>;

// The allocator stays for ever where the tree could not be destroyed.
void tree_destroy(LateTree tree) noexcept {
  if (lade_graph_tree_destroy(tree.handle, true) == LADE_OK) delete tree.allocator;
}

// Without the GIL.
void late_destroy() noexcept {
  std::vector<LateTree> trees;
  {
    std::lock_guard<std::mutex> guard(late_lock);
    trees.swap(late);
  }
  for (const LateTree &tree : trees) tree_destroy(tree);
}

} // namespace

// ---- Trees -----------------------------------------------------------------------------------------------------------

GraphTree::GraphTree(Owner<Allocator> allocator, lade_graph_tree *handle)
    : Arena(allocator->device()), allocator_(std::move(allocator)), handle_(handle) {}

GraphTree::~GraphTree() {
  if (!handle_) return;
  const LateTree own = {handle_, new Owner<Allocator>(std::move(allocator_))};
  if (is_abandoned()) return;
  if (!running) {
    tree_destroy(own);
  } else {
    std::lock_guard<std::mutex> guard(late_lock);
    late.push_back(own);
  }
}

void GraphTree::close() {
  if (is_closed()) return;
  long uses = uses_.load();
  if (uses == 0 && running) raise(LADE_ERR_BUSY, "the Tree cannot be closed in a function that a tree runs");
  if (uses != 0 || !uses_.compare_exchange_strong(uses, closing_bit)) {
    if (uses & closing_bit) return; // another thread closes it
    raise(LADE_ERR_BUSY, "the Tree cannot be closed: " + std::to_string(uses) +
                             " outputs, tensors over them, or calls in other threads still use it");
  }
  lade_graph_tree *closed = handle_.exchange(nullptr);
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_graph_tree_destroy(closed, true);
  }
  if (status != LADE_OK) {
    handle_.store(closed);
    uses_.fetch_and(~closing_bit);
    raise(status);
  }
  Unlocked unlocked;
  streams_.clear(); // no call is left that uses them
  allocator_ = Owner<Allocator>();
}

lade_graph_buffer GraphTree::find(uintptr_t address, size_t bytes, size_t *out_offset, size_t *out_bytes) {
  lade_graph_buffer stale = none;
  std::lock_guard<std::mutex> guard(lock_);
  for (auto each = given_.upper_bound(address); each != given_.begin();) {
    const GraphOutput &output = *(--each)->second;
    if (address - output.address_ >= output.bytes_ || output.bytes_ - (address - output.address_) < bytes) continue;
    *out_offset = address - output.address_;
    *out_bytes = output.bytes_;
    if (output.is_valid()) return output.buffer_;
    stale = output.buffer_;
  }
  return stale;
}

std::vector<uint64_t> GraphTree::held() {
  std::vector<uint64_t> out;
  std::lock_guard<std::mutex> guard(lock_);
  for (const auto &each : given_) out.push_back(each.second->number_);
  return out;
}

std::vector<GraphTree::Overwritten> GraphTree::overwritten() {
  std::vector<Overwritten> out;
  std::lock_guard<std::mutex> guard(lock_);
  for (const auto &each : given_) {
    if (!each.second->is_watched_ || each.second->is_valid()) continue;
    each.second->is_watched_ = false;
    out.emplace_back(each.second->number_, each.second->function_);
  }
  return out;
}

void GraphTree::streams_keep(std::shared_ptr<Stream> stream) {
  if (!stream) return;
  std::lock_guard<std::mutex> guard(lock_);
  streams_.push_back(std::move(stream));
}

// ---- Outputs ---------------------------------------------------------------------------------------------------------

GraphOutput::GraphOutput(GraphTree &tree, const lade_graph_value &value, std::shared_ptr<const std::string> function)
    : tree_(tree), buffer_(value.buffer), address_(reinterpret_cast<uintptr_t>(value.address)), bytes_(value.bytes),
      function_(std::move(function)) {
  if (!is_buffer(buffer_)) return;
  std::lock_guard<std::mutex> guard(tree.lock_);
  tree.given_.emplace(address_, this);
  number_ = ++tree.given_count_;
  tree.uses_++;
}

GraphOutput::~GraphOutput() {
  if (!is_buffer(buffer_)) return;
  {
    std::lock_guard<std::mutex> guard(tree_.lock_);
    for (auto each = tree_.given_.lower_bound(address_); each != tree_.given_.end(); ++each)
      if (each->second == this) {
        tree_.given_.erase(each);
        break;
      }
  }
  if (!tree_.is_abandoned()) (void)lade_graph_buffer_release(tree_.handle_, buffer_);
  tree_.uses_--;
}

void GraphOutput::watch() {
  std::lock_guard<std::mutex> guard(tree_.lock_);
  is_watched_ = true;
}

bool GraphOutput::is_valid() const noexcept {
  if (!is_buffer(buffer_)) return !ended_;
  return lade_graph_buffer_get(tree_.handle_, buffer_, nullptr, nullptr) == LADE_OK;
}

void GraphOutput::check_valid() const {
  if (!is_buffer(buffer_) && ended_)
    raise(LADE_ERR_OVERWRITTEN, "this GraphArray was an argument of " + *function_ +
                                    " while that was recorded: its memory is the recording's");
  if (!is_buffer(buffer_)) return;
  const lade_status status = lade_graph_buffer_get(tree_.handle_, buffer_, nullptr, nullptr);
  if (status == LADE_ERR_OVERWRITTEN)
    raise(status, "an output of " + *function_ +
                      " was overwritten by a later call: copy what is to outlive its step before the next one. " +
                      lade_last_error()->text);
  check(status);
}

// ---- Runs ------------------------------------------------------------------------------------------------------------

// The C++ object of lade._lade._GraphTree.
struct GraphTreeObject {
  Owner<GraphTree> tree;
  GraphTreeObject() = default;
  GraphTreeObject(GraphTreeObject &&) = default;
  ~GraphTreeObject() { let_go(tree); }
};

// The C++ object of lade._lade._GraphFunction: a function of one form of arguments.
struct GraphFunctionObject {
  Owner<GraphTree> tree;
  lade_graph_function *function = nullptr;
  std::shared_ptr<const std::string> name;
  std::vector<size_t> bytes; // of each input
  uint32_t output_count = 0;
  GraphFunctionObject() = default;
  GraphFunctionObject(GraphFunctionObject &&other) noexcept
      : tree(std::move(other.tree)), function(std::exchange(other.function, nullptr)), name(std::move(other.name)),
        bytes(std::move(other.bytes)), output_count(other.output_count) {}
  ~GraphFunctionObject();
};

namespace {

uintptr_t address_from(nb::handle number) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == ~0ull && PyErr_Occurred()) throw nb::python_error();
  return static_cast<uintptr_t>(value);
}

// Names what a body gave: ints, and pairs of address and bytes; the object in `leaves` of each that is the tree's goes.
void outputs_name(lade_graph_context *context, nb::handle values, nb::handle leaves, uint32_t count) {
  const Py_ssize_t given = PyTuple_Size(values.ptr());
  for (uint32_t i = 0; i < count; i++) {
    nb::handle value = static_cast<Py_ssize_t>(i) < given ? nb::handle(PyTuple_GetItem(values.ptr(), i)) : nb::handle();
    if (!value.is_valid() || PyLong_Check(value.ptr())) {
      check(lade_graph_output_integer(context, i, value.is_valid() ? address_from(value) : 0));
      continue;
    }
    void *address = reinterpret_cast<void *>(address_from(PyTuple_GetItem(value.ptr(), 0)));
    const size_t bytes = address_from(PyTuple_GetItem(value.ptr(), 1));
    bool awaited = false;
    check(lade_graph_output_freed(context, i, address, bytes, &awaited));
    if (awaited && PyList_SetItem(leaves.ptr(), i, Py_NewRef(Py_None)) != 0) throw nb::python_error();
  }
}

nb::object inputs_tuple(const lade_graph_context *context, const std::vector<size_t> &offsets) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(offsets.size())));
  if (!out) throw nb::python_error();
  for (size_t i = 0; i < offsets.size(); i++) {
    lade_graph_value input;
    check(lade_graph_input_get(context, i, &input));
    PyObject *number = PyLong_FromUnsignedLongLong(reinterpret_cast<uintptr_t>(input.address) + offsets[i]);
    if (!number || PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), number) != 0) throw nb::python_error();
  }
  return out;
}

void body_call(lade_graph_context *context, const Running &run) {
  nb::object result = python_run([&] {
    return run.call(static_cast<int>(context->stage), reinterpret_cast<uintptr_t>(context->stream),
                    inputs_tuple(context, *run.offsets));
  });
  nb::object leaves = result[1];
  try {
    outputs_name(context, result[0], leaves, run.output_count);
  } catch (...) { // what they hold may lie in the pool
    (void)PyList_SetSlice(leaves.ptr(), 0, PyList_Size(leaves.ptr()), nullptr);
    throw;
  }
}

// Of all functions: what it runs comes with the run (G1).
lade_status body(lade_graph_context *context, void *) {
  Running &run = *running;
  run.called = true;
  const PyGILState_STATE gil = gil_take();
  lade_status status = LADE_OK;
  try {
    body_call(context, run);
  } catch (nb::python_error &error) {
    status = LADE_ERR_CALLBACK;
    run.raised = std::make_unique<nb::python_error>(std::move(error));
  } catch (const std::exception &) {
    status = LADE_ERR_OUT_OF_HOST_MEMORY;
  }
  PyGILState_Release(gil);
  return status;
}

// The C++ object of lade._lade._GraphResult: how memory that a function gave is described to Python.
struct GraphResultObject {
  Layout layout;
  bool is_tensor = false; // of PyTorch; else a GraphArray
};

// Makes objects of the values of one run. `plan` is _Spec.plan in graphs.py: the function that makes a tensor of a capsule, then for
// each value after the first a _GraphResult, or one and a function that changes the tensor. `given` has the tensors by the numbers
// of their outputs.
struct Making {
  GraphTree &tree;
  lade_stream stream;
  nb::object plan;
  nb::handle given;
};

nb::object plan_of(nb::handle specs, const std::vector<lade_graph_value> &values) {
  if (values.empty() || values[0].kind != LADE_GRAPH_INTEGER) refuse("the run has no number of what it gave");
  const nb::object spec = nb::steal(PySequence_GetItem(specs.ptr(), static_cast<Py_ssize_t>(values[0].integer)));
  if (!spec) throw nb::python_error();
  return spec.attr("plan");
}

nb::object object_called(PyObject *function, const nb::object &argument) {
  nb::object out = nb::steal(PyObject_CallFunctionObjArgs(function, argument.ptr(), static_cast<PyObject *>(nullptr)));
  if (!out) throw nb::python_error();
  return out;
}

// A tensor that was made is known before it is watched: a call of another thread, which may have overwritten it already, would
// else be told of it and look for it in vain. It is changed before, too: from then on access to it may be refused.
nb::object tensor_object(const Making &making, const std::shared_ptr<GraphOutput> &output, void *address,
                         const Layout &layout, PyObject *change) {
  Block *block = new Block(&making.tree, address, output);
  nb::object capsule;
  try {
    capsule = dlpack_export(*block, layout, dlpack_device(*block, kDLCUDA), nb::none(), false);
  } catch (...) {
    let_go(block);
    throw;
  }
  let_go(block); // the capsule has it
  nb::object tensor = object_called(PyTuple_GetItem(making.plan.ptr(), 0), capsule);
  if (change) tensor = object_called(change, tensor);
  const nb::object number = nb::steal(PyLong_FromUnsignedLongLong(output->number()));
  const nb::object weak = nb::steal(PyWeakref_NewRef(tensor.ptr(), nullptr));
  if (!number || !weak || PyDict_SetItem(making.given.ptr(), number.ptr(), weak.ptr()) != 0) throw nb::python_error();
  output->watch();
  return tensor;
}

// A value as Python gets it: a number; None for memory that is not the tree's; else a tensor or a GraphArray.
nb::object value_object(const Making &making, size_t index, const lade_graph_value &value,
                        const std::shared_ptr<GraphOutput> &output) {
  if (value.kind == LADE_GRAPH_INTEGER) return nb::steal(PyLong_FromUnsignedLongLong(value.integer));
  if (value.kind != LADE_GRAPH_BUFFER) return nb::none();
  PyObject *result = PyTuple_GetItem(making.plan.ptr(), static_cast<Py_ssize_t>(index));
  if (!result) throw nb::python_error();
  PyObject *change = nullptr;
  if (PyTuple_Check(result)) {
    change = PyTuple_GetItem(result, 1);
    result = PyTuple_GetItem(result, 0);
  }
  const GraphResultObject &as = nb::cast<const GraphResultObject &>(nb::handle(result));
  if (as.is_tensor) return tensor_object(making, output, value.address, as.layout, change);
  return nb::cast(GraphArray(new Block(&making.tree, value.address, output), output.get(),
                             Layout(as.layout.shape(), as.layout.dims(), as.layout.dtype()), making.stream));
}

// Which values are the tree's, by index.
nb::list buffers_list(const std::vector<lade_graph_value> &values) {
  nb::list out;
  for (size_t i = 0; i < values.size(); i++)
    if (values[i].kind == LADE_GRAPH_BUFFER) out.append(i);
  return out;
}

// All counts of the buffers are outputs' before anything of Python is called, which may raise. `ran` is the call whose body has run; invalid: a
// replay. It learns what a recording of it keeps before objects are made, as a later replay makes them where these cannot be made.
nb::object values_tuple(GraphTree &tree, const GraphFunctionObject &function,
                        const std::vector<lade_graph_value> &values, lade_stream stream, nb::handle specs,
                        nb::handle given, nb::handle ran) {
  std::vector<std::shared_ptr<GraphOutput>> outputs(values.size());
  for (size_t i = 0; i < values.size(); i++)
    if (values[i].kind == LADE_GRAPH_BUFFER) outputs[i] = std::make_shared<GraphOutput>(tree, values[i], function.name);
  if (__builtin_expect(ran.is_valid(), 0)) ran.attr("buffers") = buffers_list(values);
  const Making making{tree, stream, plan_of(specs, values), given};
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!out) throw nb::python_error();
  for (size_t i = 0; i < values.size(); i++) {
    PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(i),
                    value_object(making, i, values[i], outputs[i]).release().ptr());
    outputs[i].reset();
  }
  return out;
}

} // namespace

GraphFunctionObject::~GraphFunctionObject() {
  // Busy in a body: then it goes with the tree.
  if (function && !tree->is_abandoned()) {
    const GraphUse use(*tree.get());
    if (!tree->is_closed()) {
      lade_graph_tree *of = tree->get();
      without_gil([&] { (void)lade_graph_tree_function_remove(of, function); });
    }
  }
  let_go(tree);
}

struct GraphCalls {
  static void init(GraphTreeObject *self, nb::handle allocator, nb::handle warmups, nb::handle max_nodes,
                   nb::handle max_driver_bytes) {
    Owner<Allocator> of = allocator_from(allocator);
    lade_graph_tree_options options;
    lade_graph_tree_options_init(&options);
    options.warmups = natural_from(warmups, "warmups");
    if (options.warmups == 0) options.warmups = LADE_GRAPH_NONE;
    options.max_nodes = natural_from(max_nodes, "max_nodes");
    options.max_driver_bytes = natural_from(max_driver_bytes, "max_driver_bytes");
    lade_graph_tree *handle = nullptr;
    check(lade_graph_tree_create(of->get(), &options, &handle));
    new (self) GraphTreeObject;
    self->tree = Owner<GraphTree>(new GraphTree(std::move(of), handle));
  }

  // Calls what may wait for a run of another thread.
  template <typename Call> static void waiting(GraphTree &tree, Call call) {
    const GraphUse use(tree);
    lade_graph_tree *handle = tree.get();
    lade_status status;
    {
      Unlocked unlocked;
      status = call(handle);
    }
    check(status);
  }

  static GraphFunctionObject add(const GraphTreeObject &self, const std::string &name, nb::handle bytes,
                                 nb::handle flags, uint32_t output_count) {
    GraphFunctionObject out;
    out.tree = self.tree;
    out.name = std::make_shared<const std::string>(name);
    out.output_count = output_count;
    std::vector<uint32_t> input_flags;
    for (nb::handle each : nb::iter(bytes)) out.bytes.push_back(address_from(each));
    for (nb::handle each : nb::iter(flags)) input_flags.push_back(static_cast<uint32_t>(address_from(each)));
    lade_graph_function_options options;
    lade_graph_function_options_init(&options);
    options.body = &body;
    options.name = out.name->c_str();
    options.input_count = out.bytes.size();
    options.input_flags = input_flags.data();
    options.output_count = output_count;
    waiting(*self.tree.get(),
            [&](lade_graph_tree *handle) { return lade_graph_tree_function_add(handle, &options, &out.function); });
    return out;
  }

  // Inputs by their addresses: buffers of the tree as such, with the place in them in the key.
  static void inputs_read(GraphTree &tree, const GraphFunctionObject &function, nb::handle addresses,
                          std::vector<lade_graph_value> &inputs, std::vector<size_t> &offsets,
                          std::vector<uint64_t> &key) {
    const size_t count = function.bytes.size();
    if (static_cast<size_t>(PyTuple_Size(addresses.ptr())) != count) refuse("addresses are not as many as inputs");
    inputs.resize(count);
    offsets.assign(count, 0);
    for (size_t i = 0; i < count; i++) {
      const uintptr_t address = address_from(PyTuple_GetItem(addresses.ptr(), static_cast<Py_ssize_t>(i)));
      inputs[i] = lade_graph_value{};
      inputs[i].kind = LADE_GRAPH_MEMORY;
      inputs[i].address = reinterpret_cast<void *>(address);
      inputs[i].bytes = function.bytes[i];
      size_t whole = 0;
      const lade_graph_buffer buffer = tree.find(address, function.bytes[i], &offsets[i], &whole);
      if (!is_buffer(buffer)) continue;
      inputs[i].kind = LADE_GRAPH_BUFFER;
      inputs[i].buffer = buffer;
      inputs[i].bytes = 0;
      if (whole == function.bytes[i]) continue;
      key.push_back(i);
      key.push_back(offsets[i]);
      key.push_back(whole);
    }
  }

  static void run_end(GraphTree &tree, std::shared_ptr<Stream> stream, bool is_ok) {
    if (is_ok) {
      std::vector<std::shared_ptr<Stream>> gone;
      {
        std::lock_guard<std::mutex> guard(tree.lock_);
        gone.swap(tree.streams_);
      }
      tree.streams_keep(std::move(stream));
      if (!gone.empty()) {
        Unlocked unlocked;
        gone.clear();
      }
    } else {
      tree.streams_keep(std::move(stream));
    }
  }

  // Values in the order of outputs. `call(stage, stream, addresses)` is what a body does; it gives a tuple of values and the list of
  // objects that hold them.
  static nb::object run(const GraphTreeObject &self, const GraphFunctionObject &function, nb::handle stream,
                        nb::handle addresses, nb::handle call, bool automatic, nb::handle specs, nb::handle given) {
    GraphTree &tree = *self.tree.get();
    if (running)
      raise(LADE_ERR_BUSY, "a function that a tree runs makes a run of a tree; expected a call of the function itself");
    std::vector<lade_graph_value> inputs, outputs(function.output_count);
    std::vector<size_t> offsets;
    std::vector<uint64_t> key;
    std::shared_ptr<Stream> owner = stream_owner(stream);
    lade_graph_call how;
    lade_graph_call_init(&how);
    how.stream = stream_from(tree.runtime(), stream, tree.device().ordinal);
    const GraphUse use(tree);
    lade_graph_tree *handle = tree.get();
    inputs_read(tree, function, addresses, inputs, offsets, key);
    how.inputs = inputs.data();
    how.input_count = inputs.size();
    how.key = key.data();
    how.key_count = key.size();
    how.flags = automatic ? LADE_GRAPH_CALL_AUTO : 0;
    Running own{call, &offsets, function.output_count, nullptr, false};
    lade_status status;
    lade_error error;
    {
      Unlocked unlocked;
      running = &own;
      status = lade_graph_tree_run(handle, function.function, &how, outputs.data(), outputs.size(), nullptr);
      running = nullptr;
      if (__builtin_expect(status != LADE_OK, 0)) error = *lade_last_error();
      if (__builtin_expect(own.called, 0)) late_destroy();
    }
    std::unique_ptr<nb::python_error> failed = std::move(own.raised);
    if (status != LADE_OK && !failed) {
      set_error(error);
      failed = std::make_unique<nb::python_error>();
    }
    run_end(tree, std::move(owner), status == LADE_OK);
    if (failed) throw std::move(*failed);
    return values_tuple(tree, function, outputs, how.stream, specs, given, own.called ? call : nb::handle());
  }

  static void record_stream(const GraphTreeObject &self, uintptr_t address, nb::handle stream) {
    GraphTree &tree = *self.tree.get();
    const GraphUse use(tree);
    size_t offset = 0, bytes = 0;
    const lade_graph_buffer buffer = tree.find(address, 1, &offset, &bytes);
    if (!is_buffer(buffer)) refuse("the array is no output of this Tree");
    const lade_stream on = stream_from(tree.runtime(), stream, tree.device().ordinal);
    check(lade_graph_buffer_record_stream(tree.get(), buffer, on));
    tree.streams_keep(stream_owner(stream));
  }

  static nb::dict stats(const GraphTreeObject &self) {
    lade_graph_tree_stats stats;
    lade_graph_tree_stats_init(&stats);
    waiting(*self.tree.get(), [&](lade_graph_tree *handle) { return lade_graph_tree_stats_get(handle, &stats); });
    static const char *const states[] = {"none", "warmup", "recording", "execution"};
    static const char *const reasons[] = {"form",  "managed", "static", "dead_before", "dead_after",
                                          "prior", "mutated", "limit",  "checkpoint"};
    nb::dict out;
    out["state"] = states[stats.state & 3];
#define LADE_PYTHON_FIELD(name) out[#name] = stats.name
    LADE_PYTHON_FIELD(depth);
    LADE_PYTHON_FIELD(steps);
    LADE_PYTHON_FIELD(buffers);
    LADE_PYTHON_FIELD(alive);
    LADE_PYTHON_FIELD(runs);
    LADE_PYTHON_FIELD(eager_runs);
    LADE_PYTHON_FIELD(warmups);
    LADE_PYTHON_FIELD(recordings);
    LADE_PYTHON_FIELD(replays);
    LADE_PYTHON_FIELD(errors);
    LADE_PYTHON_FIELD(restores);
    LADE_PYTHON_FIELD(evictions);
    LADE_PYTHON_FIELD(carried);
    LADE_PYTHON_FIELD(carried_bytes);
    LADE_PYTHON_FIELD(copied);
    LADE_PYTHON_FIELD(copied_bytes);
    LADE_PYTHON_FIELD(overwritten);
    LADE_PYTHON_FIELD(nodes);
    LADE_PYTHON_FIELD(pool_reserved_bytes);
    LADE_PYTHON_FIELD(pool_peak_bytes);
    LADE_PYTHON_FIELD(alone_bytes);
    LADE_PYTHON_FIELD(saved_bytes);
    LADE_PYTHON_FIELD(driver_bytes);
    LADE_PYTHON_FIELD(metadata_bytes);
#undef LADE_PYTHON_FIELD
    for (size_t i = 0; i < LADE_GRAPH_REASON_COUNT; i++) {
      out[(std::string("mismatches.") + reasons[i]).c_str()] = stats.mismatches[i];
      out[(std::string("eager.") + reasons[i]).c_str()] = stats.eager[i];
    }
    return out;
  }

  static std::string dump(const GraphTreeObject &self) {
    std::string text;
    waiting(*self.tree.get(), [&](lade_graph_tree *handle) {
      return lade_graph_tree_dump(
          handle,
          [](void *user, const void *data, size_t bytes) {
            try {
              static_cast<std::string *>(user)->append(static_cast<const char *>(data), bytes);
              return LADE_OK;
            } catch (...) {
              return LADE_ERR_OUT_OF_HOST_MEMORY;
            }
          },
          &text);
    });
    return text;
  }
};

// ---- Arrays ----------------------------------------------------------------------------------------------------------

namespace {

// Memory of an input while its function is recorded, as an Array that is no more after the body.
GraphArray borrow(const GraphTreeObject &self, const std::string &name, uintptr_t address, nb::handle shape,
                  nb::handle dtype, nb::handle stream) {
  GraphTree &tree = *self.tree.get();
  Layout layout(shape, dtype_from(dtype));
  lade_graph_value value = {};
  value.address = reinterpret_cast<void *>(address);
  value.bytes = layout.bytes();
  auto output = std::make_shared<GraphOutput>(tree, value, std::make_shared<const std::string>(name));
  GraphOutput *of = output.get();
  const lade_stream on = stream_from(tree.runtime(), stream, tree.device().ordinal);
  return GraphArray(new Block(&tree, value.address, std::move(output)), of, std::move(layout), on);
}

// The same block in another form.
GraphArray reshaped(const GraphArray &array, nb::handle shape, nb::handle dtype) {
  Layout layout(shape, dtype_from(dtype));
  array.block().hold();
  return GraphArray(&array.block(), &array.output(), std::move(layout), array.stream());
}

void consumer_wait(const GraphArray &array, lade_stream consumer) {
  if (consumer == array.stream()) return;
  stream_follow(array.tree().device(), consumer, array.stream());
  if (is_buffer(array.output().buffer()))
    check(lade_graph_buffer_record_stream(array.tree().get(), array.output().buffer(), consumer));
}

// As of a DeviceBuffer: a software device's consumers have no stream, so the work is waited for.
void consumer_order(const GraphArray &array, nb::handle stream) {
  const Device &device = array.tree().device();
  if (device.runtime->is_software()) {
    lade_status status;
    {
      Unlocked unlocked;
      status = lade_stream_synchronize(device.get(), array.stream());
    }
    return check(status);
  }
  if (stream.is_none()) return consumer_wait(array, LADE_STREAM_LEGACY);
  if (!keeps_order_itself(stream)) consumer_wait(array, stream_from(*device.runtime, stream, device.ordinal));
}

nb::list list_of(const std::vector<uint64_t> &numbers) {
  nb::list out;
  for (const uint64_t number : numbers) out.append(number);
  return out;
}

nb::object dlpack(const GraphArray &array, nb::handle stream, nb::handle max_version, nb::handle dl_device,
                  nb::handle copy) {
  array.output().check_valid();
  const DLDevice own = dlpack_device(array.block(), kDLCUDA);
  dlpack_refuse_copy("GraphArray", own, dl_device, copy);
  consumer_order(array, stream);
  return dlpack_export(array.block(), array.layout(), own, max_version, false);
}

nb::dict cuda_interface(const GraphArray &array) {
  if (array.tree().runtime().is_software())
    throw nb::attribute_error(
        "__cuda_array_interface__: the memory of a software device is no memory of CUDA; take DLPack");
  array.output().check_valid();
  const uintptr_t handle = reinterpret_cast<uintptr_t>(array.stream());
  nb::dict out = array_interface(array.block().pointer(), array.layout());
  out["stream"] = handle ? handle : reinterpret_cast<uintptr_t>(LADE_STREAM_LEGACY);
  return out;
}

void bind_array_class(nb::module_ &module) {
  nb::class_<GraphArray> type(module, "GraphArray", nb::is_weak_referenceable(),
                              "An output of a function that a ``lade.graphs.Tree`` runs, in the tree's memory: "
                              "C-contiguous, ready for work queued on the\n"
                              "stream of the call.\n\n"
                              "It has ``__cuda_array_interface__`` (``cupy.asarray(array)`` makes no copy) and DLPack; "
                              "on a software device DLPack alone, as\n"
                              "host memory, after a wait. Its memory may be used again when it and all that was made "
                              "of it are gone, or when its step is over:\n"
                              "from then on OverwrittenError names the function.");
  bind_array(type);
  type.def_prop_ro(
          "valid", [](const GraphArray &array) { return array.output().is_valid(); },
          "Whether its memory is still its own.")
      .def_prop_ro(
          "stream", [](const GraphArray &array) { return reinterpret_cast<uintptr_t>(array.stream()); },
          "Handle of the stream that its bytes are ready on.")
      .def_prop_ro("__cuda_array_interface__", &cuda_interface, "Version 3 of the interface. Not on software devices.",
                   nb::sig("def __cuda_array_interface__(self) -> dict[str, object]"))
      .def("__dlpack__", &dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: typing.SupportsIndex | None = None, max_version: tuple[int, int] | "
                   "None = None, "
                   "dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> object"),
           "A DLPack capsule. The consumer's stream is made to wait for the array's, and the next run for the "
           "consumer's.")
      .def(
          "__dlpack_device__",
          [](const GraphArray &array) {
            const DLDevice device = dlpack_device(array.block(), kDLCUDA);
            return nb::make_tuple(device.type, device.id);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def(
          "_capsule",
          [](const GraphArray &array, nb::handle shape, nb::handle dtype) {
            return dlpack_export(array.block(), Layout(shape, dtype_from(dtype)), dlpack_device(array.block(), kDLCUDA),
                                 nb::none(), false);
          },
          nb::arg("shape").none(), nb::arg("dtype").none(),
          nb::sig("def _capsule(self, shape: object, dtype: object) -> object"),
          "A capsule for a consumer on the array's own stream.")
      .def("_reshaped", &reshaped, nb::arg("shape").none(), nb::arg("dtype").none(),
           nb::sig("def _reshaped(self, shape: object, dtype: object) -> GraphArray"),
           "The same memory in another form.")
      .def(
          "_end", [](const GraphArray &array) { array.output().body_end(); },
          "The body that it is an argument of is over.")
      .def(
          "__reduce__",
          [](const GraphArray &) -> nb::object {
            refuse_type(
                "a GraphArray is memory of a graph tree, which is not copied or pickled; expected a copy of its bytes");
          },
          nb::sig("def __reduce__(self) -> typing.Any"));
}

// Address, bytes, shape and type of memory that a program passes; device memory that the tree's device reaches.
nb::tuple memory_of(const GraphTreeObject &self, nb::handle object, const std::string &name) {
  const Device &device = self.tree->device();
  TensorView view = tensor_view(object, Access::read, name.c_str());
  require_reachable(view, device, name.c_str());
  if (!view.on_device) refuse(name + " is in host memory; expected device memory of " + device.text());
  nb::object shape = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(view.shape.size())));
  for (size_t i = 0; i < view.shape.size(); i++)
    PyTuple_SetItem(shape.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(view.shape[i]));
  if (!view.dtype) refuse(name + " has an element type without a name here");
  return nb::make_tuple(reinterpret_cast<uintptr_t>(view.data), view.bytes, shape, view.dtype->name);
}

} // namespace

void bind_graphs(nb::module_ &module) {
  bind_array_class(module);
  Locked<GraphFunctionObject>(module, "_GraphFunction", "A function of a tree, of one form of arguments.");
  Locked<GraphResultObject>(module, "_GraphResult", "How memory that a function gave is described.")
      .def(
          "__init__",
          [](GraphResultObject *self, nb::handle shape, nb::handle dtype, bool is_tensor) {
            new (self) GraphResultObject{Layout(shape, dtype_from(dtype)), is_tensor};
          },
          nb::arg("shape").none(), nb::arg("dtype").none(), nb::arg("is_tensor"),
          nb::sig("def __init__(self, shape: object, dtype: object, is_tensor: bool) -> None"));
  Locked<GraphTreeObject>(module, "_GraphTree", "What lade.graphs.Tree stands on.")
      .def("__init__", &GraphCalls::init, nb::arg("allocator").none(), nb::arg("warmups").none(),
           nb::arg("max_nodes").none(), nb::arg("max_driver_bytes").none(),
           nb::sig("def __init__(self, allocator: DeviceAllocator, warmups: int, max_nodes: int, max_driver_bytes: "
                   "int) -> None"))
      .def("add", &GraphCalls::add, nb::arg("name"), nb::arg("bytes"), nb::arg("flags"), nb::arg("output_count"),
           nb::sig(
               "def add(self, name: str, bytes: collections.abc.Sequence[int], flags: collections.abc.Sequence[int], "
               "output_count: int) -> _GraphFunction"))
      .def("run", &GraphCalls::run, nb::arg("function"), nb::arg("stream").none(), nb::arg("addresses"),
           nb::arg("call"), nb::arg("automatic"), nb::arg("specs"), nb::arg("given"),
           nb::sig("def run(self, function: _GraphFunction, stream: StreamLike, addresses: tuple[int, ...], call: "
                   "typing.Any, "
                   "automatic: bool, specs: collections.abc.Sequence[object], given: dict[int, typing.Any]) -> "
                   "tuple[typing.Any, ...]"))
      .def("step", [](const GraphTreeObject &self) { GraphCalls::waiting(*self.tree.get(), lade_graph_tree_step); })
      .def("memory", &memory_of, nb::arg("object").none(), nb::arg("name"),
           nb::sig("def memory(self, object: object, name: str) -> tuple[int, int, tuple[int, ...], str]"))
      .def("borrow", &borrow, nb::arg("name"), nb::arg("address"), nb::arg("shape").none(), nb::arg("dtype").none(),
           nb::arg("stream").none(),
           nb::sig("def borrow(self, name: str, address: int, shape: object, dtype: object, stream: StreamLike) -> "
                   "_GraphArray"))
      .def("record_stream", &GraphCalls::record_stream, nb::arg("address"), nb::arg("stream").none(),
           nb::sig("def record_stream(self, address: int, stream: StreamLike) -> None"))
      .def(
          "retire_stream",
          [](const GraphTreeObject &self, nb::handle stream) {
            const lade_stream on = stream_from(self.tree->runtime(), stream, self.tree->device().ordinal);
            GraphCalls::waiting(*self.tree.get(),
                                [&](lade_graph_tree *handle) { return lade_graph_tree_stream_retire(handle, on); });
          },
          nb::arg("stream").none(), nb::sig("def retire_stream(self, stream: StreamLike) -> None"))
      .def("held", [](const GraphTreeObject &self) { return list_of(self.tree->held()); })
      .def(
          "overwritten",
          [](const GraphTreeObject &self) {
            nb::list out;
            for (const auto &[number, function] : self.tree->overwritten())
              out.append(nb::make_tuple(number, *function));
            return out;
          },
          nb::sig("def overwritten(self) -> list[tuple[int, str]]"))
      .def("stats", &GraphCalls::stats, nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def("dump", &GraphCalls::dump)
      .def(
          "reserve",
          [](const GraphTreeObject &self, nb::handle nbytes) {
            const uint64_t bytes = natural_from(nbytes, "nbytes");
            GraphCalls::waiting(*self.tree.get(),
                                [&](lade_graph_tree *handle) { return lade_graph_tree_reserve(handle, bytes); });
          },
          nb::arg("nbytes").none(), nb::sig("def reserve(self, nbytes: int) -> None"))
      .def("trim",
           [](const GraphTreeObject &self) {
             uint64_t bytes = 0;
             GraphCalls::waiting(*self.tree.get(),
                                 [&](lade_graph_tree *handle) { return lade_graph_tree_trim(handle, &bytes); });
             return bytes;
           })
      .def("close", [](const GraphTreeObject &self) { self.tree->close(); })
      .def_prop_ro("closed", [](const GraphTreeObject &self) { return self.tree->is_closed(); })
      .def_prop_ro("device", [](const GraphTreeObject &self) { return DeviceObject(self.tree->device()); });
}

} // namespace lade_python
