# SPDX-License-Identifier: Apache-2.0
"""``python -m lade``, and the command ``lade``: the program in this package takes the place of Python."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs the command ``lade`` with this process' arguments."""
    os.execv(os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "lade"), ["lade", *sys.argv[1:]])


if __name__ == "__main__":
    main()
