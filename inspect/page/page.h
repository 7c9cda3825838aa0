/* SPDX-License-Identifier: Apache-2.0 */
/* The page without its data. */
#ifndef LADE_INSPECT_PAGE_PAGE_H
#define LADE_INSPECT_PAGE_PAGE_H

/* Its lines; NULL after the last. @TITLE@, @DATA@ and @BEFORE@ are to be filled in. */
extern const char *const ladei_inspect_page[];

#endif /* LADE_INSPECT_PAGE_PAGE_H */
