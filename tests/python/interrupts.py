# SPDX-License-Identifier: Apache-2.0
"""Interrupts a call at every place where CPython runs a signal's handler: where a function begins, and where a call has returned."""

import itertools
import sys

_GENERATOR = 0x20  # inspect.CO_GENERATOR


def _is_within(frame, names):
    while names and frame is not None and frame.f_code.co_name not in names:
        frame = frame.f_back
    return bool(names) and frame is not None


def interrupted(call, number, files, finalizers=()):
    """Raises KeyboardInterrupt at the place of that number in code of these files. Whether there was one.

    Left out are functions that finalizers call, by name, and what these call: Python drops what they raise.
    """
    left = itertools.count(number, -1)

    def profile(frame, event, _):
        # A function that returns: the handler runs in its caller. A generator that yields has one in C, which returns next; what a
        # generator that is let go of raises is lost.
        place = frame.f_back if event == "return" else frame
        is_left_out = frame.f_code.co_flags & _GENERATOR and (event == "return" or frame.f_code.co_name == "<genexpr>")
        if event == "c_call" or is_left_out or place.f_code.co_filename not in files or _is_within(frame, finalizers):
            return
        if next(left) == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def everywhere(call, files, check, prepare=lambda: None, finalizers=()):
    """Interrupts the call at each place, then checks. Returns the number of places."""
    for number in itertools.count():
        prepare()
        was = interrupted(call, number, files, finalizers)
        check(number)
        if not was:
            return number
