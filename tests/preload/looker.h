/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library that looks symbols up for itself, and puts a function of its own before one of the C library.
 */
#ifndef LADE_TESTS_PRELOAD_LOOKER_H
#define LADE_TESTS_PRELOAD_LOOKER_H

void *looker_next(const char *name);
void *looker_default(const char *name);
void *looker_next_version(const char *name, const char *version);

#endif /* LADE_TESTS_PRELOAD_LOOKER_H */
