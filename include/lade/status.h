/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Status codes and the calling thread's record of its last failed call.
 *
 * Rules shared by the whole library:
 *   - Every call that can fail returns a lade_status; results go through out-parameters, which a failed call leaves
 *     alone.
 *   - A code names what the caller can do about it. Numbers are fixed and never reused.
 *   - NULL for an object, a struct or a result is LADE_ERR_INVALID_ARGUMENT, but where the call says what it means. Calls that
 *     return no status need the object, but where they say that NULL does nothing.
 *   - lade_last_error() is for people and logs. A failure found later (a copy failed on the device, say) belongs to an
 *     object: ask its ticket, pool or pipeline.
 *
 *   void *p;
 *   if (lade_pinned_alloc(pool, 1 << 20, &p) != LADE_OK)
 *     fprintf(stderr, "%s\n", lade_last_error()->text);
 */
#ifndef LADE_STATUS_H
#define LADE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LADE_API        __attribute__((visibility("default")))
#define LADE_MUST_CHECK __attribute__((warn_unused_result))
#else
#define LADE_API
#define LADE_MUST_CHECK
#endif

/* Functions in headers. The library has each as a symbol too, for programs that cannot include them. */
#ifdef LADE_INLINE_AS_SYMBOLS /* by base/exported_inline.c alone */
#define LADE_INLINE LADE_API
#else
#define LADE_INLINE static inline
#endif

/* Initialiser that makes every member zero, in both languages. */
#ifdef __cplusplus
#define LADE_ZERO                                                                                                      \
  {}
#else
#define LADE_ZERO                                                                                                      \
  { 0 }
#endif

/* Body of an initialiser, of a struct that begins with its size: the caller's size, and zero in all other fields. */
#define LADE_INIT(object)                                                                                              \
  (__builtin_memset((object), 0, sizeof *(object)), (void)((object)->struct_size = sizeof *(object)))

/** Version of the headers; lade_version() is the library's. */
#define LADE_VERSION_MAJOR 0
/** @copydoc LADE_VERSION_MAJOR */
#define LADE_VERSION_MINOR 2
/** @copydoc LADE_VERSION_MAJOR */
#define LADE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/** The one table: X(name, number, text). Append only. */
#define LADE_STATUS_TABLE(X)                                                                                           \
  X(LADE_OK, 0, "success")                                                                                             \
  X(LADE_NOT_READY, 1, "not finished yet: ask again later")                                                            \
  X(LADE_ERR_INVALID_ARGUMENT, 2, "an argument is out of its documented range")                                        \
  X(LADE_ERR_OUT_OF_HOST_MEMORY, 3, "out of ordinary host memory")                                                     \
  X(LADE_ERR_OUT_OF_PINNED_MEMORY, 4, "the system refused to pin more host memory")                                    \
  X(LADE_ERR_OUT_OF_DEVICE_MEMORY, 5, "out of device memory, also after giving back the cache")                        \
  X(LADE_ERR_LIMIT, 6, "a limit set in lade's own options is reached")                                                 \
  X(LADE_ERR_UNSUPPORTED, 7, "this runtime, device or version cannot do that")                                         \
  X(LADE_ERR_NO_DEVICE, 8, "no such device, or no usable driver")                                                      \
  X(LADE_ERR_DEVICE_LOST, 9, "the device failed; nothing but closing works on this runtime any more")                  \
  X(LADE_ERR_DRIVER, 10, "the driver reported an error; native_code is its number")                                    \
  X(LADE_ERR_FOREIGN_POINTER, 11, "the pointer was not handed out by this object")                                     \
  X(LADE_ERR_NOT_BLOCK_START, 12, "the pointer lies inside a block, not at its start")                                 \
  X(LADE_ERR_DOUBLE_FREE, 13, "the block is already free")                                                             \
  X(LADE_ERR_BUSY, 14, "objects that depend on this one are still alive, or it is in use by another call")             \
  X(LADE_ERR_FORKED, 15, "the object was made before fork(); only the parent may use it")                              \
  X(LADE_ERR_IO, 16, "reading or writing failed; native_code is the errno")                                            \
  X(LADE_ERR_TRUNCATED, 17, "the source ended before all of its bytes were read")                                      \
  X(LADE_ERR_CANCELLED, 18, "cancelled before it finished")                                                            \
  X(LADE_ERR_TIMEOUT, 19, "the time given for waiting is over")                                                        \
  X(LADE_ERR_CAPTURE, 20, "not allowed while a stream capture is under way, or the capture is invalid")                \
  X(LADE_ERR_CHECKSUM, 21, "the bytes do not match their checksum")                                                    \
  X(LADE_ERR_CONFIG, 22, "a configuration text has an unknown key or a bad value")                                     \
  X(LADE_ERR_CALLBACK, 23, "a callback of the caller returned an error")                                               \
  X(LADE_ERR_STREAM_RETIRED, 24, "the stream was retired or destroyed and must not be used again")                     \
  X(LADE_ERR_INTERNAL, 25, "an invariant of the library is broken: please report")                                     \
  X(LADE_ERR_FORMAT, 26, "a file is not as its format demands")                                                        \
  X(LADE_ERR_OVERWRITTEN, 27, "the buffer is not valid any more: a later run may use its memory")                      \
  X(LADE_ERR_PEER, 28, "another rank of the group has died, left, or does something else")

