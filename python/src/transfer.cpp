// SPDX-License-Identifier: Apache-2.0
#include "transfer.h"

#include "current_device.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <utility>

namespace lade_python {

namespace {

constexpr uint64_t second_ns = 1000ull * 1000 * 1000;
constexpr uint64_t progress_ns = 50 * 1000 * 1000; // between two looks at transfers with a progress function
constexpr uint64_t exit_sinks_ns = 10 * second_ns, exit_rest_ns = 2 * second_ns;

std::chrono::nanoseconds nanoseconds(uint64_t ns) { return std::chrono::nanoseconds(static_cast<int64_t>(ns)); }

uint64_t now_ns() {
  timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * second_ns + static_cast<uint64_t>(now.tv_nsec);
}

// All pipes, for the exit. Outlives the interpreter.
struct Registry {
  std::mutex lock;
  std::vector<std::weak_ptr<Pipe>> pipes;
  std::atomic<bool> exited{false};
  const unsigned generation = process_generation();
};
std::atomic<Registry *> registry{new Registry};

// That of this process.
Registry &registry_own() {
  Registry *now = registry.load();
  if (now->generation == process_generation()) return *now;
  auto *own = new Registry; // P5
  if (registry.compare_exchange_strong(now, own)) return *own;
  delete own;
  return *now;
}

// Calls a function that Python gave. Its errors go to sys.unraisablehook.
void call_python(PyObject *function, PyObject *first, PyObject *second) {
  PyObject *result = python_run([=] { return PyObject_CallFunctionObjArgs(function, first, second, nullptr); });
  if (!result) PyErr_WriteUnraisable(function);
  Py_XDECREF(result);
}

} // namespace

uint64_t timeout_from(nb::handle seconds, const char *name) {
  if (seconds.is_none()) return LADE_WAIT_FOREVER;
  const double value = PyFloat_AsDouble(seconds.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    mistake_clear();
    refuse_type(name, seconds, "seconds, or None for no limit");
  }
  if (!(value >= 0)) refuse(std::string(name) + " is " + str_text(seconds) + "; expected seconds, 0 or more");
  const double ns = value * 1e9;
  return ns >= 9e18 ? LADE_WAIT_FOREVER : static_cast<uint64_t>(ns);
}

Deadline::Deadline(uint64_t timeout_ns) : at_ns_(UINT64_MAX) {
  const uint64_t now = now_ns();
  if (timeout_ns < UINT64_MAX - now) at_ns_ = now + timeout_ns;
}

uint64_t Deadline::slice(uint64_t most_ns) const {
  if (at_ns_ == UINT64_MAX) return most_ns;
  const uint64_t now = now_ns();
  if (now >= at_ns_) return 0;
  return at_ns_ - now < most_ns ? at_ns_ - now : most_ns;
}

// --- transfers -------------------------------------------------------------------------------------------------------

// No thread of lade knows it any more. One that was never submitted ends in the call that made it, with the GIL; of others, Python
// objects that are left (P5) stay.
Transfer::~Transfer() {
  if (!ticket() && pipe_->is_own()) release();
  if (!views.empty()) (void)new std::vector<TensorView>(std::move(views));
  lade_ticket *of = ticket();
  if (of && pipe_->is_own()) lade_ticket_release(of);
}

void Transfer::release() {
  std::vector<TensorView> gone; // let go of without the lock: that runs Python
  int file;
  {
    std::lock_guard<std::mutex> guard(lock_);
    file = std::exchange(fd, -1);
    gone.swap(views);
  }
  if (file >= 0) (void)close(file);
}

void Transfer::raise_outcome() const {
  if (outcome_.status == LADE_OK) return;
  set_error(outcome_); // the ticket itself may not tell it yet: lade is still in the call that completes it
  throw nb::python_error();
}

bool Transfer::wait_over(uint64_t timeout_ns) {
  if (!pipe_->is_own())
    raise(LADE_ERR_FORKED, "the transfer was submitted before fork(); only the parent may use its ticket");
  const Deadline deadline(timeout_ns);
  const TransferCall call(*this);
  while (!is_over()) {
    const uint64_t slice = pipe_->is_virtual() ? timeout_ns : deadline.slice(slice_ns);
    lade_status status;
    {
      Unlocked unlocked;
      status = lade_ticket_wait(ticket(), slice);
    }
    if (is_over()) break;
    if (status != LADE_ERR_TIMEOUT) raise(status);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (slice == 0 || pipe_->is_virtual()) return false;
  }
  pipe_->drain();
  return true;
}

void Transfer::wait(uint64_t timeout_ns) {
  if (!wait_over(timeout_ns)) {
    const lade_status status = lade_ticket_wait(ticket(), 0);
    if (!is_over()) raise(status);
  }
  raise_outcome();
}

bool Transfer::ask_over() {
  if (!is_over() && !pipe_->is_virtual() && pipe_->is_own()) {
    const TransferCall call(*this);
    Unlocked unlocked;
    (void)lade_ticket_query(ticket(), nullptr);
  }
  pipe_->drain();
  return is_over();
}

uint64_t Transfer::bytes_done() {
  lade_ticket_info info;
  lade_ticket_info_init(&info);
  without_gil([&] { (void)lade_ticket_query(ticket(), &info); });
  return info.bytes_done;
}

bool Transfer::leave_to_call(std::shared_ptr<Transfer> &self) {
  std::lock_guard<std::mutex> guard(lock_);
  if (calls_ == 0 || progress_ || !callbacks_.empty()) return false;
  delivered_ = true;
  kept_ = std::move(self);
  return true;
}

TransferCall::TransferCall(Transfer &transfer) : transfer_(transfer) {
  std::lock_guard<std::mutex> guard(transfer.pipe_->lock_);
  transfer.calls_++;
}

// Takes it with the lock, so that on_complete does not use the pipe any more.
TransferCall::~TransferCall() {
  if (!transfer_.pipe_->is_own()) return; // P5: a signal's handler forked
  std::shared_ptr<Transfer> kept;
  {
    std::lock_guard<std::mutex> guard(transfer_.pipe_->lock_);
    if (--transfer_.calls_ == 0) kept = std::move(transfer_.kept_);
  }
  if (transfer_.is_over()) transfer_.release();
}

void Transfer::add_callback(nb::handle ticket, nb::handle function) {
  bool is_late;
  if (!pipe_->is_virtual()) (void)ask_over(); // a short one may be: no thread need hear of it
  function.inc_ref();
  ticket.inc_ref();
  {
    std::lock_guard<std::mutex> guard(lock_);
    is_late = delivered_;
    if (!is_late) callbacks_.push_back({function.ptr(), ticket.ptr()});
  }
  if (!is_late) {
    (void)lade_ticket_leave(this->ticket());
    return;
  }
  call_python(function.ptr(), ticket.ptr(), nullptr);
  function.dec_ref();
  ticket.dec_ref();
}

void Transfer::report_progress(uint64_t done) {
  if (!progress_ || reported_ == done) return;
  reported_ = done;
  PyObject *first = PyLong_FromUnsignedLongLong(done), *second = PyLong_FromUnsignedLongLong(bytes_);
  if (first && second)
    call_python(progress_, first, second);
  else
    PyErr_WriteUnraisable(progress_);
  Py_XDECREF(first);
  Py_XDECREF(second);
}

// A callback may add callbacks: they are called in the same round.
void Transfer::deliver() {
  if (outcome_.status == LADE_OK) report_progress(bytes_);
  release();
  PyObject *progress = progress_;
  progress_ = nullptr;
  Py_XDECREF(progress);
  for (size_t i = 0;; i++) {
    Callback callback{};
    {
      std::lock_guard<std::mutex> guard(lock_);
      delivered_ = i >= callbacks_.size();
      if (!delivered_) callback = callbacks_[i];
      if (delivered_) callbacks_.clear();
    }
    if (!callback.function) return;
    call_python(callback.function, callback.ticket, nullptr);
    Py_DECREF(callback.function);
    Py_DECREF(callback.ticket);
  }
}

// --- the messenger ---------------------------------------------------------------------------------------------------

void Messenger::finished_expect() {
  std::lock_guard<std::mutex> guard(lock_);
  expected_++;
}

void Messenger::finished_add(std::shared_ptr<Transfer> transfer) {
  std::lock_guard<std::mutex> guard(lock_);
  expected_--;
  finished_.push_back(std::move(transfer));
  changed_.notify_all();
}

void Messenger::watch(const std::shared_ptr<Transfer> &transfer) {
  std::lock_guard<std::mutex> guard(lock_);
  watched_.push_back(transfer);
  changed_.notify_all();
}

void Messenger::start(const std::shared_ptr<Messenger> &self) {
  std::unique_lock<std::mutex> guard(lock_);
  if (started_) return;
  auto *holder = new std::shared_ptr<Messenger>(self);
  pthread_attr_t attributes;
  pthread_t thread;
  sigset_t all, before;
  (void)sigfillset(&all);
  (void)pthread_attr_init(&attributes);
  (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's threads
  const int failure = pthread_create(&thread, &attributes, main, holder);
  (void)pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)pthread_attr_destroy(&attributes);
  started_ = failure == 0;
  guard.unlock(); // before an error, which runs Python
  if (failure != 0) {
    delete holder;
    raise(LADE_ERR_OUT_OF_HOST_MEMORY,
          "Pipeline: no thread for callbacks: pthread_create gave " + std::to_string(failure));
  }
}

void Messenger::stop() {
  std::lock_guard<std::mutex> guard(lock_);
  stopping_ = true;
  changed_.notify_all();
}

bool Messenger::ended_wait(uint64_t timeout_ns) {
  std::unique_lock<std::mutex> guard(lock_);
  return changed_.wait_for(guard, nanoseconds(timeout_ns), [this] { return ended_ || !started_; });
}

// Waits for something to deliver; NULL: the end. Pipes that were looked at are let go of without the lock: the last to hold a pipe stops this
// messenger.
Messenger::Batch *Messenger::next() {
  std::vector<std::shared_ptr<Transfer>> looked_at;
  std::unique_lock<std::mutex> guard(lock_);
  for (;;) {
    const auto has_work = [this] { return !finished_.empty() || (stopping_ && expected_ == 0); };
    const bool is_idle = watched_.empty();
    // Not wait(), which needs the libstdc++ of gcc 12: wheels run with older ones.
    constexpr uint64_t hour_ns = 3600ull * 1000 * 1000 * 1000;
    (void)changed_.wait_for(guard, nanoseconds(is_idle ? hour_ns : progress_ns),
                            [&] { return has_work() || (is_idle && !watched_.empty()); });
    auto *batch = new Batch;
    batch->finished.assign(finished_.begin(), finished_.end());
    finished_.clear();
    std::vector<std::weak_ptr<Transfer>> still;
    for (const auto &weak : watched_) {
      auto transfer = weak.lock();
      if (!transfer) continue;
      const bool goes_on = !transfer->is_over();
      if (goes_on) still.push_back(weak);
      (goes_on && transfer->ticket() ? batch->watched : looked_at).push_back(std::move(transfer));
    }
    watched_ = std::move(still);
    guard.unlock();
    looked_at.clear();
    guard.lock();
    if (!batch->finished.empty() || !batch->watched.empty()) return batch;
    delete batch;
    if (stopping_ && expected_ == 0 && finished_.empty()) {
      ended_ = true;
      changed_.notify_all();
      return nullptr;
    }
  }
}

// Raw loops: what runs here may end the thread (R5 of runtime.h), and would let go of what they hold.
void Messenger::Batch::deliver() {
  for (size_t i = 0; i < watched.size(); i++)
    if (!watched[i]->is_over()) watched[i]->report_progress(done[i]);
  for (size_t i = 0; i < finished.size(); i++) finished[i]->deliver();
}

void *Messenger::main(void *holder) {
  auto *self = static_cast<std::shared_ptr<Messenger> *>(holder);
  while (Batch *batch = (*self)->next()) {
    for (const auto &transfer : batch->watched) batch->done.push_back(transfer->bytes_done());
    const PyGILState_STATE state = PyGILState_Ensure();
    batch->deliver();
    PyGILState_Release(state);
    delete batch; // may be the last to hold a pipe, whose end is waited for here
  }
  delete self;
  return nullptr;
}

void Messenger::drain() {
  for (;;) {
    std::deque<std::shared_ptr<Transfer>> list;
    {
      std::lock_guard<std::mutex> guard(lock_);
      list.swap(finished_);
    }
    if (list.empty()) return;
    for (const auto &transfer : list) transfer->deliver();
  }
}

// --- pipes -----------------------------------------------------------------------------------------------------------

Pipe::Pipe(Owner<Pool> pool, lade_pipeline *handle, uint64_t places)
    : device_(pool->device()), pool_(std::move(pool)), handle_(handle), places_(places),
      virtual_(std::string(device_.runtime->name()) == "sim") {}

std::shared_ptr<Pipe> Pipe::create(Owner<Pool> pool, const lade_pipeline_options &options) {
  lade_pinned_pool *staging = pool->get();
  lade_pipeline *handle = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_pipeline_create(pool->device().get(), staging, &options, &handle);
  }
  check(status);
  std::shared_ptr<Pipe> pipe(new Pipe(std::move(pool), handle, options.max_transfers ? options.max_transfers : 64));
  Registry &own = registry_own();
  std::lock_guard<std::mutex> guard(own.lock);
  auto &pipes = own.pipes;
  for (size_t i = pipes.size(); i-- > 0;)
    if (pipes[i].expired()) pipes.erase(pipes.begin() + static_cast<ptrdiff_t>(i));
  pipes.push_back(pipe);
  return pipe;
}

