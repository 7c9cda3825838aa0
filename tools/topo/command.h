/* SPDX-License-Identifier: Apache-2.0 */
/* `lade topo`: see its --help. */
#ifndef LADE_TOOLS_TOPO_COMMAND_H
#define LADE_TOOLS_TOPO_COMMAND_H

/* argv[0] is "topo". Returns the exit status: 0, 1 (a runtime, a file or memory failed), 2 (usage). */
int command_topo(int argc, char **argv);

#endif /* LADE_TOOLS_TOPO_COMMAND_H */
