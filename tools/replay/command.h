/* SPDX-License-Identifier: Apache-2.0 */
/* `lade replay`: see its --help. */
#ifndef LADE_TOOLS_REPLAY_COMMAND_H
#define LADE_TOOLS_REPLAY_COMMAND_H

/* argv[0] is "replay". Returns the exit status: 0, 1 (reading, writing or memory failed), 2 (bad trace or usage). */
int command_replay(int argc, char **argv);

#endif /* LADE_TOOLS_REPLAY_COMMAND_H */
