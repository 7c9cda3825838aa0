# SPDX-License-Identifier: Apache-2.0
"""A library of the machine's distribution as a Bazel repository.

Only the named headers are linked into the repository, so Bazel sees when they change, and -isystem never names the
whole of /usr/include (which would break #include_next). @name is the library, @name//:headers its headers alone.
"""

_INCLUDE_DIRECTORIES = ["/usr/include", "/usr/include/x86_64-linux-gnu"]
_ARCHIVE_DIRECTORIES = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"]

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)

cc_library(
    name = "{name}",
    srcs = {archives},
    linkopts = {linkopts},
    linkstatic = True,
    deps = [":headers"],
)
"""

def _find(ctx, directories, file):
    for directory in directories:
        path = ctx.path(directory + "/" + file)
        if path.exists:
            return path
    fail("{} is missing: install the package {} (tools/setup does)".format(file, ctx.attr.package))

def _system_library_impl(ctx):
    for header in ctx.attr.headers:
        ctx.symlink(_find(ctx, _INCLUDE_DIRECTORIES, header), "include/" + header)
    archives = []
    if ctx.attr.static_archive:
        ctx.symlink(_find(ctx, _ARCHIVE_DIRECTORIES, ctx.attr.static_archive), ctx.attr.static_archive)
        archives.append(ctx.attr.static_archive)
    ctx.file("BUILD", _BUILD.format(name = ctx.name, archives = archives, linkopts = ctx.attr.linkopts))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "headers": attr.string_list(doc = "Header files and folders, relative to /usr/include."),
        "linkopts": attr.string_list(),
        "package": attr.string(mandatory = True, doc = "Debian package that brings it, for the error message."),
        "static_archive": attr.string(doc = "If given, linked instead of a shared library."),
    },
    local = True,
)
