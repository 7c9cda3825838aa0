// SPDX-License-Identifier: Apache-2.0
#include "observe.h"

#include "pipeline.h"

#include <cstring>

namespace lade_python {

namespace {

struct Format {
  const char *name;
  const char *suffix; // as `lade snapshot` has it; of several that fit, the longest counts
  uint32_t number;
};

const Format formats[] = {
    {"pickle", ".pickle", LADE_SNAPSHOT_PICKLE},
    {"json", ".json", LADE_SNAPSHOT_JSON},
    {"folded", ".folded", LADE_SNAPSHOT_FOLDED},
    {"folded-segments", ".segments.folded", LADE_SNAPSHOT_FOLDED_SEGMENTS},
    {"html", ".html", LADE_SNAPSHOT_HTML},
    {"pprof", ".pb.gz", LADE_SNAPSHOT_PPROF},
    {"trace", ".trace.json", LADE_SNAPSHOT_CHROME_TRACE},
    {"prometheus", ".prom", LADE_SNAPSHOT_PROMETHEUS},
    {"openmetrics", ".openmetrics", LADE_SNAPSHOT_OPENMETRICS},
};

bool ends_with(const std::string &text, const char *suffix) {
  const size_t length = std::strlen(suffix);
  return text.size() > length && text.compare(text.size() - length, length, suffix) == 0;
}

uint32_t format_of(const std::string &path, const std::optional<std::string> &name) {
  const Format *found = nullptr;
  std::string names, suffixes;
  for (const Format &format : formats) {
    const bool fits = name ? *name == format.name : ends_with(path, format.suffix);
    if (fits && (!found || std::strlen(format.suffix) > std::strlen(found->suffix))) found = &format;
    names += std::string(names.empty() ? "" : ", ") + format.name;
    suffixes += std::string(suffixes.empty() ? "" : ", ") + format.suffix;
  }
  if (found) return found->number;
  if (name) refuse("format is \"" + *name + "\"; expected one of " + names);
  refuse("path is \"" + path + "\", whose suffix means no format; expected one of " + suffixes +
         ", or format= as one of " + names);
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
