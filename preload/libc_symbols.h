/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds functions of the C library in its symbol table.
 *
 * A program that puts its own dlsym and dlvsym before those of the C library can ask neither of them for the others: both
 * names lead back to it. So the table of dynamic symbols is read, which the loader keeps mapped.
 */
#ifndef LADE_PRELOAD_LIBC_SYMBOLS_H
#define LADE_PRELOAD_LIBC_SYMBOLS_H

/* The function of that name in libc.so.6, or in libdl.so.2 where that has it (before glibc 2.34); NULL: not there. Allocates
 * nothing; any thread, at any time, also while other libraries are initialised. */
void *ladei_preload_libc_symbol(const char *name);

/* The C library's dlsym(), with this library as the caller of RTLD_NEXT. */
void *ladei_preload_dlsym(void *handle, const char *name);

#endif /* LADE_PRELOAD_LIBC_SYMBOLS_H */
