/* SPDX-License-Identifier: Apache-2.0 */
/* `lade settings`: see its --help. */
#ifndef LADE_TOOLS_SETTINGS_COMMAND_H
#define LADE_TOOLS_SETTINGS_COMMAND_H

/* argv[0] is "settings". Returns the exit status: 0, 1 (output or memory failed), 2 (usage). */
int command_settings(int argc, char **argv);

#endif /* LADE_TOOLS_SETTINGS_COMMAND_H */
