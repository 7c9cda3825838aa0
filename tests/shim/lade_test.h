/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests in C, run and reported by GoogleTest.
 *
 *   LADE_TEST(Ring, KeepsOrder) {
 *     struct ring *ring = ring_create(4);
 *     LADE_ASSERT(ring != NULL);
 *     LADE_EXPECT_EQ_SIZE(ring_size(ring), 4);
 *     ring_destroy(ring);
 *   }
 *
 * Tests are C because internal headers with _Atomic do not compile as C++. A test registers itself before main(), which
 * the shim brings. All options of GoogleTest work (--gtest_filter=Ring.*, --gtest_repeat=100, ...).
 *
 * LADE_EXPECT... notes a failure and goes on. LADE_ASSERT... notes it and returns from the calling function, which must
 * return void; a caller of such a helper asks lade_test_has_failed(). Both may be used from any thread of the test.
 * Arguments are evaluated once. Failures print both values.
 */
#ifndef LADE_TESTS_SHIM_LADE_TEST_H
#define LADE_TESTS_SHIM_LADE_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lade/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Defining tests ---------------------------------------------------------------------------------------------- */

/* A test without parameter. */
#define LADE_TEST(suite, name)                                                                                         \
  static void suite##_##name(void);                                                                                    \
  __attribute__((constructor)) static void suite##_##name##_register(void) {                                           \
    ladet_register(#suite, #name, __FILE__, __LINE__, suite##_##name);                                                 \
  }                                                                                                                    \
  static void suite##_##name(void)

/*
 * One body, registered as a test for each string in `params`, a NULL-terminated array known at compile time:
 *
 *   static const char *const runtimes[] = {"sim", "cpu", NULL};
 *   LADE_TEST_P(Stream, KeepsOrder, runtimes, runtime) { open(runtime); ... }
 *
 * gives the tests "Stream/sim.KeepsOrder" and "Stream/cpu.KeepsOrder"; `runtime` names the body's const char *
 * parameter.
 */
#define LADE_TEST_P(suite, name, params, param)                                                                        \
  static void suite##_##name(const char *param);                                                                       \
  __attribute__((constructor)) static void suite##_##name##_register(void) {                                           \
    ladet_register_each(#suite, #name, __FILE__, __LINE__, params, suite##_##name);                                    \
  }                                                                                                                    \
  static void suite##_##name(const char *param)

/* --- Inside a test ----------------------------------------------------------------------------------------------- */

/* Notes why the test cannot run here, and returns. The test counts as skipped. */
#define LADE_SKIP(reason)                                                                                              \
  do {                                                                                                                 \
    ladet_skip(__FILE__, __LINE__, reason);                                                                            \
    return;                                                                                                            \
  } while (0)

/* Fails with a text of the printf family. */
#define LADE_FAIL(...) ladet_fail(__FILE__, __LINE__, __VA_ARGS__)

/* Whether the running test has failed so far. */
bool lade_test_has_failed(void);

/*
 * Text added to every later failure of the running test, until replaced: the seed, the step, the parameters.
 * Printf-like. An empty text takes it away. Call it from the test's main thread, and not while other threads of the
 * test may fail.
 */
