/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of frames that are addresses alone, made on demand: at writing, or when a program asks.
 *
 *   snapshot --stacks, frames--> (module, address) --once--> frames with names --> `named`: own texts, stacks, frames
 *
 * N1  A stack has one number before and after; its frames are those before, with inlined ones added.
 * N2  A module is asked if its build id is that of its file. One without is asked of an own snapshot alone: a path in a
 *     file of others may name any file.
 * N3  Names are kept with the snapshot, and made once, or by several threads at a time, of which one wins.
 */
#ifndef LADE_INSPECT_SYMBOLS_H
#define LADE_INSPECT_SYMBOLS_H

#include "inspect/snapshot.h"

/* Replaces *snapshot, which may be NULL, with the one to write: the same with names, borrowed from it, if it is an own
 * one with something to name. LADE_ERR_OUT_OF_HOST_MEMORY. */
lade_status ladei_inspect_named_for_writing(const lade_snapshot **snapshot);

#endif /* LADE_INSPECT_SYMBOLS_H */
