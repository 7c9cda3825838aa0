/* SPDX-License-Identifier: Apache-2.0 */
/* The writer of pictures, byte for byte; svg_xml_test.py has a parser of XML judge its texts. */
#include "base/svg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/shim/lade_test.h"
#include "tests/support/comma_locale.h"

/* A sink that keeps what it gets, and refuses from the call `fails_at` on (0: never). */
typedef struct kept {
  char *text;
  size_t count, calls, fails_at;
} kept;

static lade_status kept_sink(void *user, const char *bytes, size_t count) {
  kept *k = user;
  k->calls++;
  if (k->calls == k->fails_at) return ladei_error(LADE_ERR_IO, ENOSPC, "the sink is full");
  k->text = realloc(k->text, k->count + count + 1);
  memcpy(k->text + k->count, bytes, count);
  k->count += count;
  k->text[k->count] = '\0';
  return LADE_OK;
}

#define HEAD                                                                                                           \
  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"40\" height=\"30.5\" viewBox=\"0 0 40 30.5\">\n"                  \
  "<rect x=\"0\" y=\"0\" width=\"40\" height=\"30.5\" fill=\"white\"/>\n"

static void begin(ladei_svg *svg, kept *k) { ladei_svg_begin(svg, kept_sink, k, 40, 30.5, NULL); }

/* Ends the picture and compares what stands after its head. */
static void end_expect(ladei_svg *svg, kept *k, const char *body) {
  char wanted[2048];
  snprintf(wanted, sizeof wanted, "%s%s</svg>\n", HEAD, body);
  LADE_EXPECT_OK(ladei_svg_end(svg));
  LADE_EXPECT_EQ_STR(k->text, wanted);
  free(k->text);
}

LADE_TEST(Svg, ShapesAreWrittenInTheirOrder) {
  static const ladei_svg_point points[] = {{0, 1}, {2.5, -3}, {1e6, 0.004}};
  ladei_svg svg;
  kept k = {0};
  begin(&svg, &k);
  ladei_svg_rect(&svg, 1, 2, 3, 4, NULL, NULL);
  ladei_svg_rect(
      &svg, 1, 2, 3, 4,
      &(ladei_svg_look){.class = "room", .fill = "none", .stroke = "#123", .radius = 8, .fill_opacity = 0.25},
      "a\ntitle");
  ladei_svg_line(&svg, 1, 2, 3, 4, &(ladei_svg_look){.stroke = "red", .stroke_width = 1.5}, NULL);
  ladei_svg_polyline(&svg, points, 3, NULL, "line");
  ladei_svg_polyline(&svg, points, 0, NULL, NULL);
  ladei_svg_text(&svg, 5, 6, &(ladei_svg_look){.anchor = "end"}, 0, "words");
  end_expect(&svg, &k,
             "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\"/>\n"
             "<rect x=\"1\" y=\"2\" width=\"3\" height=\"4\" rx=\"8\" class=\"room\" fill=\"none\" stroke=\"#123\""
             " fill-opacity=\"0.25\"><title>a\ntitle</title></rect>\n"
             "<line x1=\"1\" y1=\"2\" x2=\"3\" y2=\"4\" stroke=\"red\" stroke-width=\"1.5\"/>\n"
             "<polyline points=\"0,1 2.5,-3 1000000,0\"><title>line</title></polyline>\n"
             "<polyline points=\"\"/>\n"
             "<text x=\"5\" y=\"6\" text-anchor=\"end\">words</text>\n");
}

LADE_TEST(Svg, GroupsNestAndHaveTitles) {
  ladei_svg svg;
  kept k = {0};
  begin(&svg, &k);
  ladei_svg_group_begin(&svg, NULL, "outer & \"first\"");
  ladei_svg_group_begin(&svg, &(ladei_svg_look){.class = "in>ner"}, NULL);
  ladei_svg_rect(&svg, 0, 0, 1, 1, NULL, NULL);
  ladei_svg_group_end(&svg);
  ladei_svg_group_end(&svg);
  end_expect(&svg, &k,
             "<g><title>outer &amp; &quot;first&quot;</title>\n<g class=\"in&gt;ner\">\n"
             "<rect x=\"0\" y=\"0\" width=\"1\" height=\"1\"/>\n</g>\n</g>\n");
}

static void numbers_check(void) {
  static const struct {
    double value;
    const char *text;
  } numbers[] = {{0, "0"},
                 {-0.0, "0"},
                 {1, "1"},
                 {10, "10"},
                 {0.5, "0.5"},
                 {0.05, "0.05"},
                 {1.05, "1.05"},
                 {0.1 + 0.2, "0.3"},
                 {99.996, "100"},
                 {-1.25, "-1.25"},
                 {-0.004, "0"},
                 {-0.006, "-0.01"},
                 {123456.78, "123456.78"},
                 {1e300, "1000000000"},
                 {NAN, "0"},
                 {INFINITY, "0"},
                 {-1e12, "-1000000000"}};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
    ladei_svg svg;
    kept k = {0};
    char body[128];
    begin(&svg, &k);
    ladei_svg_text(&svg, numbers[i].value, 7, NULL, 0, "");
    snprintf(body, sizeof body, "<text x=\"%s\" y=\"7\"></text>\n", numbers[i].text);
    end_expect(&svg, &k, body);
  }
}