// Nothing is under way: what is holds the pipe (P1).
Pipe::~Pipe() {
  if (!is_own()) return;
  messenger_->stop();
  lade_pipeline *handle = handle_.load();
  if (handle && !exiting()) (void)lade_pipeline_destroy(handle, true);
}

bool Pipe::is_own() const noexcept { return !device_.runtime->is_of_parent(); }

void Pipe::own_check(const char *what) const {
  if (!is_own())
    raise(LADE_ERR_FORKED, std::string(what) + ": the pipeline was made before fork(); only the parent may use it");
}

lade_pipeline *Pipe::get() const {
  own_check("Pipeline");
  lade_pipeline *handle = handle_.load(std::memory_order_acquire);
  if (!handle) refuse("the Pipeline is closed");
  return handle;
}

void Pipe::drain() {
  if (virtual_) messenger_->drain();
}

void Pipe::user_add() {
  own_check("Pipeline");
  {
    std::lock_guard<std::mutex> guard(lock_);
    const bool is_open = !closing_ && !is_closed();
    if (is_open) users_++;
    if (is_open) return;
  }
  refuse("the Pipeline is closed");
}

void Pipe::user_remove() noexcept {
  if (!is_own()) return;
  std::lock_guard<std::mutex> guard(lock_);
  users_--;
}

