/* SPDX-License-Identifier: Apache-2.0 */
/* A summary of what is alive, for LADE_STATS. */
#ifndef LADE_CONFIG_STATS_H
#define LADE_CONFIG_STATS_H

/* Writes a line for each living pool, allocator and pipeline, and one with their number. */
void ladei_stats_summary_write(int fd);

#endif /* LADE_CONFIG_STATS_H */
