// SPDX-License-Identifier: Apache-2.0
//
// A pipeline and its transfers: the native side of lade.Pipeline and lade.Ticket, with a thread that calls Python.
//
//   lade.Ticket --> Transfer --> Pipe --> Owner<Pool>          (shared_ptr, except the last)
//                      ^           |
//                      +-- live ---+      while the transfer is under way
//
//   submit --> live --(on_complete, a thread of lade)--> finished --(messenger)--> delivered: callbacks called, tensor let go
//                   --(on_complete, in or beside a call on the transfer)--> delivered: the call lets go of the tensor
//
// P1  A transfer is in `live` of its pipe from before its submit until it is over. So pipe, pool, tensor, file and path outlive
//     it, also where the program lets go of ticket and pipeline.
// P2  on_complete runs no Python and takes no GIL: it moves the transfer to the messenger's list. The readers of a
//     pipeline never wait for an interpreter that is busy, and calls may run it.
// P3  Callbacks are called once each, by the messenger, or by add_done_callback() where they were delivered before. On "sim",
//     which knows one thread, there is no messenger: the calls of the program deliver. A transfer that ends without callbacks while a
//     call on it is under way is left to that call: so to submit and to wait wakes no thread, neither here nor in lade.
// P4  From pipes_exit() on no messenger runs. Transfers that are still under way then stay in `live` for ever, and with it the Python
//     objects: no thread writes into memory that is gone, and no thread meets an interpreter that is gone.
// P5  In a forked child none of the locks below is taken (a thread that is gone may hold them), and nothing is freed.
// Locks: Pipe::lock_, Messenger::lock_, Transfer::lock_ in this order, none while Python or lade_pipeline_destroy runs, and no error is
// raised under one. The GIL is never waited for under one; one may be taken with the GIL held, for a few instructions.
#ifndef LADE_PYTHON_TRANSFER_H
#define LADE_PYTHON_TRANSFER_H

#include "pinned.h"
#include "tensor_view.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace lade_python {

class Pipe;

// How long a call waits before it looks for signals (SIGINT).
constexpr uint64_t slice_ns = 20 * 1000 * 1000;

// Seconds as Python has them: None is for ever. Refuses what is negative or no number, by the argument's name. LADE_WAIT_FOREVER is for
// ever.
uint64_t timeout_from(nb::handle seconds, const char *name = "timeout");

// Time that is left of a wait, by the wall clock.
class Deadline {
public:
  explicit Deadline(uint64_t timeout_ns);
  // At most `most_ns`; 0: it is over.
  uint64_t slice(uint64_t most_ns) const;

private:
  uint64_t at_ns_; // UINT64_MAX: never
};

// One submitted transfer.
class Transfer {
public:
  explicit Transfer(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
  ~Transfer();
  Transfer(const Transfer &) = delete;
  Transfer &operator=(const Transfer &) = delete;

  const std::shared_ptr<Pipe> &pipe() const noexcept { return pipe_; }
  lade_ticket *ticket() const noexcept { return ticket_.load(std::memory_order_acquire); }
  bool is_over() const noexcept { return over_.load(std::memory_order_acquire); }
  // Once it is over.
  const lade_error &outcome() const noexcept { return outcome_; }
  uint64_t bytes() const noexcept { return bytes_; }

  // Waits; the GIL is held. Raises a signal's exception, TimeoutError, or the outcome.
  void wait(uint64_t timeout_ns);
  // The same; false instead of TimeoutError, and the outcome is not raised.
  bool wait_over(uint64_t timeout_ns);
  // Asks; does not wait.
  bool ask_over();
  // The bytes that have arrived until now.
  uint64_t bytes_done();
  void raise_outcome() const;
  // Adds a callback function(ticket); calls it at once where they were delivered before.
  void add_callback(nb::handle ticket, nb::handle function);

  // --- for the pipe and the messenger ---
  // Lets go of tensor, file and path. With the GIL; once it is over, or was never submitted.
  void release();
  // Calls function(done, bytes), once for each new number.
  void report_progress(uint64_t done);
  void deliver();

  // Set before the submit, which they stay valid for.
  std::vector<TensorView> views; // P1: the memory. From the submit on guarded by lock_, as is fd
  PyObject *progress_ = nullptr; // function(done, bytes), or NULL; a count of its own
  std::string path;
  std::vector<std::string> paths;
  int fd = -1; // its own
  uint64_t bytes_ = 0;
  bool is_sink = false; // writes a file

private:
  friend class Pipe;
  friend class TransferCall;
  // Leaves a transfer that is over to the call that is under way on it: false where there is none, or more to do. With the pipe's lock.
  bool leave_to_call(std::shared_ptr<Transfer> &self);
  struct Callback {
    PyObject *function, *ticket; // counts of their own
  };

  std::shared_ptr<Pipe> pipe_;
  std::atomic<lade_ticket *> ticket_{nullptr};
  std::atomic<bool> over_{false};
  lade_error outcome_{};
  unsigned calls_ = 0;             // guarded by the pipe's lock, as is ...
  std::shared_ptr<Transfer> kept_; // ... itself, where it is left to these
  std::mutex lock_;                // guards what follows
  std::vector<Callback> callbacks_;
  bool delivered_ = false;
  uint64_t reported_ = UINT64_MAX; // to progress_; by the messenger alone
};

// The thread that calls Python for one pipe.
class Messenger {
public:
  // All by any thread. An expected transfer is added soon: the thread does not end before.
  void finished_expect();
  void finished_add(std::shared_ptr<Transfer> transfer);
  void watch(const std::shared_ptr<Transfer> &transfer);
  // Starts the thread unless it runs.
  void start(const std::shared_ptr<Messenger> &self);
  // It ends when all that is finished was delivered.
  void stop();
  // Whether it has ended, after at most so long.
  bool ended_wait(uint64_t timeout_ns);
  // Delivers what is finished, in this thread, with the GIL.
  void drain();

private:
  struct Batch {
    std::vector<std::shared_ptr<Transfer>> finished, watched;
    std::vector<uint64_t> done; // of each watched one
    void deliver();             // with the GIL
  };
  static void *main(void *holder);
  Batch *next();