// By a thread of lade, or in a call. The pipe may be gone as soon as the messenger has the transfer.
lade_status Pipe::completed(void *user, lade_ticket *ticket, const lade_error *outcome) {
  auto *raw = static_cast<Transfer *>(user);
  raw->ticket_.store(ticket, std::memory_order_release);
  raw->outcome_ = *outcome;
  const std::shared_ptr<Messenger> messenger = raw->pipe_->messenger_;
  std::shared_ptr<Transfer> transfer;
  {
    Pipe &pipe = *raw->pipe_;
    std::lock_guard<std::mutex> guard(pipe.lock_);
    if (registry.load()->exited.load()) { // P4
      raw->over_.store(true, std::memory_order_release);
      pipe.changed_.notify_all();
      return LADE_OK;
    }
    auto found = pipe.live_.find(raw);
    transfer = std::move(found->second);
    pipe.live_.erase(found);
    if (!raw->leave_to_call(transfer))
      messenger->finished_expect(); // before a thread that waits for the pipe to be idle may stop the messenger
    raw->over_.store(true, std::memory_order_release);
    pipe.changed_.notify_all();
  }
  if (transfer) messenger->finished_add(std::move(transfer));
  return LADE_OK;
}

// False: the pipe is being closed. Where there is no place, threads end the transfers that are under way: no call may.
bool Pipe::place_take(const std::shared_ptr<Transfer> &transfer) {
  for (uint64_t slice = 0;; slice = slice_ns) {
    {
      Unlocked unlocked;
      std::unique_lock<std::mutex> guard(lock_);
      const auto is_free = [this] { return closing_ || virtual_ || live_.size() < places_; };
      if (changed_.wait_for(guard, nanoseconds(slice), is_free)) {
        if (!closing_) live_.emplace(transfer.get(), transfer);
        return !closing_;
      }
    }
    if (slice == 0) each_live(true, lade_ticket_leave);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void Pipe::place_return(Transfer *transfer) {
  std::lock_guard<std::mutex> guard(lock_);
  live_.erase(transfer);
  changed_.notify_all();
}

namespace {

// With the program's functions gone from it, when a submit did not come to its end.
struct SubmitGuard {
  std::shared_ptr<Transfer> transfer;
  bool done = false;
  ~SubmitGuard() {
    if (done) return;
    transfer->release();
    PyObject *progress = transfer->progress_;
    transfer->progress_ = nullptr;
    Py_XDECREF(progress);
  }
};

} // namespace

void Pipe::submit(const std::shared_ptr<Transfer> &transfer, lade_transfer &request) {
  SubmitGuard guard{transfer};
  PipeCall call(shared_from_this());
  lade_pipeline *handle = call.get();
  if (registry.load()->exited.load())
    refuse("Pipeline: the interpreter is about to exit; no transfer is begun any more");
  request.on_complete = completed;
  request.on_complete_user = transfer.get();
  request.on_complete_in_calls = !transfer->progress_;
  const TransferCall transfer_call(*transfer);
  if (!virtual_) messenger_->start(messenger_);
  const CurrentDevice current(device_, request.stream);
  check(current.status());
  if (!place_take(transfer)) refuse("the Pipeline is being closed");
  lade_ticket *ticket = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_pipeline_submit(handle, &request, &ticket);
    if (status == LADE_OK) transfer->ticket_.store(ticket, std::memory_order_release);
  }
  if (status != LADE_OK) {
    place_return(transfer.get());
    raise(status);
  }
  guard.done = true;
  if (transfer->progress_ && !virtual_) messenger_->watch(transfer);
  drain();
}

void Pipe::each_live(bool sinks_too, lade_status (*call)(lade_ticket *)) {
  std::vector<std::shared_ptr<Transfer>> list;
  {
    std::lock_guard<std::mutex> guard(lock_);
    for (const auto &entry : live_)
      if (sinks_too || !entry.second->is_sink) list.push_back(entry.second);
  }
  for (const auto &transfer : list)
    if (transfer->ticket()) (void)call(transfer->ticket());
}

// Whether nothing is under way, after at most so long. Without the GIL.
bool Pipe::idle_wait(uint64_t timeout_ns) {
  std::unique_lock<std::mutex> guard(lock_);
  return changed_.wait_for(guard, nanoseconds(timeout_ns), [this] {
    for (const auto &entry : live_)
      if (!entry.second->is_over()) return false;
    return calls_ == 0;
  });
}

// The same of transfers that write files.
bool Pipe::sinks_wait(uint64_t timeout_ns) {
  std::unique_lock<std::mutex> guard(lock_);
  return changed_.wait_for(guard, nanoseconds(timeout_ns), [this] {
    for (const auto &entry : live_)
      if (entry.second->is_sink && !entry.second->is_over()) return false;
    return true;
  });
}

void Pipe::close(bool cancel, uint64_t timeout_ns) {
  own_check("Pipeline.close");
  uint64_t users;
  {
    std::lock_guard<std::mutex> guard(lock_);
    if (is_closed() || closing_) return;
    users = users_;
    closing_ = users == 0;
    changed_.notify_all();
  }
  if (users > 0)
    raise(LADE_ERR_BUSY,
          "Pipeline.close: " + std::to_string(users) + " loaders stand on the pipeline; close them first");
  const Deadline deadline(timeout_ns);
  if (cancel) each_live(true, lade_ticket_cancel);
  for (bool idle = false; !idle;) {
    const uint64_t slice = deadline.slice(slice_ns);
    {
      Unlocked unlocked;
      if (virtual_) virtual_finish();
      idle = idle_wait(slice);
    }
    if (idle) break;
    const bool interrupted = PyErr_CheckSignals() != 0;
    if (!interrupted && slice > 0 && !virtual_) continue;
    reopen();
    if (interrupted) throw nb::python_error();
    raise(LADE_ERR_TIMEOUT,
          "Pipeline.close: transfers are still under way when the time to wait is over; it stays open");
  }
  lade_pipeline *handle = handle_.exchange(nullptr);
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_pipeline_destroy(handle, true);
  }
  if (status != LADE_OK) {
    handle_.store(handle);
    reopen();
    raise(status);
  }
  messenger_->stop();
  drain();
}

