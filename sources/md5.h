/* SPDX-License-Identifier: Apache-2.0 */
/* MD5 (RFC 1321): what stores call the ETag of a part, and verify as Content-MD5. Not against forgery. Pure. Threads: any. */
#ifndef LADE_SOURCES_MD5_H
#define LADE_SOURCES_MD5_H

#include <stddef.h>

enum { LADEI_MD5_BYTES = 16 };

void ladei_md5(const void *data, size_t bytes, unsigned char out[LADEI_MD5_BYTES]);

#endif /* LADE_SOURCES_MD5_H */
