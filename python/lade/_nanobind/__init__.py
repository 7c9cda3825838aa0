# SPDX-License-Identifier: Apache-2.0
"""nanobind's backend: what the extension calls, built for each minor version of Python apart."""

import sys

if not hasattr(sys.modules["lade"], "_look_beside"):  # defined before the extension is imported
    raise ImportError(
        f"{sys.modules['lade'].__file__} is not of this package, which is liblade: another distribution named lade has replaced it."
        " Run `pip uninstall lade liblade`, then install liblade again",
        name="lade",
    )

if "t" not in sys.abiflags:  # else nanobind is inside the extension, which asks for the check above alone
    try:
        from lade._nanobind._nb_backend_v1 import fill
    except ModuleNotFoundError as error:
        raise ImportError(
            f"this package of lade is not built for {sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}: "
            "a newer one may be, and `pip install ./python` in a clone of lade builds it for the Python that runs"
        ) from error

__all__ = ["fill"]
