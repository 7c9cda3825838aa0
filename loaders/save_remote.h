/* SPDX-License-Identifier: Apache-2.0 */
/* A save to objects of a store: save_remote.c has model and invariants. */
#ifndef LADE_LOADERS_SAVE_REMOTE_H
#define LADE_LOADERS_SAVE_REMOTE_H

#include "loaders/save.h"

/* Plans the objects, and notes where the targets' streams are. Sends nothing. Errors as ladei_loader_save_begin(). */
lade_status ladei_loader_remote_begin(ladei_loader_save *s);
/* Takes the tensors into blocks, or sends them. `timeout_ns` counts on virtual time alone. LADE_ERR_TIMEOUT: call it again. */
lade_status ladei_loader_remote_stage(ladei_loader_save *s, uint64_t timeout_ns);
/* Sends what is left, and ends the uploads: the objects are there. */
lade_status ladei_loader_remote_commit(ladei_loader_save *s);
/* Not `good`: no object and no upload is left. The gates in s->tickets are over. */
void ladei_loader_remote_dispose(ladei_loader_save *s, bool good);

#endif /* LADE_LOADERS_SAVE_REMOTE_H */
