# SPDX-License-Identifier: Apache-2.0
"""What the package's build finds in a Python's environment, for CMake: prints one list.

usage: PYTHON find.py cuda     folder of cuda.h and of what it includes
       PYTHON find.py torch    folder of PyTorch, its version, CUDA's version or nothing

Nothing is imported: PyTorch's import takes seconds, and needs libraries. Prints nothing where it is not there.
"""

import importlib.util
import os
import re
import sys


def cuda():
    for folder in sys.path:
        include = os.path.join(folder, "nvidia", "cu13", "include")
        if all(os.path.exists(os.path.join(include, name)) for name in ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")):
            return [include]
    return []


def torch():
    found = importlib.util.find_spec("torch")
    folder = os.path.dirname(found.origin) if found and found.origin else None
    if folder is None or not os.path.exists(os.path.join(folder, "include", "c10", "core", "Allocator.h")):
        return []
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        text = file.read()
    values = (re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)", text, re.MULTILINE) for name in ("__version__", "cuda"))
    return [folder, *(value[1] if value else "" for value in values)]


print(";".join({"cuda": cuda, "torch": torch}[sys.argv[1]]()))
