// SPDX-License-Identifier: Apache-2.0
#include "log.h"

#include "runtime.h"

#include <nanobind/stl/string.h>

#include <pthread.h>

#include <mutex>
#include <new>
#include <vector>

namespace lade_python {

namespace {

struct Line {
  lade_log_level level;
  std::string text;
};

struct Lines {
  static constexpr size_t most = 1000;
  std::mutex lock;
  std::vector<Line> lines;
  size_t dropped = 0;
  bool is_told = false; // a pending call or its thread is under way, and takes what comes until then
};
Lines &waiting = *new Lines; // outlives the interpreter: the library's threads may

int deliver_start(void *) noexcept;

// G1.
void line_take(void *, lade_log_level level, const char *text) noexcept {
  bool tell = false;
  try {
    std::lock_guard<std::mutex> guard(waiting.lock);
    if (waiting.lines.size() < Lines::most)
      waiting.lines.push_back({level, text});
    else
      waiting.dropped++;
    tell = !waiting.is_told;
    waiting.is_told = true;
  } catch (const std::bad_alloc &) {
    return;
  }
  if (tell && (exiting() || Py_AddPendingCall(&deliver_start, nullptr) != 0)) {
    std::lock_guard<std::mutex> guard(waiting.lock);
    waiting.is_told = false; // the next line tries again
  }
}

std::vector<Line> lines_taken() {
  std::vector<Line> lines;
  std::lock_guard<std::mutex> guard(waiting.lock);
  lines.swap(waiting.lines);
  if (waiting.dropped > 0)
    lines.push_back(
        {LADE_LOG_WARN, std::to_string(waiting.dropped) + " lines of the log were dropped: too many at a time"});
  waiting.dropped = 0;
  waiting.is_told = !lines.empty();
  return lines;
}

void deliver_all() {
  try {
    for (std::vector<Line> lines = lines_taken(); !lines.empty(); lines = lines_taken())
      for (const Line &line : lines) log_line(line.level, line.text);
  } catch (...) {
    std::lock_guard<std::mutex> guard(waiting.lock);
    waiting.is_told = false; // the next line tries again
    throw;
  }
}

int deliver_start(void *) noexcept {
  try {
    nb::module_::import_("_thread").attr("start_new_thread")(nb::module_::import_("lade._lade").attr("_log_deliver"),
                                                             nb::tuple());
  } catch (nb::python_error &error) { // no thread any more: the interpreter ends, and delivers then
    error.discard_as_unraisable("lade's log");
  }
  return 0;
}

void after_fork() { new (&waiting) Lines; } // G3

void level_set(int level) {
  lade_status status;
  {
    Unlocked unlocked; // a former callback may be in another thread
    status = lade_log_set(level == LADE_LOG_OFF ? nullptr : &line_take, nullptr, static_cast<lade_log_level>(level));
  }
  check(status);
}

// LADE_LOG and LADE_STATS: the library's own output, without Python.
void from_environment() {
  lade_config config;
  lade_config_init(&config);
  check(lade_config_from_env(&config));
}

} // namespace

void log_line(lade_log_level level, const std::string &text) {
  nb::module_::import_("lade._log")
      .attr("deliver")(
          static_cast<int>(level),
          nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace")));
}

void bind_log(nb::module_ &module) {
  pthread_atfork(nullptr, nullptr, after_fork);
  module.def("_log_level", &level_set, nb::arg("level"),
             "Has lines of this level, and those above it, delivered; 0: none.");
  module.def("_log_from_environment", &from_environment, "Reads LADE_LOG and LADE_STATS.");
  module.def("_log_deliver", &deliver_all, "Delivers the lines that wait.");
  nb::module_::import_("atexit").attr("register")(module.attr("_log_deliver"));
}

} // namespace lade_python
