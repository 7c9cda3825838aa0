/* SPDX-License-Identifier: Apache-2.0 */
/* main() of every test: the tests are registered by now, GoogleTest runs them. */
#include "tests/shim/lade_test.h"

int main(int argc, char **argv) { return ladet_main(argc, argv); }
