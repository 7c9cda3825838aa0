/* SPDX-License-Identifier: Apache-2.0 */
/* Headers in the form that programs write: read in one pass, without a tree. */
#ifndef LADE_LOADERS_HEADER_PLAIN_H
#define LADE_LOADERS_HEADER_PLAIN_H

#include "loaders/header.h"

/*
 * Reads the entries and the metadata of a header that is plain and keeps every rule of an entry; their places are the
 * caller's to check. *out_plain false: it is not, or breaks a rule; *out is empty then. LADE_ERR_OUT_OF_HOST_MEMORY.
 */
lade_status ladei_loader_header_read_plain(const char *text, size_t text_bytes, ladei_loader_header *out,
                                           bool *out_plain);

#endif /* LADE_LOADERS_HEADER_PLAIN_H */
