/* SPDX-License-Identifier: Apache-2.0 */
/* The id of an upload, as a store's answer has it. Pure. Threads: any. */
#ifndef LADE_SOURCES_UPLOAD_ID_H
#define LADE_SOURCES_UPLOAD_ID_H

#include <stdbool.h>
#include <stddef.h>

enum { LADEI_SOURCE_UPLOAD_ID_MOST = 512 };

/* The id in an answer, as a query has it: its bytes may be three times as many. False: there is none of a form that can be used. */
bool ladei_source_upload_id(const char *answer, char *out, size_t room);

#endif /* LADE_SOURCES_UPLOAD_ID_H */
