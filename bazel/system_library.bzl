# SPDX-License-Identifier: Apache-2.0
"""A library of the machine's distribution as a Bazel repository.

Only the named headers are linked into the repository, so Bazel sees when they change, and -isystem never names the
whole of /usr/include (which would break #include_next). @name is the library, @name//:headers its headers alone. The
compiler says where it finds headers and libraries.
"""

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

def _missing(ctx, file):
    fail("{} is missing: install the package {} (tools/setup does)".format(file, ctx.attr.package))

def system_compiler(ctx):
    return ctx.which("cc") or ctx.which("gcc") or ctx.which("clang") or fail("no C compiler (tools/setup installs one)")

def _include_directories(ctx, compiler):
    """The folders that the compiler searches, in its order."""
    result = ctx.execute([compiler, "-E", "-v", "-x", "c", "/dev/null"], environment = {"LC_ALL": "C"})
    begin = "#include <...> search starts here:\n"
    if result.return_code != 0 or begin not in result.stderr:
        fail("{} does not say where it finds headers: {}".format(compiler, result.stderr))
    lines = result.stderr.partition(begin)[2].partition("End of search list.")[0].splitlines()
    return [line.strip() for line in lines if line.strip()]

def _find_header(ctx, directories, header):
    for directory in directories:
        path = ctx.path(directory + "/" + header)
        if path.exists:
            return path
    return _missing(ctx, header)

def _find_archive(ctx, compiler, archive):
    """None where the compiler knows none: it prints the name as it is."""
    path = ctx.execute([compiler, "-print-file-name=" + archive]).stdout.strip()
    return ctx.path(path) if path.startswith("/") else None

def _system_library_impl(ctx):
    compiler = system_compiler(ctx)
    directories = _include_directories(ctx, compiler)
    for header in ctx.attr.headers:
        ctx.symlink(_find_header(ctx, directories, header), "include/" + header)
    archives = []
    linkopts = ctx.attr.linkopts
    if ctx.attr.static_archive:
        archive = _find_archive(ctx, compiler, ctx.attr.static_archive)
        if archive:
            ctx.symlink(archive, ctx.attr.static_archive)
            archives.append(ctx.attr.static_archive)
        elif ctx.attr.or_shared:
            linkopts = ["-l" + ctx.attr.or_shared] + linkopts
        else:
            _missing(ctx, ctx.attr.static_archive)
    ctx.file("BUILD", _BUILD.format(name = ctx.name, archives = archives, linkopts = linkopts))

system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "headers": attr.string_list(doc = "Header files and folders, relative to a folder that the compiler searches."),
        "linkopts": attr.string_list(),
        "or_shared": attr.string(doc = "Linked as -lNAME where static_archive is not there."),
        "package": attr.string(mandatory = True, doc = "Debian package that brings it, for the error message."),
        "static_archive": attr.string(doc = "If given, linked instead of a shared library."),
    },
    local = True,
)
