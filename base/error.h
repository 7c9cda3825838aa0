/* SPDX-License-Identifier: Apache-2.0 */
/* How library code fills the record that lade_last_error() returns. */
#ifndef LADE_BASE_ERROR_H
#define LADE_BASE_ERROR_H

#include <stddef.h>

#include "lade/status.h"

/*
 * Records a failure of the calling thread and returns `status`, so that a failing path ends in
 *   return ladei_error(LADE_ERR_LIMIT, 0, "pinned pool: %zu bytes asked, %zu left under the cap", bytes, left);
 * Allocates nothing. `native_code` is a driver code or an errno, 0 for none.
 */
lade_status ladei_error(lade_status status, int64_t native_code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * The two below refuse an argument with LADE_ERR_INVALID_ARGUMENT. `call` names the public function, `field` the
 * parameter or "options.field". All messages about arguments use them, so that each names the value and what may be:
 *   return ladei_error_argument("lade_pipeline_submit", "direction", "0 (to device) or 1 (to host)", "%d", direction);
 *   "lade_pipeline_submit: direction is 7; expected 0 (to device) or 1 (to host)"
 */
lade_status ladei_error_argument(const char *call, const char *field, const char *expected, const char *value_format,
                                 ...) __attribute__((format(printf, 4, 5)));
/* "lade_pinned_alloc: pool is NULL" */
lade_status ladei_error_null(const char *call, const char *field);

/*
 * Puts words before the text of the record that a callee has just written: "pinned pool: growing by 64 MiB: ". Returns
 * `status` unchanged. For callers that know the purpose of a call of which the callee knows the failure.
 */
lade_status ladei_error_prefix(lade_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * First words of the text when memory for a program's data runs out. Programs that know PyTorch look for these words
 * and try again with less data: accelerate for " out of memory.", Lightning for "CUDA" and "out of memory". Pinned
 * memory uses them too, since less data helps there as well.
 */
#define LADEI_OUT_OF_MEMORY "CUDA out of memory. "
/* Puts these words before the record's text of a request that failed with `status`, if the status means that the
 * device, the system or a cap has no memory. Returns `status` unchanged. Public calls call it once. */
lade_status ladei_error_out_of_memory(lade_status status);

/*
 * Texts from files are shown on terminals, which obey control characters. Returns the bytes of the first character of a
 * text that is not empty; 0: it is a control character (also of C1, or one that turns the direction of writing), or not
 * UTF-8.
 */
size_t ladei_text_character(const char *text);
/* Replaces each such byte by '?'. */
void ladei_text_tame(char *text);

/* Whether a number from another program or process is the status of a failure. */
bool ladei_status_is_error(int32_t status);

/* Copies the record out, or back in: for clean-up whose own failures must not replace the first one. */
void ladei_error_save(lade_error *out);
void ladei_error_restore(const lade_error *saved);

/* For a clean-up of one statement. */
#define LADEI_ASIDE(statement)                                                                                         \
  do {                                                                                                                 \
    lade_error ladei_aside;                                                                                            \
    ladei_error_save(&ladei_aside);                                                                                    \
    statement;                                                                                                         \
    ladei_error_restore(&ladei_aside);                                                                                 \
  } while (0)

/* A recount found broken invariants, which the record says: prints it, and stops the program near the cause. */
_Noreturn void ladei_error_stop(void);

/* For a sequence of calls each of which may fail, with nothing to clean up in between. */
#define LADEI_TRY(call)                                                                                                \
  do {                                                                                                                 \
    lade_status ladei_try_status = (call);                                                                             \
    if (ladei_try_status != LADE_OK) return ladei_try_status;                                                          \
  } while (0)

#endif /* LADE_BASE_ERROR_H */
