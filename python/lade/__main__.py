# SPDX-License-Identifier: Apache-2.0
"""``python -m lade``, and the command ``lade``: the program in this package takes the place of Python."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command ``lade`` with this process' arguments. The ``python3`` that it asks and runs is the one of this environment."""
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    os.execv(os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lade"), ["lade", *sys.argv[1:]])


if __name__ == "__main__":
    main()
