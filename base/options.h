/* SPDX-License-Identifier: Apache-2.0 */
/* Versioned structs of the public API: options come in, statistics go out, each opening with struct_size. */
#ifndef LADE_BASE_OPTIONS_H
#define LADE_BASE_OPTIONS_H

#include "lade/status.h"

/*
 * Copies the caller's options struct into the library's own, newest layout.
 *
 * NULL gives all zeros, that is all defaults. A smaller struct leaves the missing fields zero. A larger one is accepted
 * if its unknown tail is zero; otherwise LADE_ERR_UNSUPPORTED. `what` names the struct in the message.
 */
lade_status ladei_options_read(const char *what, const void *caller, void *own, size_t own_bytes);

/* LADE_ERR_INVALID_ARGUMENT unless a reserved field is 0: a later version may give it a meaning. */
lade_status ladei_options_reserved(const char *call, const char *field, int64_t value);

/*
 * Copies a statistics struct out: at most the struct_size that the caller stored in its own, which must be at least 8.
 * The caller's struct_size is kept.
 */
lade_status ladei_stats_write(const char *what, const void *own, size_t own_bytes, void *caller);

#endif /* LADE_BASE_OPTIONS_H */
