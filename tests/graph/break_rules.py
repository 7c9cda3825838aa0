#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the sources of graph trees once more, with a switch at each rule below: while lade_graph_broken_rule is its number, the rule
is left out. The model checker must notice every one (broken_rules_test.c).

usage: break_rules.py FOLDER SOURCE...      FOLDER/NAME.c for each SOURCE

A text that is not there exactly once is an error: who changes a rule changes it here as well.
"""

import os
import sys

# (file, name, the text, what it becomes; BROKEN is true while the rule is broken)
RULES = [
    ("run.c", "what a path leaves is lost", "if (storage == NULL || storage->lost) return;",
     "if (BROKEN || storage == NULL || storage->lost) return;"),
    ("run.c", "inputs are carried out of a path that ends",
     "run->call.inputs[i].address = (uint64_t)(uintptr_t)tree->carried_blocks[i];",
     "if (!BROKEN) run->call.inputs[i].address = (uint64_t)(uintptr_t)tree->carried_blocks[i];"),
    ("match.c", "form matches", "if (!all_fit(call, node, form_fits))", "if (!BROKEN && !all_fit(call, node, form_fits))"),
    ("match.c", "managed inputs match", "if (!all_fit(call, node, managed_fits))",
     "if (!BROKEN && !all_fit(call, node, managed_fits))"),
    ("match.c", "static inputs match", "if (!core->settings.fixed_statics && !all_fit(call, node, static_fits))",
     "if (!BROKEN && !core->settings.fixed_statics && !all_fit(call, node, static_fits))"),
    ("match.c", "what was dead before is dead", "if (!dead_before_fits(&core->path, &node->dead_before))",
     "if (!BROKEN && !dead_before_fits(&core->path, &node->dead_before))"),
    ("match.c", "what died in it dies", "if (!dead_after_fits(&core->path, &node->dead_after))",
     "if (!BROKEN && !dead_after_fits(&core->path, &node->dead_after))"),
    ("decide.c", "mutations of foreign inputs are eager",
     "if ((input->flags & LADE_GRAPH_MUTATED) != 0 && !harmless)",
     "if (!BROKEN && (input->flags & LADE_GRAPH_MUTATED) != 0 && !harmless)"),
    ("decide.c", "behind replays the books are restored",
     "q->state == LADE_GRAPH_STATE_EXECUTION && (did == LADE_GRAPH_DID_WARMUP || did == LADE_GRAPH_DID_RECORD);",
     "!BROKEN && q->state == LADE_GRAPH_STATE_EXECUTION && (did == LADE_GRAPH_DID_WARMUP || did == LADE_GRAPH_DID_RECORD);"),
    ("decide.c", "warm-ups follow warm-ups", "q->state == LADE_GRAPH_STATE_WARMUP) && decided",
     "(!BROKEN && q->state == LADE_GRAPH_STATE_WARMUP)) && decided"),
    ("pool.c", "a restore frees what has died since", "    else\n      ladei_tree_block_free(tree, address);",
     "    else if (!BROKEN)\n      ladei_tree_block_free(tree, address);"),
    ("order.c", "a run waits for the one before", "else if (status == LADE_OK && tree->last.context != 0)",
     "else if (!BROKEN && status == LADE_OK && tree->last.context != 0)"),
    ("run.c", "warm-ups wait for the caller's stream",
     "LADEI_TRY(ladei_tree_order_between(tree, &run->stream, &tree->stream));",
     "if (!BROKEN) LADEI_TRY(ladei_tree_order_between(tree, &run->stream, &tree->stream));"),
    ("run.c", "the caller's stream waits for warm-ups",
     "lade_status joined = ladei_tree_order_between(tree, &tree->stream, &run->stream);",
     "lade_status joined = BROKEN ? LADE_OK : ladei_tree_order_between(tree, &tree->stream, &run->stream);"),
    ("run.c", "copied inputs are copied", "if (input->class != LADE_GRAPH_CLASS_COPIED) continue;",
     "if (BROKEN || input->class != LADE_GRAPH_CLASS_COPIED) continue;"),
    ("body.c", "only taken inputs are given up", "if (!context->run->call.inputs[index].taken || own->given_up) return;",
     "if (own->given_up || context->run->call.inputs[index].slot == NULL) return;\n"
     "  if (!BROKEN && !context->run->call.inputs[index].taken) return;"),
    ("record.c", "a recording that fails gives back what it took", "  ladei_tree_context_takes_return(context);\n  if (run->end_open && end_stands) {",
     "  if (!BROKEN) ladei_tree_context_takes_return(context);\n  if (run->end_open && end_stands) {"),
]


def main():
    folder, *sources = sys.argv[1:]
    texts = {os.path.basename(source): open(source, encoding="utf-8").read() for source in sources}
    for number, (name, rule, text, broken) in enumerate(RULES, 1):
        if texts[name].count(text) != 1:
            sys.exit(f"break_rules.py: {name}, \"{rule}\": the text is there {texts[name].count(text)} times: {text}")
        texts[name] = texts[name].replace(text, broken.replace("BROKEN", f"(lade_graph_broken_rule == {number})"))
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write("extern int lade_graph_broken_rule;\n" + text)
    with open(os.path.join(folder, "rules.c"), "w", encoding="utf-8") as file:
        file.write("#include <stddef.h>\nextern int lade_graph_broken_rule;\nint lade_graph_broken_rule;\n")
        file.write("extern const char *const lade_graph_rules[];\nconst char *const lade_graph_rules[] = {\n")
        file.writelines(f'  "{rule}",\n' for _, rule, _, _ in RULES)
        file.write("  NULL};\n")


if __name__ == "__main__":
    main()