LADE_TEST(Svg, NumbersHaveTwoPlacesAtMost) { numbers_check(); }

LADE_TEST(Svg, NumbersDoNotDependOnTheLocale) {
  if (!support_comma_locale_begin()) LADE_SKIP("no locale with a decimal comma can be had");
  numbers_check();
  support_comma_locale_end();
}

static void text_check(const char *text, size_t most, const char *written) {
  ladei_svg svg;
  kept k = {0};
  char body[256];
  begin(&svg, &k);
  ladei_svg_text(&svg, 0, 0, NULL, most, text);
  snprintf(body, sizeof body, "<text x=\"0\" y=\"0\">%s</text>\n", written);
  end_expect(&svg, &k, body);
}

#define REPLACED "\xef\xbf\xbd"

LADE_TEST(Svg, TextsAreEscaped) {
  text_check("</text><script>\"a'&amp;", 0, "&lt;/text&gt;&lt;script&gt;&quot;a'&amp;amp;");
  text_check("tab\tline\n", 0, "tab\tline\n");
}

LADE_TEST(Svg, BytesThatXmlHasNoPlaceForAreReplaced) {
  text_check("a\x01\r\x7f", 0, "a" REPLACED REPLACED REPLACED);
  text_check("\xff\xc3", 0, REPLACED REPLACED);
  text_check("\xef", 0, REPLACED); /* the text ends in the middle of a character */
  text_check("\xed\xa0\x80", 0, REPLACED REPLACED REPLACED);
  text_check("\xef\xbf\xbe\xef\xbf\xbd", 0, REPLACED REPLACED REPLACED REPLACED);
  text_check("gr\xc3\xbc\xc3\x9f", 0, "gr\xc3\xbc\xc3\x9f");
}

/* The drawing of `lade topo` counted bytes: a device's name that was cut in the middle of a character made it no XML. */
LADE_TEST(Svg, LongTextsAreCutBetweenCharacters) {
  text_check("abc", 3, "abc");
  text_check("abcd", 3, "abc\xe2\x80\xa6");
  text_check("\xc3\xbc\xc3\xbc\xc3\xbc", 2, "\xc3\xbc\xc3\xbc\xe2\x80\xa6");
  text_check("&&&", 2, "&amp;&amp;\xe2\x80\xa6");
}

LADE_TEST(Svg, StyleSheetsAreText) {
  ladei_svg svg;
  kept k = {0};
  ladei_svg_begin(&svg, kept_sink, &k, 1, 1, "g>text{fill:red}");
  LADE_EXPECT_OK(ladei_svg_end(&svg));
  LADE_EXPECT_CONTAINS_STR(k.text, "<style>g&gt;text{fill:red}</style>\n");
  free(k.text);
}

static void many_draw(ladei_svg *svg, kept *k) {
  static char longest[3 * sizeof svg->buffer];
  memset(longest, 'x', sizeof longest - 1);
  begin(svg, k);
  for (int i = 0; i < 300; i++) ladei_svg_rect(svg, i, 0, 1, 1, NULL, "some title");
  ladei_svg_text(svg, 0, 0, NULL, 0, longest);
}

LADE_TEST(Svg, PicturesLargerThanTheBufferComeInPieces) {
  ladei_svg svg;
  kept k = {0};
  many_draw(&svg, &k);
  LADE_EXPECT_OK(ladei_svg_end(&svg));
  LADE_EXPECT_GT_SIZE(k.calls, 6);
  LADE_EXPECT_EQ_SIZE(strlen(k.text), k.count);
  size_t rects = 0;
  for (const char *at = k.text; (at = strstr(at, "<title>some title</title></rect>\n")) != NULL; at++) rects++;
  LADE_EXPECT_EQ_SIZE(rects, 300);
  const char *text = strstr(k.text, "<text x=\"0\" y=\"0\">x");
  LADE_ASSERT(text != NULL);
  LADE_EXPECT_EQ_SIZE(strspn(strchr(text, '>') + 1, "x"), 3 * sizeof svg.buffer - 1);
  free(k.text);
}

LADE_TEST(Svg, FirstFailureOfTheSinkIsTheLastCall) {
  kept whole = {0};
  ladei_svg svg;
  many_draw(&svg, &whole);
  LADE_EXPECT_OK(ladei_svg_end(&svg));
  for (size_t nth = 1; nth <= whole.calls; nth++) {
    kept k = {.fails_at = nth};
    many_draw(&svg, &k);
    LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_svg_end(&svg));
    LADE_EXPECT_EQ_SIZE(k.calls, nth);
    LADE_EXPECT(k.count == 0 || strncmp(k.text, whole.text, k.count) == 0);
    free(k.text);
  }
  free(whole.text);
}

LADE_TEST(Svg, FileThatIsFullIsNamed) {
  ladei_svg svg;
  lade_error error;
  FILE *file = fopen("/dev/full", "w");
  if (file == NULL) LADE_SKIP("no /dev/full");
  setvbuf(file, NULL, _IONBF, 0);
  ladei_svg_begin(&svg, ladei_svg_to_file, file, 1, 1, NULL);
  LADE_EXPECT_STATUS(LADE_ERR_IO, ladei_svg_end(&svg));
  ladei_error_save(&error);
  LADE_EXPECT_EQ_INT(error.native_code, ENOSPC);
  fclose(file);
}
