# SPDX-License-Identifier: Apache-2.0
"""Tests that are built, with all that they stand on, with the switch points of base/switch.h."""

load("//bazel:cc.bzl", "lade_cc_test")

_COPT = "//command_line_option:copt"

def _scheduled_impl(settings, _attributes):
    # Optimised whatever the build: such a test runs the same few calls some hundred thousand times.
    return {_COPT: settings[_COPT] + ["-O2", "-DLADEI_SCHEDULED"]}

_scheduled = transition(
    implementation = _scheduled_impl,
    inputs = [_COPT],
    outputs = [_COPT],
)

def _scheduled_test_impl(ctx):
    binary = ctx.attr.binary[0][DefaultInfo]
    program = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = program, target_file = binary.files_to_run.executable, is_executable = True)
    return [DefaultInfo(executable = program, runfiles = binary.default_runfiles)]

_scheduled_test = rule(
    implementation = _scheduled_test_impl,
    attrs = {
        "binary": attr.label(cfg = _scheduled, mandatory = True),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
    },
    test = True,
)

def lade_cc_scheduled_test(name, size = "small", tags = [], shard_count = None, **attributes):
    """A test in C (lade_cc_test) whose threads a scheduler moves: NAME runs it, NAME_program is what is built."""
    lade_cc_test(
        name = name + "_program",
        size = size,
        tags = tags + ["manual"],  # not a test by itself: without the switch points nothing would be scheduled
        **attributes
    )
    _scheduled_test(
        name = name,
        binary = name + "_program",
        size = size,
        shard_count = shard_count,
        tags = tags + ["scheduled"],
    )
