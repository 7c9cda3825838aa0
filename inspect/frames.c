/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect/frames.h"

#include <inttypes.h>
#include <stdio.h>

static const ladei_snapshot_module *module_of(const lade_snapshot *snapshot, const ladei_snapshot_frame *frame) {
  return frame->module < snapshot->modules.count ? &snapshot->modules.rows[frame->module] : NULL;
}

const char *ladei_inspect_frame_file(const lade_snapshot *snapshot, const ladei_snapshot_frame *frame) {
  const ladei_snapshot_module *module = module_of(snapshot, frame);
  if (frame->file != 0) return ladei_inspect_string(snapshot, frame->file);
  if (frame->address == 0) return "";
  return module != NULL && module->path != 0 ? ladei_inspect_string(snapshot, module->path) : "??";
}

const char *ladei_inspect_frame_function(const lade_snapshot *snapshot, const ladei_snapshot_frame *frame,
                                         char room[LADEI_INSPECT_FRAME_ROOM]) {
  const ladei_snapshot_module *module = module_of(snapshot, frame);
  if (frame->function != 0) return ladei_inspect_string(snapshot, frame->function);
  if (frame->address == 0) return "";
  if (module != NULL)
    snprintf(room, LADEI_INSPECT_FRAME_ROOM, "+0x%" PRIx64, frame->address - module->base);
  else
    snprintf(room, LADEI_INSPECT_FRAME_ROOM, "0x%" PRIx64, frame->address);
  return room;
}
