/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C++ half of the test shim: turns registrations and expectations of C tests into GoogleTest's.
 *
 * I1  A failed expectation calls fail() exactly once, and a passed one never: nothing else decides a test's outcome.
 * I2  The context belongs to one test: each test starts without one.
 * I3  A test that bazel/no_threads.bzl lists starts no thread: it is not run under the thread sanitiser.
 * Locks: none here. GoogleTest's failure recording is safe from several threads; the context is written by the test's
 * main thread only.
 */
#include "tests/shim/lade_test.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <pthread.h>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace {

std::string context;

class CTest : public testing::Test {
public:
  explicit CTest(std::function<void()> body) : body_(std::move(body)) {}
  void TestBody() override {
    context.clear();
    body_();
  }

private:
  std::function<void()> body_;
};

void fail(const char *file, int line, const std::string &text) {
  ADD_FAILURE_AT(file, line) << text << (context.empty() ? "" : "\n  context: " + context);
}

std::string format_text(const char *format, va_list args) {
  char text[2048];
  vsnprintf(text, sizeof text, format, args);
  return text;
}

const char *relation_sign(enum ladet_relation relation) {
  static const char *const signs[] = {"==", "!=", "<", "<=", ">", ">="};
  return signs[relation];
}

template <typename T> bool holds(const T &a, enum ladet_relation relation, const T &b) {
  switch (relation) {
  case LADET_EQ: return a == b;
  case LADET_NE: return a != b;
  case LADET_LT: return a < b;
  case LADET_LE: return a <= b;
  case LADET_GT: return a > b;
  case LADET_GE: return a >= b;
  }
  return false;
}

void fail_pair(const char *file, int line, const char *a_text, const char *sign, const char *b_text,
               const std::string &a, const std::string &b) {
  std::string text = std::string("expected: ") + a_text + " " + sign + " " + b_text;
  text += std::string("\n  ") + a_text + ": " + a;
  text += std::string("\n  ") + b_text + ": " + b;
  fail(file, line, text);
}

std::string show(intmax_t value) { return std::to_string(value); }

std::string show(uintmax_t value) {
  std::ostringstream text;
  text << value;
  if (value > 9) text << " (0x" << std::hex << value << ")";
  return text.str();
}

std::string show(const void *value) {
  std::ostringstream text;
  text << value;
  return value ? text.str() : "NULL";
}

std::string show(const char *value) { return value ? "\"" + std::string(value) + "\"" : "NULL"; }

template <typename T>
bool compare(const char *file, int line, const char *a_text, const char *b_text, T a, enum ladet_relation relation,
             T b) {
  if (holds(a, relation, b)) return true;
  fail_pair(file, line, a_text, relation_sign(relation), b_text, show(a), show(b));
  return false;
}

} // namespace

void ladet_register(const char *suite, const char *name, const char *file, int line, void (*body)(void)) {
  testing::RegisterTest(
      suite, name, nullptr, nullptr, file, line, [body]() -> testing::Test * { return new CTest(body); });
}

void ladet_register_each(const char *suite, const char *name, const char *file, int line, const char *const *params,
                         void (*body)(const char *param)) {
  for (; *params; params++) {
    const char *param = *params;
    std::string suite_of_param = std::string(suite) + "/" + param;
    testing::RegisterTest(suite_of_param.c_str(), name, nullptr, param, file, line,
                          [body, param]() -> testing::Test * { return new CTest([body, param] { body(param); }); });
  }
}

bool lade_test_has_failed(void) { return testing::Test::HasFailure(); }

void lade_test_context(const char *format, ...) {
  va_list args;
  va_start(args, format);
  context = format_text(format, args);
  va_end(args);
}

void ladet_fail(const char *file, int line, const char *format, ...) {
  va_list args;
  va_start(args, format);
  std::string text = format_text(format, args);
  va_end(args);
  fail(file, line, text);
}

void ladet_skip(const char *file, int line, const char *reason) {
  GTEST_MESSAGE_AT_(file, line, reason, testing::TestPartResult::kSkip);
}

bool ladet_true(const char *file, int line, const char *text, bool condition) {
  if (!condition) fail(file, line, std::string("expected: ") + text);
  return condition;
}

void ladet_fail_status(const char *file, int line, const char *text, const char *expected, const char *actual,
                       const char *error_text) {
  std::string message = std::string("expected: ") + text + " gives " + expected + "\n  but it gave " + actual;
  if (error_text[0]) message += std::string(": ") + error_text;
  fail(file, line, message);
}

bool ladet_compare_int(const char *file, int line, const char *a_text, const char *b_text, intmax_t a,
                       enum ladet_relation relation, intmax_t b) {
  return compare(file, line, a_text, b_text, a, relation, b);
}

bool ladet_compare_uint(const char *file, int line, const char *a_text, const char *b_text, uintmax_t a,
                        enum ladet_relation relation, uintmax_t b) {
  return compare(file, line, a_text, b_text, a, relation, b);
}

bool ladet_compare_ptr(const char *file, int line, const char *a_text, const char *b_text, const void *a,
                       enum ladet_relation relation, const void *b) {
  return compare(file, line, a_text, b_text, a, relation, b);
}

bool ladet_near(const char *file, int line, const char *a_text, const char *b_text, double a, double b,
                double tolerance) {
  if (a == b || (a - b <= tolerance && b - a <= tolerance)) return true;
  std::ostringstream a_value, b_value;
  a_value.precision(17), b_value.precision(17);
  a_value << a, b_value << b << ", tolerance " << tolerance;
  fail_pair(file, line, a_text, "near", b_text, a_value.str(), b_value.str());
  return false;
}

bool ladet_equal_str(const char *file, int line, const char *a_text, const char *b_text, const char *a, const char *b) {
  if (a == b || (a && b && strcmp(a, b) == 0)) return true;
  fail_pair(file, line, a_text, "==", b_text, show(a), show(b));
  return false;
}

bool ladet_contains_str(const char *file, int line, const char *a_text, const char *b_text, const char *a,
                        const char *b) {
  if (a && b && strstr(a, b)) return true;
  fail_pair(file, line, a_text, "contains", b_text, show(a), show(b));
  return false;
}

bool ladet_equal_mem(const char *file, int line, const char *a_text, const char *b_text, const void *a, const void *b,
                     size_t bytes) {
  if (bytes == 0 || memcmp(a, b, bytes) == 0) return true;
  const unsigned char *a_bytes = static_cast<const unsigned char *>(a);
  const unsigned char *b_bytes = static_cast<const unsigned char *>(b);
  size_t first = bytes, count = 0;
  for (size_t i = 0; i < bytes; i++) {
    if (a_bytes[i] == b_bytes[i]) continue;
    if (first == bytes) first = i;
    count++;
  }
  char text[128];
  snprintf(text, sizeof text, "\n  %zu of %zu bytes differ, first at %zu: 0x%02x, 0x%02x", count, bytes, first,
           a_bytes[first], b_bytes[first]);
  fail(file, line, std::string("same bytes expected: ") + a_text + ", " + b_text + text);
  return false;
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* I3 */
extern "C" int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *),
                              void *user) noexcept {
  if (getenv("LADE_TEST_NO_THREADS") != nullptr) {
    fprintf(stderr, "a test that bazel/no_threads.bzl lists starts a thread: take it off that list\n");
    abort();
  }
  static const auto next = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return next(thread, attributes, body, user);
}
#endif

int ladet_main(int argc, char **argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
