// SPDX-License-Identifier: Apache-2.0
#include "stacks.h"

#include "runtime.h"

#include <pthread.h>

#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_set>

namespace lade_python {

namespace {

struct Frame {
  const char *function, *file; // K3
  uint32_t line;
};

constexpr size_t most_frames = 32;

struct Stack {
  size_t count;
  Frame frames[most_frames];
};

// K3. A text that was seen before costs a search.
struct Texts {
  std::mutex lock; // held by no thread that forks: fork() takes it
  std::unordered_set<std::string> texts;
};
Texts &texts = *new Texts;

const char *text_kept(PyObject *text) {
  Py_ssize_t bytes = 0;
  const char *data = text ? PyUnicode_AsUTF8AndSize(text, &bytes) : nullptr;
  if (!data) {
    PyErr_Clear();
    return nullptr;
  }
  std::lock_guard<std::mutex> guard(texts.lock);
  return texts.texts.emplace(data, static_cast<size_t>(bytes)).first->c_str();
}

const char *attribute_text(PyObject *object, const char *name) {
  PyObject *value = PyObject_GetAttrString(object, name);
  const char *text = text_kept(value);
  Py_XDECREF(value);
  PyErr_Clear();
  return text;
}

void frames_take(Stack &stack) {
  auto *frame = reinterpret_cast<PyObject *>(PyThreadState_GetFrame(PyThreadState_Get()));
  while (frame && stack.count < most_frames) {
    PyObject *code = reinterpret_cast<PyObject *>(PyFrame_GetCode(reinterpret_cast<PyFrameObject *>(frame)));
    Frame &own = stack.frames[stack.count++];
    own.function = attribute_text(code, "co_qualname");
    own.file = attribute_text(code, "co_filename");
    const int line = PyFrame_GetLineNumber(reinterpret_cast<PyFrameObject *>(frame));
    own.line = line > 0 ? static_cast<uint32_t>(line) : 0;
    Py_DECREF(code);
    PyObject *back = PyObject_GetAttrString(frame, "f_back");
    if (!back) PyErr_Clear();
    Py_DECREF(frame);
    if (back == Py_None) {
      Py_DECREF(back);
      back = nullptr;
    }
    frame = back;
  }
  Py_XDECREF(frame);
}

// K1, K2.
void *capture(void *) noexcept {
  if (exiting() || !PyGILState_GetThisThreadState()) return nullptr;
  auto *stack = static_cast<Stack *>(std::malloc(sizeof(Stack)));
  if (!stack) return nullptr;
  stack->count = 0;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  // Without a GIL the collector runs between steps of Python's own alone, of which there are none here, and other threads may capture, too.
  const int collects = has_gil ? PyGC_Disable() : 0;
  try {
    frames_take(*stack);
  } catch (const std::bad_alloc &) { // fewer frames
  }
  if (collects) PyGC_Enable();
  PyErr_Restore(type, value, traceback);
  PyGILState_Release(state);
  if (stack->count > 0) return stack;
  std::free(stack);
  return nullptr;
}

void release(void *, void *context) noexcept { std::free(context); }

lade_status describe(void *, const void *context, lade_stack_frame_visit visit, void *visitor) noexcept {
  const auto *stack = static_cast<const Stack *>(context);
  lade_status status = LADE_OK;
  for (size_t i = 0; i < stack->count && status == LADE_OK; i++) {
    lade_stack_frame frame = LADE_ZERO;
    frame.function = stack->frames[i].function;
    frame.file = stack->frames[i].file;
    frame.line = stack->frames[i].line;
    status = visit(visitor, &frame);
  }
  return status;
}

} // namespace

void stacks_add(lade_history_options &options) {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto unlock = [] { texts.lock.unlock(); };
    (void)pthread_atfork([] { texts.lock.lock(); }, unlock, unlock);
  });
  options.level = LADE_CONTEXT_ALL;
  options.capture = &capture;
  options.release = &release;
  options.describe = &describe;
}

} // namespace lade_python