  std::mutex lock_; // guards all
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Transfer>> finished_;
  std::vector<std::weak_ptr<Transfer>> watched_;
  size_t expected_ = 0;
  bool started_ = false, stopping_ = false, ended_ = false;
};

// A pipeline: what lade.Pipeline wraps, and loads and loaders stand on.
class Pipe : public std::enable_shared_from_this<Pipe> {
public:
  // With the GIL, which is released meanwhile.
  static std::shared_ptr<Pipe> create(Owner<Pool> pool, const lade_pipeline_options &options);
  ~Pipe();
  Pipe(const Pipe &) = delete;
  Pipe &operator=(const Pipe &) = delete;

  const Device &device() const noexcept { return device_; }
  // "sim": one thread at a time, and nothing happens but in calls that wait.
  bool is_virtual() const noexcept { return virtual_; }
  // Refuses a closed pipeline, and a forked child.
  lade_pipeline *get() const;
  bool is_closed() const noexcept { return handle_.load(std::memory_order_acquire) == nullptr; }
  // Whether this process made it.
  bool is_own() const noexcept;

  // Submits. Takes the transfer into `live`; on an error it is as before, but released. Waits for a place in slices.
  void submit(const std::shared_ptr<Transfer> &transfer, lade_transfer &request);
  // Waits for transfers (cancel: cancels them first), and destroys. Interrupted or late, it stays open.
  void close(bool cancel, uint64_t timeout_ns);
  // Objects that stand on the pipeline for longer than a call: close() refuses, naming how many.
  void user_add();
  void user_remove() noexcept;
  // Delivers on "sim"; else the messenger does.
  void drain();

private:
  friend class PipeCall;
  friend class TransferCall;
  friend void pipes_exit();
  Pipe(Owner<Pool> pool, lade_pipeline *handle, uint64_t places);
  static lade_status completed(void *user, lade_ticket *ticket, const lade_error *outcome);
  bool place_take(const std::shared_ptr<Transfer> &transfer);
  void place_return(Transfer *transfer);
  // Of transfers under way; writes to files too, or not.
  void each_live(bool sinks_too, lade_status (*call)(lade_ticket *));
  bool idle_wait(uint64_t timeout_ns);
  bool sinks_wait(uint64_t timeout_ns);
  void virtual_finish();
  void reopen();
  void own_check(const char *what) const;

  Device device_;
  Owner<Pool> pool_;
  std::atomic<lade_pipeline *> handle_; // NULL: closed
  const uint64_t places_;               // transfers that may be live
  const bool virtual_;
  const std::shared_ptr<Messenger> messenger_ = std::make_shared<Messenger>();
  std::mutex lock_; // guards what follows
  std::condition_variable changed_;
  std::unordered_map<Transfer *, std::shared_ptr<Transfer>> live_;
  uint64_t calls_ = 0; // PipeCalls
  uint64_t users_ = 0;
  bool closing_ = false;
};

// A call of lade on a pipe: it is not closed meanwhile. Made and ended with the GIL.
class PipeCall {
public:
  explicit PipeCall(std::shared_ptr<Pipe> pipe);
  ~PipeCall();
  PipeCall(const PipeCall &) = delete;
  PipeCall &operator=(const PipeCall &) = delete;
  lade_pipeline *get() const { return pipe_->get(); }

private:
  std::shared_ptr<Pipe> pipe_;
};

// A call on a transfer: where it is left to the call, the end lets go of what it holds. Made and ended with the GIL, by code that holds
// the transfer.
class TransferCall {
public:
  explicit TransferCall(Transfer &transfer);
  ~TransferCall();
  TransferCall(const TransferCall &) = delete;
  TransferCall &operator=(const TransferCall &) = delete;

private:
  Transfer &transfer_;
};

// At the interpreter's exit: writes may end within 10 s, all else is cancelled, callbacks are delivered; nothing waits for longer.
void pipes_exit();

} // namespace lade_python

#endif // LADE_PYTHON_TRANSFER_H
