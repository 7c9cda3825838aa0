// SPDX-License-Identifier: Apache-2.0
//
// The extension lade._lade: each file binds its own.
#include "copies.h"
#include "cupy_calls.h"
#include "device.h"
#include "device_pool.h"
#include "device_view.h"
#include "graphs.h"
#include "loader.h"
#include "log.h"
#include "observe.h"
#include "pinned.h"
#include "pipeline.h"
#include "refusal.h"
#include "rmm_calls.h"
#include "runtime.h"
#include "safetensors.h"
#include "status.h"
#include "tensor_rows.h"
#include "tensor_view.h"

NB_MODULE(_lade, module) {
  using namespace lade_python;
  // The classes of errors and the shared runtimes are the process's: a second interpreter would take them over.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)
    throw nb::import_error("lade serves the main interpreter of a process, and no subinterpreter");
#if defined(Py_GIL_DISABLED)
  nb::module_::import_("lade._nanobind"); // refuses another project's package over this one
#endif
  // Objects that live at the interpreter's exit stay as it is (runtime.h, R3): no leak.
  nb::set_leak_warnings(false);
  bind_status(module);
  bind_log(module); // its lines are delivered after the runtime's end (atexit)
  bind_runtime(module);
  bind_pinned(module);
  bind_device(module);
  bind_observe(module);
  bind_tensor_view(module);
  bind_copies(module);
  bind_device_view(module);
  bind_graphs(module);
  bind_pipeline(module);
  bind_device_pool(module);
  bind_tensor_rows(module);
  bind_safetensors(module);
  bind_loader(module);
  bind_cupy(module);
  bind_rmm(module);
  cover_refusals(module); // of all that is bound above
}
