/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One page that shows a snapshot in any browser, without a network: inspect/page/page.html with the data in it, as
 * columns, compressed (if there is zlib) and in base64. An earlier snapshot goes in beside it, and the page compares.
 */
#ifndef LADE_INSPECT_FORMATS_HTML_H
#define LADE_INSPECT_FORMATS_HTML_H

#include "inspect/formats/format.h"

lade_status ladei_inspect_write_html(const lade_snapshot *snapshot, const lade_snapshot_write_options *options,
                                     ladei_output *output);

#endif /* LADE_INSPECT_FORMATS_HTML_H */
