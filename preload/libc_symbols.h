/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds functions of the C library in its symbol table.
 *
 * A library that puts its own dlsym and dlvsym before the C library's cannot look those up by either: both names lead
 * back to its own. So it reads the table of dynamic symbols, which the loader keeps mapped.
 */
#ifndef LADE_PRELOAD_LIBC_SYMBOLS_H
#define LADE_PRELOAD_LIBC_SYMBOLS_H

/* The function of that name in libc.so.6, or in libdl.so.2 if that has it (before glibc 2.34); NULL: there is none.
 * Allocates nothing; any thread, at any time, also while other libraries are initialised. */
void *ladei_preload_libc_symbol(const char *name);

/* The C library's dlsym(), with this library as its caller for RTLD_NEXT. */
void *ladei_preload_dlsym(void *handle, const char *name);

#endif /* LADE_PRELOAD_LIBC_SYMBOLS_H */
