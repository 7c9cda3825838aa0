// SPDX-License-Identifier: Apache-2.0
//
// lade.Pipeline and lade.Ticket.
#ifndef LADE_PYTHON_PIPELINE_H
#define LADE_PYTHON_PIPELINE_H

#include "transfer.h"

namespace lade_python {

// The C++ object of lade.Pipeline. Holds no Python object, so it is in no cycle.
struct PipelineObject {
  std::shared_ptr<Pipe> pipe;
  PipelineObject() = default;
  PipelineObject(PipelineObject &&) = default;
  ~PipelineObject() {
    if (pipe) let_go(pipe);
  }
};

// The C++ object of lade.Ticket. `result` is the ticket's own count of what wait() fills: cycles through it are collected, while the
// transfer itself has another count until it is over (P1).
struct TicketObject {
  std::shared_ptr<Transfer> transfer;
  nb::object result;
  TicketObject(std::shared_ptr<Transfer> of, nb::object tensor) : transfer(std::move(of)), result(std::move(tensor)) {}
  TicketObject(TicketObject &&) = default;
  ~TicketObject() {
    if (transfer) let_go(transfer);
  }
};

// The pipeline that an argument means: a lade.Pipeline that is open. Refuses the rest by name.
std::shared_ptr<Pipe> pipe_from(nb::handle object);

// Path as the system has it: str, bytes, os.PathLike. Refuses NUL bytes.
std::string path_from(nb::handle object, const char *what);

void bind_pipeline(nb::module_ &module);

} // namespace lade_python

#endif // LADE_PYTHON_PIPELINE_H