/** Outcome of a call. LADE_OK is 0; LADE_NOT_READY answers a query and is no failure; all others are errors. */
typedef enum lade_status {
#define LADE_STATUS_ENUMERATOR(name, number, text) name = number,
  LADE_STATUS_TABLE(LADE_STATUS_ENUMERATOR)
#undef LADE_STATUS_ENUMERATOR
} lade_status;

/** The error of this thread's last failed call. */
typedef struct lade_error {
  lade_status status;  /**< LADE_OK before the first failure. */
  int64_t native_code; /**< Driver code or errno; 0 where none applies. */
  char text[496];      /**< One line, always terminated: what failed, with sizes and the driver's own words. Fit for a
                            terminal: of names that files give, control characters and what is no UTF-8 are '?'. */
} lade_error;

/**
 * Name of a status code, such as "LADE_ERR_LIMIT".
 *
 * @param status  Any value.
 * @return Static text; "LADE_ERR_UNKNOWN" for a number that is no code. Never NULL.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: none.
 * Source: docs/design.md "Errors".
 */
LADE_API const char *lade_status_name(lade_status status);

/**
 * One sentence on a status code, for people.
 *
 * @param status  Any value.
 * @return Static text. Never NULL.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: none.
 * Source: docs/design.md "Errors".
 */
LADE_API const char *lade_status_text(lade_status status);

/**
 * The calling thread's record of its last failed lade call.
 *
 * A successful call leaves the record as it is. LADE_NOT_READY does not count as a failure.
 *
 * @return Borrowed; this thread's next failing call overwrites it or has another one, so ask again then; valid until the thread
 *         ends. Never NULL. Where there was no memory for the thread's record, it holds the status and the words of
 *         lade_status_text(). Callers that keep it over further calls, or whose task may go on in another thread (coroutines,
 *         goroutines), copy the struct: lade_error kept = *lade_last_error().
 *
 * Threads: any; each has its own record. Waits: never. Stream order: none. Errors: none.
 * Source: docs/design.md "Errors".
 */
LADE_API const lade_error *lade_last_error(void);

/**
 * Version of the library that is linked, to compare with LADE_VERSION_MAJOR, _MINOR, _PATCH of the header.
 *
 * @return major * 1000000 + minor * 1000 + patch.
 *
 * Threads: any. Waits: never. Stream order: none. Errors: none.
 */
LADE_API uint32_t lade_version(void);

#ifdef __cplusplus
}
#endif
#endif /* LADE_STATUS_H */
