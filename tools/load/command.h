/* SPDX-License-Identifier: Apache-2.0 */
/* `lade load` */
#ifndef LADE_TOOLS_LOAD_COMMAND_H
#define LADE_TOOLS_LOAD_COMMAND_H

int command_load(int argc, char **argv);

#endif /* LADE_TOOLS_LOAD_COMMAND_H */
