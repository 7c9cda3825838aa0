# SPDX-License-Identifier: Apache-2.0
"""The names that @rules_cc//cc:defs.bzl gives, forwarded to the rules built into Bazel."""

def cc_binary(**attributes):
    native.cc_binary(**attributes)

def cc_import(**attributes):
    native.cc_import(**attributes)

def cc_library(**attributes):
    native.cc_library(**attributes)

def cc_test(**attributes):
    native.cc_test(**attributes)

# Bazel's own generated C/C++ toolchain package loads these two.
def cc_toolchain(**attributes):
    native.cc_toolchain(**attributes)

def cc_toolchain_suite(**attributes):
    native.cc_toolchain_suite(**attributes)
