/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a picture of what stands on standard input, a text per NUL byte, as svg_xml_test.py compares it: each is a text, the
 * title of a rectangle and the title of a group.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/svg.h"

int main(void) {
  ladei_svg svg;
  char *text = NULL;
  size_t room = 0;
  ladei_svg_begin(&svg, ladei_svg_to_file, stdout, 100, 100, "text{font:12px sans-serif}");
  while (getdelim(&text, &room, '\0', stdin) > 0) {
    ladei_svg_group_begin(&svg, &(ladei_svg_look){.class = text}, text);
    ladei_svg_rect(&svg, 0, 0, 1, 1, NULL, text);
    ladei_svg_text(&svg, 0, 0, NULL, 0, text);
    ladei_svg_text(&svg, 0, 0, NULL, 5, text);
    ladei_svg_group_end(&svg);
  }
  free(text);
  return ladei_svg_end(&svg) == LADE_OK && fflush(stdout) == 0 ? 0 : 1;
}
