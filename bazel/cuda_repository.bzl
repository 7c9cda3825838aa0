# SPDX-License-Identifier: Apache-2.0
"""@cuda: the CUDA toolkit, as much of it as the machine has; empty where there is none.

Looked for in this order: $CUDA_HOME, /usr/local/cuda, the Python packages nvidia-cuda-runtime (its layout since CUDA 13)
and nvidia-cuda-runtime-cu12. The library itself needs headers only, as it opens the driver at run time. Examples that
are programs of the CUDA runtime API also need its library.

    load("@cuda//:found.bzl", "CUDA_FOUND", "CUDART_FOUND")

    CUDA_FOUND = False:   @cuda//:headers has no header
    CUDART_FOUND = False: @cuda//:cudart cannot be linked, or its headers lack a part
"""

load(":system_library.bzl", "system_compiler")

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(
        [
            "include/*.h",
            "include/*.hpp",
            "include/crt/**",
            "include/nvtx3/**",
        ],
        allow_empty = True,
    ),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    srcs = glob(["libcudart_static.a"], allow_empty = True),
    linkopts = ["-ldl", "-lrt", "-lpthread"],
    deps = [":headers"],
)
"""

# Prints the include folders of installed nvidia-cuda-runtime packages, newest layout first.
_PYTHON_PACKAGES = """
import os, site, sys
roots = list(sys.path) + site.getsitepackages() + [site.getusersitepackages()]
for layout in ("nvidia/cu13/include", "nvidia/cuda_runtime/include"):
    for root in roots:
        folder = os.path.join(root, layout)
        if os.path.isfile(os.path.join(folder, "cuda.h")):
            print(folder)
"""

def _python_include_folders(ctx):
    python = ctx.which("python3")
    if not python:
        return []
    result = ctx.execute([python, "-c", _PYTHON_PACKAGES])
    return result.stdout.splitlines() if result.return_code == 0 else []

def _find_include_folder(ctx):
    homes = [ctx.os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    for folder in [home + "/include" for home in homes if home] + _python_include_folders(ctx):
        if ctx.path(folder + "/cuda.h").exists:
            return folder
    return None

def _find_runtime_library(ctx, include_folder):
    """The static library of the CUDA runtime API, where the headers that belong to it are complete."""
    for header in ["cuda_runtime_api.h", "crt/host_defines.h"]:
        if not ctx.path(include_folder + "/" + header).exists:
            return None
    multiarch = ctx.execute([system_compiler(ctx), "-print-multiarch"]).stdout.strip()
    for folder in ["lib64", "lib", "lib/" + multiarch]:
        library = ctx.path(include_folder + "/../" + folder + "/libcudart_static.a")
        if library.exists:
            return library
    return None

def _cuda_repository_impl(ctx):
    folder = _find_include_folder(ctx)
    library = None
    if folder:
        ctx.symlink(folder, "include")
        library = _find_runtime_library(ctx, folder)
    else:
        # buildifier: disable=print
        print("no CUDA headers found (CUDA_HOME, /usr/local/cuda, nvidia-cuda-runtime): building without runtime/cuda")
    if library:
        ctx.symlink(library, "libcudart_static.a")
    ctx.file("BUILD", _BUILD)
    ctx.file("found.bzl", "CUDA_FOUND = {}\nCUDART_FOUND = {}\n".format(folder != None, library != None))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
