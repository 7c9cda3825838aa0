/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A writer of SVG pictures: shapes and texts in order, to a caller's sink. It allocates nothing, keeps no state outside
 * the caller's ladei_svg, and does not depend on the locale.
 *
 *   ladei_svg svg;
 *   ladei_svg_begin(&svg, ladei_svg_to_file, file, 400, 300, "text{font:12px sans-serif}");
 *   ladei_svg_rect(&svg, 10, 10, 80, 20, &(ladei_svg_look){.fill = "#1f77b4"}, "read 12.5 us");
 *   ladei_svg_text(&svg, 14, 24, NULL, 0, name);
 *   status = ladei_svg_end(&svg);
 *
 * Texts may be any bytes, of files too: characters with a meaning in XML are escaped; what XML does not allow (control
 * characters, bytes that are not UTF-8) becomes U+FFFD. Lengths are pixels; not finite numbers are written as 0.
 *
 * I1  After a sink's first failure it gets no more bytes, and ladei_svg_end returns that failure.
 * Locks: none; one thread at a time writes a picture.
 */
#ifndef LADE_BASE_SVG_H
#define LADE_BASE_SVG_H

#include <stddef.h>

#include "lade/status.h"

/* Takes the next bytes of a picture. Any result other than LADE_OK ends the writing. */
typedef lade_status (*ladei_svg_sink)(void *user, const char *bytes, size_t count);

/* A sink: `user` is an open FILE. LADE_ERR_IO with the errno where the file takes less. */
lade_status ladei_svg_to_file(void *user, const char *bytes, size_t count);

/* A picture being written. */
typedef struct ladei_svg {
  ladei_svg_sink sink;
  void *user;
  lade_status status;   /* the sink's first failure */
  unsigned open_groups; /* begun and not ended */
  size_t used;          /* bytes of the buffer that the sink has not got */
  char buffer[4000];
} ladei_svg;

/* The look of a shape. Zero fields are not written: the style sheet, the enclosing group or SVG's default applies. */
typedef struct ladei_svg_look {
  const char *class; /* of the style sheet */
  const char *fill;  /* a colour, or "none" */
  const char *stroke;
  const char *anchor; /* of a text: "start", "middle", "end" */
  double stroke_width;
  double fill_opacity; /* to 1 */
  double radius;       /* of a rectangle's corners */
} ladei_svg_look;

typedef struct ladei_svg_point {
  double x, y;
} ladei_svg_point;

/*
 * Begins a picture on white ground. `style` is a style sheet, NULL for none. `user` is passed to the sink. Every
 * picture that was begun must be ended; only these functions call the sink.
 */
void ladei_svg_begin(ladei_svg *svg, ladei_svg_sink sink, void *user, double width, double height, const char *style);
/* LADE_OK: the sink has got all of it. Ends open groups. */
lade_status ladei_svg_end(ladei_svg *svg);

/* Shapes between the two have the group's look and, unless they have their own, its title. Groups nest. */
void ladei_svg_group_begin(ladei_svg *svg, const ladei_svg_look *look, const char *title);
void ladei_svg_group_end(ladei_svg *svg);

/* `look` may be NULL. `title` is the text that a browser shows over the shape, NULL for none. */
void ladei_svg_rect(ladei_svg *svg, double x, double y, double width, double height, const ladei_svg_look *look,
                    const char *title);
void ladei_svg_line(ladei_svg *svg, double x1, double y1, double x2, double y2, const ladei_svg_look *look,
                    const char *title);
void ladei_svg_polyline(ladei_svg *svg, const ladei_svg_point *points, size_t count, const ladei_svg_look *look,
                        const char *title);
/* Of a text with more than `most` characters the first `most` and an ellipsis are written; 0: no limit. */
void ladei_svg_text(ladei_svg *svg, double x, double y, const ladei_svg_look *look, size_t most, const char *text);

#endif /* LADE_BASE_SVG_H */
