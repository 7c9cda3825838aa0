# SPDX-License-Identifier: Apache-2.0
"""The rules that every BUILD file of the project uses for C code.

All parts of the library are linked statically: with hidden visibility their internal functions could not be reached from
another shared object. Of the tests, GoogleTest alone is shared.
"""

load("@cuda//:found.bzl", "CUDA_FOUND")
load("@mpi//:found.bzl", "MPI_FOUND")
load("@rules_cc//cc:defs.bzl", "cc_binary", "cc_library", "cc_test")
load("//bazel:copts.bzl", "LADE_COPTS", "LADE_LINKOPTS")
load("//bazel:no_threads.bzl", "NO_THREADS")

def _copts():
    """LADE_COPTS; for a project that uses lade a warning of its compiler is no error."""
    return LADE_COPTS if native.repository_name() == "@" else [flag for flag in LADE_COPTS if flag != "-Werror"]

def lade_cc_library(name, copts = [], linkstatic = True, visibility = ["//:__subpackages__"], **attributes):
    """A C library of the project; visible within the project unless told otherwise.

    By default it is optimised a little, unlike the tests: those that compute take half of the time. `-c dbg` is for
    a debugger.
    """
    cc_library(
        name = name,
        copts = _copts() + copts + select({
            "//bazel:fastbuild": ["-O1"],
            "//conditions:default": [],
        }),
        linkstatic = linkstatic,
        visibility = visibility,
        **attributes
    )

def lade_cc_binary(name, copts = [], linkopts = [], linkstatic = True, **attributes):
    """A C program, or with linkshared = True a shared library."""
    cc_binary(
        name = name,
        copts = _copts() + copts,
        linkopts = LADE_LINKOPTS + linkopts,
        linkstatic = linkstatic,
        **attributes
    )

_GPU_TAGS = [
    "requires-gpu",
    "exclusive",
]

def requires_gpu():
    """For target_compatible_with: the target is skipped unless --config=cuda says that there is a GPU."""
    return select({
        "//bazel:gpu_on": [],
        "//conditions:default": ["//bazel:absent_gpu"],
    })

def requires_cuda_headers():
    """For target_compatible_with: the target is skipped where the build found no CUDA headers."""
    return [] if CUDA_FOUND else ["//bazel:absent_toolkit"]

def requires_mpi():
    """For target_compatible_with: the target is skipped where the build found no MPI."""
    return [] if MPI_FOUND else ["//bazel:absent_mpi"]

def lade_cc_example(name, runs = {}, needs_gpu = False, size = "small", target_compatible_with = [], **attributes):
    """A program in examples/, and for each entry of `runs` a test that runs it with these arguments.

    runs: name -> list of arguments. The program's exit status is the outcome.
    """
    lade_cc_binary(
        name = name,
        target_compatible_with = target_compatible_with,
        **attributes
    )
    attributes = dict(attributes)
    copts = _copts() + attributes.pop("copts", [])
    linkopts = LADE_LINKOPTS + attributes.pop("linkopts", [])
    for run, arguments in runs.items():
        cc_test(
            name = "{}_{}_test".format(name, run),
            size = size,
            args = arguments,
            copts = copts,
            linkopts = linkopts,
            linkstatic = True,
            tags = _GPU_TAGS if needs_gpu else [],
            target_compatible_with = target_compatible_with + (requires_gpu() if needs_gpu else []),
            **attributes
        )

def lade_cc_test(
        name,
        copts = [],
        deps = [],
        linkopts = [],
        linkstatic = True,
        needs_gpu = False,
        loopback = False,
        size = "small",
        tags = [],
        data = [],
        env = {},
        **attributes):
    """A test in C. Its cases register themselves through tests/shim/lade_test.h.

    needs_gpu: a real GPU is needed. The test is skipped without --config=cuda, and never runs beside another.
    loopback: the runtime "cuda" finds the loopback driver of tests/loopback as libcuda.so.1. Without the CUDA headers
      there is no such runtime, and the test is skipped.
    Either way the sources see LADE_TEST_ON_CUDA, and on a GPU LADE_TEST_ON_GPU.
    """
    if loopback or needs_gpu:
        copts = copts + ["-DLADE_TEST_ON_CUDA"]
    if needs_gpu:
        copts = copts + ["-DLADE_TEST_ON_GPU"]
    if loopback:
        # Relative to the binary, so that it holds here, in a test's runfiles and in tools/bundle. As RPATH and not RUNPATH,
        # because it then also serves a dlopen() that a sanitiser's library makes in the program's stead.
        up = "../" * len(native.package_name().split("/"))
        data = data + ["//tests/loopback:libcuda.so.1"]
        linkopts = linkopts + [
            "-Wl,--disable-new-dtags",
            "-Wl,-rpath,'$$ORIGIN/" + up + "tests/loopback'",
        ]
    if name in NO_THREADS.get(native.package_name(), []):
        tags = tags + ["no-tsan"]
        env = dict(env, LADE_TEST_NO_THREADS = "1")
    cc_test(
        name = name,
        copts = _copts() + copts,
        env = env,
        linkopts = LADE_LINKOPTS + linkopts,
        linkstatic = linkstatic,
        size = size,
        tags = tags + (_GPU_TAGS if needs_gpu else []),
        target_compatible_with = (requires_gpu() if needs_gpu else []) + (requires_cuda_headers() if loopback else []),
        data = data,
        deps = deps + ["//tests/shim"],
        **attributes
    )

def lade_cc_runtime_tests(name, soft = True, **attributes):
    """The same tests on every runtime: SUPPORT_RUNTIMES (tests/support/runtimes.h) names those of each build.

    NAME_soft_test is for software devices, unless `soft` is False, NAME_loopback_test goes through runtime/cuda on the
    loopback driver, and NAME_cuda_test on a GPU.
    """
    if soft:
        lade_cc_test(name = name + "_soft_test", **attributes)
    lade_cc_test(name = name + "_loopback_test", loopback = True, **attributes)
    lade_cc_test(name = name + "_cuda_test", needs_gpu = True, **attributes)