void Pipe::reopen() {
  std::lock_guard<std::mutex> guard(lock_);
  closing_ = false;
}

// On "sim" only waiting lets transfers go on. Those that never end stay.
void Pipe::virtual_finish() {
  std::vector<std::shared_ptr<Transfer>> list;
  {
    std::lock_guard<std::mutex> guard(lock_);
    for (const auto &entry : live_) list.push_back(entry.second);
  }
  for (const auto &transfer : list)
    if (transfer->ticket()) (void)lade_ticket_wait(transfer->ticket(), LADE_WAIT_FOREVER);
}

PipeCall::PipeCall(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {
  (void)pipe_->get();
  {
    std::lock_guard<std::mutex> guard(pipe_->lock_);
    const bool is_open = !pipe_->closing_;
    if (is_open) pipe_->calls_++;
    if (is_open) return;
  }
  refuse("the Pipeline is being closed");
}

PipeCall::~PipeCall() {
  if (!pipe_->is_own()) return;
  {
    std::lock_guard<std::mutex> guard(pipe_->lock_);
    pipe_->calls_--;
    pipe_->changed_.notify_all();
  }
  let_go(pipe_);
}

// The pipes of this process that are still there.
static std::vector<std::shared_ptr<Pipe>> pipes_alive() {
  std::vector<std::shared_ptr<Pipe>> pipes;
  Registry &own = registry_own();
  std::lock_guard<std::mutex> guard(own.lock);
  for (const auto &weak : own.pipes)
    if (auto pipe = weak.lock()) pipes.push_back(std::move(pipe));
  return pipes;
}

void pipes_exit() {
  Registry &own = registry_own();
  auto &pipes = *new std::vector<std::shared_ptr<Pipe>>(pipes_alive()); // P4: kept
  Unlocked unlocked;
  const Deadline sinks(exit_sinks_ns);
  for (const auto &pipe : pipes) pipe->each_live(false, lade_ticket_cancel);
  for (const auto &pipe : pipes)
    if (!pipe->virtual_) (void)pipe->sinks_wait(sinks.slice(UINT64_MAX));
  const Deadline rest(exit_rest_ns);
  for (const auto &pipe : pipes) pipe->each_live(true, lade_ticket_cancel);
  for (const auto &pipe : pipes)
    if (!pipe->virtual_) (void)pipe->idle_wait(rest.slice(UINT64_MAX));
  for (const auto &pipe : pipes) pipe->messenger_->stop();
  for (const auto &pipe : pipes) (void)pipe->messenger_->ended_wait(rest.slice(UINT64_MAX));
  own.exited.store(true);
}

} // namespace lade_python
