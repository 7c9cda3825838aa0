/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of page.html; lines.sed makes strings of them. */
#include "inspect/page/page.h"

const char *const ladei_inspect_page[] = {
#include "inspect/page/page.inc"
    0,
};
