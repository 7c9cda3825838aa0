/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Advice that faults pages in: of Linux 5.14, in <sys/mman.h> since glibc 2.35. Older kernels refuse it (EINVAL).
 */
#ifndef LADE_BASE_POPULATE_H
#define LADE_BASE_POPULATE_H

#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#endif /* LADE_BASE_POPULATE_H */
