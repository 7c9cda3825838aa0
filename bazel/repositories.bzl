# SPDX-License-Identifier: Apache-2.0
"""Every repository that building lade needs, for its own WORKSPACE and for that of a project that uses it:

    local_repository(name = "lade", path = "...")
    load("@lade//bazel:repositories.bzl", "lade_repositories")
    lade_repositories()

All of it lies on the machine (tools/setup installs it). A repository that the project defined before stays as it is.
"""

load("//bazel:cuda_repository.bzl", "cuda_repository")
load("//bazel:mpi_repository.bzl", "mpi_repository")
load("//bazel:system_library.bzl", "system_library")

def _folder_impl(ctx):
    folder = ctx.path(ctx.attr.workspace_file).dirname
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)

# A folder of lade as a repository, also where lade is itself an external one.
_folder = repository_rule(
    implementation = _folder_impl,
    attrs = {"workspace_file": attr.label(mandatory = True)},
)

def _once(rule, name, **attributes):
    if name not in native.existing_rules():
        rule(name = name, **attributes)

def lade_repositories():
    """Defines them."""

    # Bazel itself asks for these three by name and would download them. The first and last are stubs that hold just what
    # the C/C++ rules of this project use; Debian's own bazel-rules-cc is too new for Debian's Bazel.
    _once(
        _folder,
        name = "rules_cc",
        workspace_file = Label("//third_party:rules_cc/WORKSPACE"),
    )
    _once(
        native.local_repository,
        name = "rules_java",
        path = "/usr/share/bazel/rules/java",
    )
    _once(
        _folder,
        name = "remote_coverage_tools",
        workspace_file = Label("//third_party:coverage_tools/WORKSPACE"),
    )

    # System libraries: one repository each, named as its users say it (deps = ["@hwloc"]).
    _once(
        system_library,
        name = "googletest",
        headers = ["gtest"],
        linkopts = ["-lpthread"],
        or_shared = "gtest",
        package = "libgtest-dev",
        static_archive = "libgtest.a",
    )

    _once(
        system_library,
        name = "hwloc",
        headers = [
            "hwloc.h",
            "hwloc",
        ],
        linkopts = ["-lhwloc"],
        package = "libhwloc-dev",
    )

    _once(
        system_library,
        name = "jansson",
        headers = [
            "jansson.h",
            "jansson_config.h",
        ],
        linkopts = ["-ljansson"],
        package = "libjansson-dev",
    )

    # Baselines of the benchmarks. jemalloc is used through //third_party/jemalloc; mimalloc is opened at run time.
    _once(
        system_library,
        name = "jemalloc",
        headers = ["jemalloc"],
        package = "libjemalloc-dev",
        static_archive = "libjemalloc_pic.a",
    )

    _once(
        system_library,
        name = "libarchive",
        headers = [
            "archive.h",
            "archive_entry.h",
        ],
        linkopts = ["-larchive"],
        package = "libarchive-dev",
    )

    _once(
        system_library,
        name = "liburing",
        headers = [
            "liburing.h",
            "liburing",
        ],
        linkopts = ["-luring"],
        package = "liburing-dev",
    )

    _once(
        system_library,
        name = "xxhash",
        headers = [
            "xxhash.h",
            "xxh3.h",
        ],
        linkopts = ["-lxxhash"],
        package = "libxxhash-dev",
    )

    _once(
        system_library,
        name = "uthash",
        headers = [
            "uthash.h",
            "utlist.h",
        ],
        package = "uthash-dev",
    )

    # The CUDA toolkit's headers, or nothing: see bazel/cuda_repository.bzl.
    _once(cuda_repository, name = "cuda")

    # MPI, or nothing: see bazel/mpi_repository.bzl.
    _once(mpi_repository, name = "mpi")
