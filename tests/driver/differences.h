/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the driver made of software devices answers otherwise than docs/driver-behaviour.md says, and why. A row whose answer is
 * that of the page, or another one, fails the test.
 */
#ifndef LADE_TESTS_DRIVER_DIFFERENCES_H
#define LADE_TESTS_DRIVER_DIFFERENCES_H

typedef struct difference {
  const char *number, *answer, *reason;
} difference;

static const difference differences[] = {
    {"18 (d)", "yes", "memory of cuMemAlloc is given back at once; lade does not free it so"},
    {"34 (s)", "NOT_SUPPORTED", "software devices capture no allocation"},
    {"X15 (a)", "PARAMETERS_CHANGED", "every copy has a direction here; lade's calls name it"},
    {"X15 (b)", "PARAMETERS_CHANGED", "as X15 (a)"},
    {"X15 (c)", "SUCCESS", "as X15 (a)"},
    {"31 (c)", "NOT_PERMITTED", "lade makes no call in host functions, and must not be helped where it does"},
    {"II 3 (d)", "SUCCESS", "lade queues work under its stream's context alone, and is told where it does not"},
    {"II 6 (d)", "SUCCESS", "what pool a program gives a device is looked up here, not checked"},
#define STRICT(number, answer)                                                                                         \
  { number, answer, "the manual asks for a context; lade has one in each call" }
    STRICT("II 11 (a)", "INVALID_CONTEXT"),
    STRICT("II 11 (b)", "INVALID_CONTEXT"),
    STRICT("II 11 (c)", "INVALID_CONTEXT"),
    STRICT("II 11 (d)", "INVALID_CONTEXT"),
    STRICT("II 11 (e)", "no"),
    STRICT("II 11 (f)", "INVALID_CONTEXT"),
    STRICT("II 11 (g)", "INVALID_CONTEXT"),
    STRICT("II 11 (h)", "INVALID_CONTEXT"),
    STRICT("II 11 (i)", "INVALID_CONTEXT"),
    STRICT("II 11 (j)", "INVALID_CONTEXT"),
    STRICT("II 11 (k)", "INVALID_CONTEXT"),
#undef STRICT
};

#endif /* LADE_TESTS_DRIVER_DIFFERENCES_H */
