# SPDX-License-Identifier: Apache-2.0
"""A boolean command line flag, e.g. --//bazel:gpu=true."""

BoolFlagInfo = provider(fields = ["value"])

def _bool_flag_impl(ctx):
    return BoolFlagInfo(value = ctx.build_setting_value)

bool_flag = rule(
    implementation = _bool_flag_impl,
    build_setting = config.bool(flag = True),
)
