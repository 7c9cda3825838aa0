# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets: regular tests by default, libFuzzer programs under --config=fuzz."""

load("@rules_cc//cc:defs.bzl", "cc_test")
load("//bazel:copts.bzl", "LADE_COPTS", "LADE_LINKOPTS")

def lade_fuzz_test(name, srcs, deps = [], corpus = None, fuzz_runs = 3000, **attributes):
    """A C file that defines LLVMFuzzerTestOneInput (tests/fuzz/fuzz.h).

    By default it replays the files of the folder `corpus` and some hundred random inputs. Under --config=fuzz it is a
    libFuzzer program; as a test that makes `fuzz_runs` runs, and by hand (bazel-bin/tests/fuzz/NAME) what it is told.
    """
    stored = native.glob([corpus + "/**"]) if corpus else []
    corpus_path = native.package_name() + "/" + corpus if corpus else ""
    cc_test(
        name = name,
        size = "small",
        srcs = srcs,
        args = select({
            "//bazel:fuzz_on": ["-runs={}".format(fuzz_runs)] + ([corpus_path] if corpus else []),
            "//conditions:default": [],
        }),
        copts = LADE_COPTS,
        data = stored,
        env = {"LADE_FUZZ_CORPUS": corpus_path},
        linkopts = LADE_LINKOPTS + select({
            "//bazel:fuzz_on": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        linkstatic = True,
        deps = deps + ["//tests/fuzz:fuzz"] + select({
            "//bazel:fuzz_on": ["//tests/fuzz:abort"],
            "//conditions:default": ["//tests/fuzz:replay"],
        }),
        **attributes
    )
