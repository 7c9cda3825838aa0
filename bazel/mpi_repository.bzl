# SPDX-License-Identifier: Apache-2.0
"""@mpi: the MPI that pkg-config finds, Open MPI or MPICH; empty where there is none.

LADE_MPI in the environment (--repo_env) is the package's name, where there are several: ompi-c, mpich.

    load("@mpi//:found.bzl", "MPI_FOUND")

    MPI_FOUND = False:   @mpi has no header and links nothing
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "mpi",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
    linkopts = {linkopts},
)
"""

# Names of its description: the distribution's choice first.
_PACKAGES = ["mpi-c", "ompi-c", "mpich"]

def _answer(ctx, pkg_config, option, package):
    """What pkg-config says; None where it knows no such package."""
    result = ctx.execute([pkg_config, option, package])
    return [word for word in result.stdout.strip().split(" ") if word] if result.return_code == 0 else None

def _include_folder(ctx, flags):
    for flag in flags:
        if flag.startswith("-I") and ctx.path(flag[2:] + "/mpi.h").exists:
            return flag[2:]
    return None

def _mpi_repository_impl(ctx):
    pkg_config = ctx.which("pkg-config")
    linkopts = []
    folder = None
    chosen = ctx.os.environ.get("LADE_MPI", "")
    packages = [chosen] if chosen else _PACKAGES
    for package in packages if pkg_config else []:
        flags = _answer(ctx, pkg_config, "--cflags-only-I", package)
        folder = _include_folder(ctx, flags) if flags else None
        if folder:
            linkopts = _answer(ctx, pkg_config, "--libs", package)
            ctx.symlink(folder, "include")
            break
    ctx.file("BUILD", _BUILD.format(linkopts = linkopts))
    ctx.file("found.bzl", "MPI_FOUND = {}\n".format(folder != None))

mpi_repository = repository_rule(
    implementation = _mpi_repository_impl,
    environ = ["LADE_MPI"],
    local = True,
)
