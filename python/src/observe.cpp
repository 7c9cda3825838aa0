// SPDX-License-Identifier: Apache-2.0
#include "observe.h"

#include "pipeline.h"

#include <cstring>

namespace lade_python {

namespace {

struct Format {
  const char *name;
  const char *suffix; // "": no suffix means it
  uint32_t number;
};

const Format formats[] = {
    {"pickle", ".pickle", LADE_SNAPSHOT_PICKLE},
    {"json", ".json", LADE_SNAPSHOT_JSON},
    {"folded", ".folded", LADE_SNAPSHOT_FOLDED},
    {"folded-segments", "", LADE_SNAPSHOT_FOLDED_SEGMENTS},
    {"svg", ".svg", LADE_SNAPSHOT_SVG},
    {"svg-segments", "", LADE_SNAPSHOT_SVG_SEGMENTS},
    {"html", ".html", LADE_SNAPSHOT_HTML},
    {"pprof", ".pb.gz", LADE_SNAPSHOT_PPROF},
    {"trace", ".trace", LADE_SNAPSHOT_CHROME_TRACE},
    {"prometheus", ".prom", LADE_SNAPSHOT_PROMETHEUS},
    {"openmetrics", "", LADE_SNAPSHOT_OPENMETRICS},
    {"map", ".map", LADE_SNAPSHOT_MAP},
};

bool ends_with(const std::string &text, const char *suffix) {
  const size_t length = std::strlen(suffix);
  return length > 0 && text.size() > length && text.compare(text.size() - length, length, suffix) == 0;
}

uint32_t format_of(const std::string &path, const std::optional<std::string> &name) {
  std::string known;
  for (const Format &format : formats) {
    if (name ? *name == format.name : ends_with(path, format.suffix)) return format.number;
    known += std::string(known.empty() ? "" : ", ") + format.name;
  }
  if (name) refuse("format is \"" + *name + "\"; expected one of " + known);
  refuse("path is \"" + path +
         "\", whose suffix means no format; expected .pickle, .json, .html, .svg, .folded, .pb.gz, .trace, .prom "
         "or .map, or format= as one of " +
         known);
}

} // namespace

void snapshot_save(const lade_part &part, nb::handle path, const std::optional<std::string> &format) {
  const std::string name = path_from(path, "path");
  const uint32_t number = format_of(name, format);
  lade_snapshot *snapshot = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_snapshot_take(&part, 1, nullptr, &snapshot);
    if (status == LADE_OK) status = lade_snapshot_save(snapshot, number, nullptr, name.c_str());
  }
  if (status != LADE_OK) set_error(status);
  lade_snapshot_destroy(snapshot);
  if (status != LADE_OK) throw nb::python_error();
}

lade_history_options history_options(std::optional<uint64_t> max_entries) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = max_entries.has_value();
  options.max_entries = max_entries.value_or(0);
  options.level = LADE_CONTEXT_NEVER;
  return options;
}

} // namespace lade_python
