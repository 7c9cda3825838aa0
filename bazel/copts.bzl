# SPDX-License-Identifier: Apache-2.0
"""Compiler flags of the project. Every C file is compiled with these, with gcc 12 and with clang 14."""

LADE_WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Werror",
]

LADE_COPTS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-fvisibility=hidden",
    "-pthread",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
] + LADE_WARNINGS

# For the few C++ files: the test shim, and tests that C++ programs can use the public headers.
LADE_CXXOPTS = [
    "-std=c++17",
    "-D_GNU_SOURCE",
    "-fvisibility=hidden",
    "-pthread",
] + LADE_WARNINGS

LADE_LINKOPTS = [
    # Bazel names libstdc++ for every binary; those in C do without it.
    "-Wl,--as-needed",
    "-pthread",
    "-lm",
    "-ldl",
]
