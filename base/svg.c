/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer of SVG pictures (base/svg.h).
 *
 *   shape -> '<rect' + numbers + look + '>' + title + '</rect>' -> buffer -> sink, if full and at the end
 */
#include "base/svg.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

lade_status ladei_svg_to_file(void *user, const char *bytes, size_t count) {
  errno = 0;
  if (fwrite(bytes, 1, count, user) == count) return LADE_OK;
  int code = errno;
  return ladei_error(LADE_ERR_IO, code, "writing a picture: %s", strerror(code));
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static void buffer_flush(ladei_svg *svg) {
  if (svg->status == LADE_OK && svg->used > 0) svg->status = svg->sink(svg->user, svg->buffer, svg->used);
  svg->used = 0;
}

static void bytes_put(ladei_svg *svg, const char *bytes, size_t count) {
  while (count > 0) {
    if (svg->used == sizeof svg->buffer) buffer_flush(svg);
    size_t room = sizeof svg->buffer - svg->used, part = count < room ? count : room;
    memcpy(svg->buffer + svg->used, bytes, part);
    svg->used += part;
    bytes += part;
    count -= part;
  }
}

static void put(ladei_svg *svg, const char *markup) { bytes_put(svg, markup, strlen(markup)); }

/* In hundredths, without zeros at the end; printf would write the locale's comma. */
static void number_put(ladei_svg *svg, double value) {
  const double most = 1e9;
  char digits[24], *end = digits + sizeof digits, *at = end;
  long long hundredths = isfinite(value) ? llround(fmax(-most, fmin(most, value)) * 100) : 0;
  unsigned long long rest = (unsigned long long)(hundredths < 0 ? -hundredths : hundredths);
  bool fraction = false;
  for (int place = 0; place < 3 || rest > 0; place++, rest /= 10) {
    if (place == 2 && fraction) *--at = '.';
    fraction = fraction || rest % 10 != 0;
    if (place >= 2 || fraction) *--at = (char)('0' + rest % 10);
  }
  if (hundredths < 0) *--at = '-';
  bytes_put(svg, at, (size_t)(end - at));
}

/* ---- Characters -------------------------------------------------------------------------------------------------- */

/* Bytes of the first character of a text that is not empty; 0: XML does not allow it. */
static size_t character_bytes(const char *text) {
  if (*text == '\n' || *text == '\t') return 1;
  if (strncmp(text, "\xef\xbf\xbe", 3) == 0 || strncmp(text, "\xef\xbf\xbf", 3) == 0) return 0; /* U+FFFE, U+FFFF */
  return ladei_text_character(text);
}

static const char *character_escape(char c) {
  switch (c) {
  case '&': return "&amp;";
  case '<': return "&lt;";
  case '>': return "&gt;";
  case '"': return "&quot;";
  default: return NULL;
  }
}

/* All of a text, or its first `most` characters and an ellipsis. */
static void escaped_put(ladei_svg *svg, const char *text, size_t most) {
  for (size_t characters = 0; *text != '\0'; characters++) {
    if (characters == most) {
      put(svg, "\xe2\x80\xa6");
      return;
    }
    size_t length = character_bytes(text);
    const char *escape = length == 0 ? "\xef\xbf\xbd" : character_escape(*text);
    if (escape != NULL)
      put(svg, escape);
    else
      bytes_put(svg, text, length);
    text += length == 0 ? 1 : length;
  }
}

/* ---- Elements ---------------------------------------------------------------------------------------------------- */

/* `opening` is the text before the number: ' x="'. */
static void number_attribute(ladei_svg *svg, const char *opening, double value) {
  put(svg, opening);
  number_put(svg, value);
  put(svg, "\"");
}

static void text_attribute(ladei_svg *svg, const char *opening, const char *value) {
  if (value == NULL) return;
  put(svg, opening);
  escaped_put(svg, value, SIZE_MAX);
  put(svg, "\"");
}

static void look_put(ladei_svg *svg, const ladei_svg_look *look) {
  if (look == NULL) return;
  if (look->radius != 0) number_attribute(svg, " rx=\"", look->radius);
  text_attribute(svg, " class=\"", look->class);
  text_attribute(svg, " fill=\"", look->fill);
  text_attribute(svg, " stroke=\"", look->stroke);
  text_attribute(svg, " text-anchor=\"", look->anchor);
  if (look->stroke_width != 0) number_attribute(svg, " stroke-width=\"", look->stroke_width);
  if (look->fill_opacity != 0) number_attribute(svg, " fill-opacity=\"", look->fill_opacity);
}

static void title_put(ladei_svg *svg, const char *title) {
  put(svg, "<title>");
  escaped_put(svg, title, SIZE_MAX);
  put(svg, "</title>");
}

/* The rest of a shape after its numbers; `closing` is its end tag. */
static void shape_end(ladei_svg *svg, const ladei_svg_look *look, const char *title, const char *closing) {
  look_put(svg, look);
  if (title == NULL) {
    put(svg, "/>\n");
    return;
  }
  put(svg, ">");
  title_put(svg, title);
  put(svg, closing);
}

void ladei_svg_rect(ladei_svg *svg, double x, double y, double width, double height, const ladei_svg_look *look,
                    const char *title) {
  number_attribute(svg, "<rect x=\"", x);
  number_attribute(svg, " y=\"", y);
  number_attribute(svg, " width=\"", width);
  number_attribute(svg, " height=\"", height);
  shape_end(svg, look, title, "</rect>\n");
}

void ladei_svg_line(ladei_svg *svg, double x1, double y1, double x2, double y2, const ladei_svg_look *look,
                    const char *title) {
  number_attribute(svg, "<line x1=\"", x1);
  number_attribute(svg, " y1=\"", y1);
  number_attribute(svg, " x2=\"", x2);
  number_attribute(svg, " y2=\"", y2);
  shape_end(svg, look, title, "</line>\n");
}

void ladei_svg_polyline(ladei_svg *svg, const ladei_svg_point *points, size_t count, const ladei_svg_look *look,
                        const char *title) {
  put(svg, "<polyline points=\"");
  for (size_t i = 0; i < count; i++) {
    if (i > 0) put(svg, " ");
    number_put(svg, points[i].x);
    put(svg, ",");
    number_put(svg, points[i].y);
  }
  put(svg, "\"");
  shape_end(svg, look, title, "</polyline>\n");
}

void ladei_svg_text(ladei_svg *svg, double x, double y, const ladei_svg_look *look, size_t most, const char *text) {
  number_attribute(svg, "<text x=\"", x);
  number_attribute(svg, " y=\"", y);
  look_put(svg, look);
  put(svg, ">");
  escaped_put(svg, text, most == 0 ? SIZE_MAX : most);
  put(svg, "</text>\n");
}

void ladei_svg_group_begin(ladei_svg *svg, const ladei_svg_look *look, const char *title) {
  put(svg, "<g");
  look_put(svg, look);
  put(svg, ">");
  if (title != NULL) title_put(svg, title);
  put(svg, "\n");
  svg->open_groups++;
}

void ladei_svg_group_end(ladei_svg *svg) {
  assert(svg->open_groups > 0);
  svg->open_groups--;
  put(svg, "</g>\n");
}

/* ---- Pictures ---------------------------------------------------------------------------------------------------- */

void ladei_svg_begin(ladei_svg *svg, ladei_svg_sink sink, void *user, double width, double height, const char *style) {
  svg->sink = sink;
  svg->user = user;
  svg->status = LADE_OK;
  svg->open_groups = 0;
  svg->used = 0;
  number_attribute(svg, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width);
  number_attribute(svg, " height=\"", height);
  put(svg, " viewBox=\"0 0 ");
  number_put(svg, width);
  number_attribute(svg, " ", height);
  put(svg, ">\n");
  if (style != NULL) {
    put(svg, "<style>");
    escaped_put(svg, style, SIZE_MAX);
    put(svg, "</style>\n");
  }
  ladei_svg_rect(svg, 0, 0, width, height, &(ladei_svg_look){.fill = "white"}, NULL);
}

lade_status ladei_svg_end(ladei_svg *svg) {
  assert(svg->open_groups == 0);
  put(svg, "</svg>\n");
  buffer_flush(svg);
  return svg->status;
}
