/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that URLs name, read outside of pipelines: headers and indexes. */
#ifndef LADE_LOADERS_REMOTE_H
#define LADE_LOADERS_REMOTE_H

#include "sources/source.h"

/* One that is open. Of one version from its first byte on. */
typedef struct ladei_loader_remote {
  ladei_source_object *object;
  char *begin; /* its first bytes */
  size_t begin_bytes;
} ladei_loader_remote;

/*
 * Opens objects and reads the first bytes of all at once. On failure none is open, and the error is that of the first one that
 * failed: LADE_ERR_INVALID_ARGUMENT (a URL), LADE_ERR_IO, LADE_ERR_OUT_OF_HOST_MEMORY. The client outlives them.
 */
lade_status ladei_loader_remotes_open(ladei_source_client *client, const char *const *urls, size_t count,
                                      ladei_loader_remote *out);
void ladei_loader_remotes_close(ladei_loader_remote *remotes, size_t count);

static inline const ladei_source_version *ladei_loader_remote_version(const ladei_loader_remote *remote) {
  return ladei_source_object_version(remote->object);
}

/* Bytes [offset, offset + bytes) of it, which are there. Waits. */
lade_status ladei_loader_remote_read(const ladei_loader_remote *remote, uint64_t offset, void *out, size_t bytes);

/* One by itself, with a client of its own. All zero is none. */
typedef struct ladei_loader_lone {
  ladei_source_client *client;
  ladei_loader_remote remote;
} ladei_loader_lone;

/* As ladei_loader_remotes_open(), and LADE_ERR_UNSUPPORTED without libcurl. */
lade_status ladei_loader_lone_open(const char *url, ladei_loader_lone *out);
void ladei_loader_lone_close(ladei_loader_lone *lone);

#endif /* LADE_LOADERS_REMOTE_H */
