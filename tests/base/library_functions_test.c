/* SPDX-License-Identifier: Apache-2.0 */
#include "base/library_functions.h"

#include <dlfcn.h>
#include <string.h>

#include "tests/shim/lade_test.h"

typedef struct table {
  int before;
  size_t (*length)(const char *text);
  int (*compare)(const char *a, const char *b);
  int after;
} table;

LADE_TEST(LibraryFunctions, TableHasAllFunctions) {
  static const ladei_library_function functions[] = {LADEI_LIBRARY_FUNCTION(table, length, strlen),
                                                     LADEI_LIBRARY_FUNCTION(table, compare, strcmp)};
  table own = {.before = 1, .after = 2};
  void *program = dlopen(NULL, RTLD_NOW);
  LADE_ASSERT(program != NULL);
  LADE_EXPECT(ladei_library_functions_find(program, functions, 2, &own) == NULL);
  LADE_EXPECT_EQ_SIZE(own.length("abc"), 3);
  LADE_EXPECT_EQ_INT(own.compare("a", "a"), 0);
  LADE_EXPECT_EQ_INT(own.before + own.after, 3);
  dlclose(program);
}

LADE_TEST(LibraryFunctions, FirstMissingFunctionIsNamed) {
  static const ladei_library_function functions[] = {LADEI_LIBRARY_FUNCTION(table, length, lade_of_no_library),
                                                     LADEI_LIBRARY_FUNCTION(table, compare, strcmp)};
  table own = {.length = strlen, .compare = NULL};
  void *program = dlopen(NULL, RTLD_NOW);
  LADE_ASSERT(program != NULL);
  LADE_EXPECT_EQ_STR(ladei_library_functions_find(program, functions, 2, &own), "lade_of_no_library");
  LADE_EXPECT(own.length == NULL);
  LADE_EXPECT(own.compare == NULL); /* it was not looked for */
  LADE_EXPECT(ladei_library_function_find(program, "strcmp", &own.compare));
  LADE_EXPECT(!ladei_library_function_find(program, "lade_of_no_library", &own.compare));
  LADE_EXPECT(own.compare == NULL);
  dlclose(program);
}