void lade_test_context(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- Expectations ------------------------------------------------------------------------------------------------ */

#define LADE_EXPECT(condition) ((void)LADET_TRUE(#condition, condition))
#define LADE_ASSERT(condition) LADET_OR_RETURN(LADET_TRUE(#condition, condition))

/* Status codes. A failure prints names, and the text of lade_last_error() where that is of the code got. */
#define LADE_EXPECT_STATUS(expected, call) ((void)LADET_STATUS(#call, expected, call))
#define LADE_ASSERT_STATUS(expected, call) LADET_OR_RETURN(LADET_STATUS(#call, expected, call))
#define LADE_EXPECT_OK(call)               ((void)LADET_STATUS(#call, LADE_OK, call))
#define LADE_ASSERT_OK(call)               LADET_OR_RETURN(LADET_STATUS(#call, LADE_OK, call))

/* Signed integers of any width, enums. */
#define LADE_EXPECT_EQ_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_EQ, b))
#define LADE_EXPECT_NE_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_NE, b))
#define LADE_EXPECT_LT_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_LT, b))
#define LADE_EXPECT_LE_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_LE, b))
#define LADE_EXPECT_GT_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_GT, b))
#define LADE_EXPECT_GE_INT(a, b) ((void)LADET_INT(#a, #b, a, LADET_GE, b))
#define LADE_ASSERT_EQ_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_EQ, b))
#define LADE_ASSERT_NE_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_NE, b))
#define LADE_ASSERT_LT_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_LT, b))
#define LADE_ASSERT_LE_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_LE, b))
#define LADE_ASSERT_GT_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_GT, b))
#define LADE_ASSERT_GE_INT(a, b) LADET_OR_RETURN(LADET_INT(#a, #b, a, LADET_GE, b))

/* Unsigned integers of any width. Printed decimal and hexadecimal. */
#define LADE_EXPECT_EQ_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_EQ, b))
#define LADE_EXPECT_NE_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_NE, b))
#define LADE_EXPECT_LT_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_LT, b))
#define LADE_EXPECT_LE_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_LE, b))
#define LADE_EXPECT_GT_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_GT, b))
#define LADE_EXPECT_GE_UINT(a, b) ((void)LADET_UINT(#a, #b, a, LADET_GE, b))
#define LADE_ASSERT_EQ_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_EQ, b))
#define LADE_ASSERT_NE_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_NE, b))
#define LADE_ASSERT_LT_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_LT, b))
#define LADE_ASSERT_LE_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_LE, b))
#define LADE_ASSERT_GT_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_GT, b))
#define LADE_ASSERT_GE_UINT(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_GE, b))

/* Sizes: unsigned integers under the name that says what they are. */
#define LADE_EXPECT_EQ_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_EQ, b))
#define LADE_EXPECT_NE_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_NE, b))
#define LADE_EXPECT_LT_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_LT, b))
#define LADE_EXPECT_LE_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_LE, b))
#define LADE_EXPECT_GT_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_GT, b))
#define LADE_EXPECT_GE_SIZE(a, b) ((void)LADET_UINT(#a, #b, a, LADET_GE, b))
#define LADE_ASSERT_EQ_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_EQ, b))
#define LADE_ASSERT_NE_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_NE, b))
#define LADE_ASSERT_LT_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_LT, b))
#define LADE_ASSERT_LE_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_LE, b))
#define LADE_ASSERT_GT_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_GT, b))
#define LADE_ASSERT_GE_SIZE(a, b) LADET_OR_RETURN(LADET_UINT(#a, #b, a, LADET_GE, b))

/* |a - b| <= tolerance; false when any of them is not a number. */
#define LADE_EXPECT_NEAR(a, b, tolerance) ((void)LADET_NEAR(#a, #b, a, b, tolerance))
#define LADE_ASSERT_NEAR(a, b, tolerance) LADET_OR_RETURN(LADET_NEAR(#a, #b, a, b, tolerance))

/* Addresses. */
#define LADE_EXPECT_EQ_PTR(a, b) ((void)LADET_PTR(#a, #b, a, LADET_EQ, b))
#define LADE_EXPECT_NE_PTR(a, b) ((void)LADET_PTR(#a, #b, a, LADET_NE, b))
#define LADE_ASSERT_EQ_PTR(a, b) LADET_OR_RETURN(LADET_PTR(#a, #b, a, LADET_EQ, b))
#define LADE_ASSERT_NE_PTR(a, b) LADET_OR_RETURN(LADET_PTR(#a, #b, a, LADET_NE, b))

/* Strings; NULL equals only NULL. CONTAINS: b is somewhere in a. */
#define LADE_EXPECT_EQ_STR(a, b)       ((void)LADET_STR(#a, #b, a, b))
#define LADE_ASSERT_EQ_STR(a, b)       LADET_OR_RETURN(LADET_STR(#a, #b, a, b))
#define LADE_EXPECT_CONTAINS_STR(a, b) ((void)LADET_CONTAINS(#a, #b, a, b))
#define LADE_ASSERT_CONTAINS_STR(a, b) LADET_OR_RETURN(LADET_CONTAINS(#a, #b, a, b))

/* Bytes. A failure names the first byte that differs, and how many do. */
#define LADE_EXPECT_EQ_MEM(a, b, bytes) ((void)LADET_MEM(#a, #b, a, b, bytes))
#define LADE_ASSERT_EQ_MEM(a, b, bytes) LADET_OR_RETURN(LADET_MEM(#a, #b, a, b, bytes))

/* --- What the macros stand on; not for tests ---------------------------------------------------------------------- */

/* Texts are made by the outermost macro: one level deeper, macros in the arguments would show expanded. */
enum ladet_relation { LADET_EQ, LADET_NE, LADET_LT, LADET_LE, LADET_GT, LADET_GE };

#define LADET_OR_RETURN(passed)                                                                                        \
  do {                                                                                                                 \
    if (!(passed)) return;                                                                                             \
  } while (0)
#define LADET_TRUE(text, condition) ladet_true(__FILE__, __LINE__, text, (condition) ? true : false)
#define LADET_STATUS(text, expected, call)                                                                             \
  ladet_equal_status(__FILE__, __LINE__, text, (lade_status)(expected), (lade_status)(call))
#define LADET_INT(a_text, b_text, a, relation, b)                                                                      \
  ladet_compare_int(__FILE__, __LINE__, a_text, b_text, (intmax_t)(a), relation, (intmax_t)(b))
#define LADET_UINT(a_text, b_text, a, relation, b)                                                                     \
  ladet_compare_uint(__FILE__, __LINE__, a_text, b_text, (uintmax_t)(a), relation, (uintmax_t)(b))
#define LADET_NEAR(a_text, b_text, a, b, tolerance)                                                                    \
  ladet_near(__FILE__, __LINE__, a_text, b_text, (double)(a), (double)(b), (double)(tolerance))
#define LADET_PTR(a_text, b_text, a, relation, b)                                                                      \
  ladet_compare_ptr(__FILE__, __LINE__, a_text, b_text, (const void *)(a), relation, (const void *)(b))
#define LADET_STR(a_text, b_text, a, b)        ladet_equal_str(__FILE__, __LINE__, a_text, b_text, a, b)
#define LADET_CONTAINS(a_text, b_text, a, b)   ladet_contains_str(__FILE__, __LINE__, a_text, b_text, a, b)
#define LADET_MEM(a_text, b_text, a, b, bytes) ladet_equal_mem(__FILE__, __LINE__, a_text, b_text, a, b, bytes)

int ladet_main(int argc, char **argv);
void ladet_register(const char *suite, const char *name, const char *file, int line, void (*body)(void));
void ladet_register_each(const char *suite, const char *name, const char *file, int line, const char *const *params,
                         void (*body)(const char *param));
void ladet_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
void ladet_skip(const char *file, int line, const char *reason);
bool ladet_true(const char *file, int line, const char *text, bool condition);
void ladet_fail_status(const char *file, int line, const char *text, const char *expected, const char *actual,
                       const char *error_text);
bool ladet_compare_int(const char *file, int line, const char *a_text, const char *b_text, intmax_t a,
                       enum ladet_relation relation, intmax_t b);
bool ladet_compare_uint(const char *file, int line, const char *a_text, const char *b_text, uintmax_t a,
                        enum ladet_relation relation, uintmax_t b);
bool ladet_compare_ptr(const char *file, int line, const char *a_text, const char *b_text, const void *a,
                       enum ladet_relation relation, const void *b);
bool ladet_near(const char *file, int line, const char *a_text, const char *b_text, double a, double b,
                double tolerance);
bool ladet_equal_str(const char *file, int line, const char *a_text, const char *b_text, const char *a, const char *b);
bool ladet_contains_str(const char *file, int line, const char *a_text, const char *b_text, const char *a,
                        const char *b);
bool ladet_equal_mem(const char *file, int line, const char *a_text, const char *b_text, const void *a, const void *b,
                     size_t bytes);

/* Inline, so that only tests which check a status need to link the code that names it. */
static inline bool ladet_equal_status(const char *file, int line, const char *text, lade_status expected,
                                      lade_status actual) {
  if (expected == actual) return true;
  const lade_error *error = lade_last_error();
  ladet_fail_status(file, line, text, lade_status_name(expected), lade_status_name(actual),
                    error->status == actual ? error->text : "");
  return false;
}

#ifdef __cplusplus
}
#endif

#endif
