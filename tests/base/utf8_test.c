/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <string.h>

#include "tests/shim/lade_test.h"

/* Shortest forms alone, no surrogates, nothing above U+10FFFF, nothing cut off. */
LADE_TEST(Utf8, HasCharactersOfEveryLength) {
  static const struct {
    const char *text;
    size_t bytes;
  } cases[] = {{"a", 1},
               {"\x7f", 1},
               {"\x80", 0},
               {"\xc2\x80", 2},
               {"\xc1\xbf", 0},
               {"\xe0\x9f\xbf", 0},
               {"\xe0\xa0\x80", 3},
               {"\xed\x9f\xbf", 3},
               {"\xed\xa0\x80", 0},
               {"\xee\x80\x80", 3},
               {"\xf0\x8f\xbf\xbf", 0},
               {"\xf0\x90\x80\x80", 4},
               {"\xf4\x8f\xbf\xbf", 4},
               {"\xf4\x90\x80\x80", 0},
               {"\xf8\x88\x80\x80", 0},
               {"\xe2\x82", 0},
               {"\xff", 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    LADE_EXPECT_EQ_UINT(ladei_utf8_character(cases[i].text, strlen(cases[i].text)), cases[i].bytes);
    LADE_EXPECT_EQ_UINT(ladei_utf8_character(cases[i].text, SIZE_MAX), cases[i].bytes);
    LADE_EXPECT_EQ_INT(ladei_utf8_is_text(cases[i].text), cases[i].bytes > 0);
  }
  LADE_EXPECT_EQ_UINT(ladei_utf8_character("", 0), 0);
}

LADE_TEST(Utf8, IsATextToItsEnd) {
  LADE_EXPECT(ladei_utf8_is_text(""));
  LADE_EXPECT(ladei_utf8_is_text("a\xc3\xa4\xe2\x82\xac"));
  LADE_EXPECT(!ladei_utf8_is_text("a\xc3\xa4\xe2\x82"));
}
