/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static probes of the provider "lade", for tracers outside the program (docs/inspect.md lists them). A probe without a
 * tracer is a no-op, with a note in the file that gives its place and the registers and stack words of its arguments.
 * Arguments that the surrounding code has at hand cost nothing.
 *
 *   LADEI_PROBE2(pinned_alloc, block, bytes);
 *
 * Without <sys/sdt.h> (or with LADE_NO_PROBES) there are no probes, and the arguments are not evaluated.
 */
#ifndef LADE_BASE_STATIC_PROBE_H
#define LADE_BASE_STATIC_PROBE_H

#if !defined(LADE_NO_PROBES) && defined(__has_include)
#if __has_include(<sys/sdt.h>)
#define LADEI_HAS_PROBES 1
#endif
#endif

#ifdef LADEI_HAS_PROBES
#include <sys/sdt.h>
#define LADEI_PROBE1(name, a)          DTRACE_PROBE1(lade, name, a)
#define LADEI_PROBE2(name, a, b)       DTRACE_PROBE2(lade, name, a, b)
#define LADEI_PROBE3(name, a, b, c)    DTRACE_PROBE3(lade, name, a, b, c)
#define LADEI_PROBE4(name, a, b, c, d) DTRACE_PROBE4(lade, name, a, b, c, d)
#else
#define LADEI_PROBE1(name, a)          ((void)sizeof(a))
#define LADEI_PROBE2(name, a, b)       ((void)sizeof(a), (void)sizeof(b))
#define LADEI_PROBE3(name, a, b, c)    ((void)sizeof(a), (void)sizeof(b), (void)sizeof(c))
#define LADEI_PROBE4(name, a, b, c, d) ((void)sizeof(a), (void)sizeof(b), (void)sizeof(c), (void)sizeof(d))
#endif

#endif /* LADE_BASE_STATIC_PROBE_H */
