# SPDX-License-Identifier: Apache-2.0
"""One static archive holding everything of this project that a library needs.

Bazel gives each cc_library an archive of its own. A user without Bazel wants a single file to name on the link line.
System libraries stay out of it and are linked as for any program.
"""

def _archives_of(linking_context, workspace_name):
    """Position-independent archives of the libraries of one workspace: lade's own, also where it is an external one."""
    archives = []
    for linker_input in linking_context.linker_inputs.to_list():
        if linker_input.owner.workspace_name != workspace_name:
            continue
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if archive:
                archives.append(archive)
    return archives

def _merged_archive_impl(ctx):
    archives = _archives_of(ctx.attr.library[CcInfo].linking_context, ctx.label.workspace_name)
    script = ctx.actions.declare_file(ctx.label.name + ".mri")
    ctx.actions.write(script, "\n".join(
        ["create " + ctx.outputs.archive.path] +
        ["addlib " + archive.path for archive in archives] +
        ["save", "end", ""],
    ))
    ctx.actions.run_shell(
        outputs = [ctx.outputs.archive],
        inputs = archives + [script],
        command = "rm -f {archive} && ar -M < {script} && ranlib -D {archive}".format(
            archive = ctx.outputs.archive.path,
            script = script.path,
        ),
        mnemonic = "MergeArchives",
        use_default_shell_env = True,
    )

merged_archive = rule(
    implementation = _merged_archive_impl,
    attrs = {
        "archive": attr.output(mandatory = True),
        "library": attr.label(
            mandatory = True,
            providers = [CcInfo],
        ),
    },
)
