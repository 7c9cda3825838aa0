# SPDX-License-Identifier: Apache-2.0
"""@cuda: the CUDA toolkit's headers, wherever they are; empty where there are none.

Looked for in this order: $CUDA_HOME, /usr/local/cuda, the Python packages nvidia-cuda-runtime (its layout since CUDA 13)
and nvidia-cuda-runtime-cu12. Only headers are used: the driver is opened at run time.

    load("@cuda//:found.bzl", "CUDA_FOUND")   # False: @cuda//:headers has no header
"""

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

def _cuda_repository_impl(ctx):
    folder = _find_include_folder(ctx)
    if folder:
        ctx.symlink(folder, "include")
    else:
        # buildifier: disable=print
        print("no CUDA headers found (CUDA_HOME, /usr/local/cuda, nvidia-cuda-runtime): building without runtime/cuda")
    ctx.file("BUILD", _BUILD)
    ctx.file("found.bzl", "CUDA_FOUND = {}\n".format(folder != None))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
