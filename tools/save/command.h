/* SPDX-License-Identifier: Apache-2.0 */
/* `lade save` */
#ifndef LADE_TOOLS_SAVE_COMMAND_H
#define LADE_TOOLS_SAVE_COMMAND_H

int command_save(int argc, char **argv);

#endif /* LADE_TOOLS_SAVE_COMMAND_H */
