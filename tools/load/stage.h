/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by `lade load` and `lade save`: a runtime, the devices named on the command line, a progress bar. */
#ifndef LADE_TOOLS_LOAD_STAGE_H
#define LADE_TOOLS_LOAD_STAGE_H

#include "lade/lade.h"

enum { STAGE_MAX_DEVICES = 64 };

typedef struct stage {
  const char *command;  /* "lade load", for messages */
  lade_config settings; /* of the three: the environment's, and the command line's */
  lade_pinned_options pinned;
  lade_device_options memory;
  lade_pipeline_options transfers;
  lade_runtime *runtime;
  int devices[STAGE_MAX_DEVICES]; /* ordinals */
  lade_pair *pairs[STAGE_MAX_DEVICES];
  lade_stream streams[STAGE_MAX_DEVICES];
  lade_load_target targets[STAGE_MAX_DEVICES];
  size_t count;
} stage;

/* Whether `text` is a list of devices: "0", "0,2", "cuda:1", "cuda:0,1", "all". */
bool stage_devices_are_good(const char *text);
#define STAGE_DEVICES_EXPECTED                                                                                         \
  "ordinals below 4096 with commas between them, none twice, or all, and perhaps a runtime and a colon before it"

/*
 * Opens the runtime (NULL: the best, unless `devices` names one) and a pair on each device, with the environment's
 * settings (lade_config_from_env), then those of `settings` ("": none). False: nothing is open; a message is on
 * standard error.
 */
bool stage_open(stage *s, const char *command, const char *runtime, const char *devices, const char *settings);
/* False with a message if anything is left. */
bool stage_close(stage *s);

/* Prints `what`, which failed, and lade_last_error(), on standard error. Always false. */
bool stage_failed(const stage *s, const char *what);

/* Seconds by the runtime's clock: virtual ones on "sim". */
double stage_seconds(const stage *s);
/* Whether time passes only in calls that wait: then there is no progress to show. */
bool stage_is_virtual(const stage *s);

/* One line on standard error that is drawn over itself; nothing where that is no terminal. */
typedef struct progress {
  const char *what;
  double began;
  bool shown;
} progress;

void progress_begin(progress *p, const stage *s, const char *what);
void progress_show(progress *p, const stage *s, uint64_t bytes_done, uint64_t bytes);
/* Takes the line away. */
void progress_end(progress *p);

#endif /* LADE_TOOLS_LOAD_STAGE_H */
