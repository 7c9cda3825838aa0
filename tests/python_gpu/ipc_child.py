# SPDX-License-Identifier: Apache-2.0
"""What test_numba.py's other process does with an array of the first."""


def total(handle):
    with handle as array:
        return int(array.copy_to_host().sum())
