// SPDX-License-Identifier: Apache-2.0
#include "observe.h"

#include "device.h"
#include "pipeline.h"
#include "stacks.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>

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

std::string html_text(const std::string &text) {
  std::string out;
  for (const char c : text)
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  return out;
}

std::string figures_html(const std::string &head, const Figures &figures) {
  std::string out = "<table><thead><tr><th colspan=\"2\">" + html_text(head) + "</th></tr></thead><tbody>";
  for (const auto &figure : figures)
    out += std::string("<tr><td>") + figure.first + "</td><td>" + html_text(figure.second) + "</td></tr>";
  return out + "</tbody></table>";
}

namespace {

// The C++ object of lade.Snapshot. It has named all stacks, and needs nothing of the pool any more.
struct SnapshotObject {
  std::unique_ptr<lade_snapshot, decltype(&lade_snapshot_destroy)> snapshot{nullptr, &lade_snapshot_destroy};
};

void save(const SnapshotObject &self, nb::handle path, const std::optional<std::string> &format) {
  const std::string name = path_from(path, "path");
  const uint32_t number = format_of(name, format);
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_snapshot_save(self.snapshot.get(), number, nullptr, name.c_str());
  }
  check(status);
}

std::string page(const SnapshotObject &self) {
  std::string out;
  const lade_writer writer = [](void *user, const void *data, size_t bytes) {
    try {
      static_cast<std::string *>(user)->append(static_cast<const char *>(data), bytes);
    } catch (const std::bad_alloc &) {
      return LADE_ERR_OUT_OF_HOST_MEMORY;
    }
    return LADE_OK;
  };
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_snapshot_write(self.snapshot.get(), LADE_SNAPSHOT_HTML, nullptr, writer, &out);
  }
  check(status);
  return out;
}

// The C++ object of lade.Publisher: with owners, so that what it publishes outlives it.
struct PublisherObject {
  std::vector<Owner<Pool>> pools;
  std::vector<Owner<Allocator>> allocators;
  std::unique_ptr<lade_publisher, decltype(&lade_publisher_destroy)> publisher{nullptr, &lade_publisher_destroy};
  PublisherObject() = default;
  PublisherObject(PublisherObject &&) = default;

  void close() {
    if (exiting()) (void)publisher.release(); // R3
    auto gone = std::move(publisher);         // another thread finds it closed from now on
    auto gone_pools = std::move(pools);
    auto gone_allocators = std::move(allocators);
    if (gone) {
      Unlocked unlocked;
      gone.reset();
    }
    for (auto &pool : gone_pools) let_go(pool);
    for (auto &allocator : gone_allocators) let_go(allocator);
  }
  ~PublisherObject() { close(); }
};

PublisherObject publish(nb::args objects, nb::handle interval, bool control) {
  PublisherObject self;
  std::vector<lade_part> parts;
  for (nb::handle object : objects) {
    PoolObject *pool = nullptr;
    AllocatorObject *allocator = nullptr;
    if (nb::try_cast(object, pool) && pool) {
      self.pools.push_back(pool->pool); // counts before it asks (A3 of arena.h)
      parts.push_back(lade_part_pinned(self.pools.back()->get()));
    } else if (nb::try_cast(object, allocator) && allocator) {
      self.allocators.push_back(allocator->allocator);
      parts.push_back(lade_part_device(self.allocators.back()->get()));
    } else {
      refuse_type("parts", object, "lade.PinnedPool and lade.DeviceAllocator objects");
    }
  }
  if (parts.empty()) refuse("parts is empty; expected pools and allocators");
  lade_publish_options options;
  lade_publish_options_init(&options);
  if (control) options.flags |= LADE_PUBLISH_CONTROL;
  const uint64_t interval_ns = timeout_from(interval, "interval");
  if (interval_ns < 10 * 1000 * 1000 || interval_ns > uint64_t{UINT32_MAX} * 1000 * 1000)
    refuse("interval is " + repr_text(interval) + "; expected seconds, 0.01 or more");
  options.interval_ms = static_cast<uint32_t>(interval_ns / (1000 * 1000));
  lade_publisher *publisher = nullptr;
  lade_status status;
  {
    Unlocked unlocked;
    status = lade_publish(parts.data(), parts.size(), &options, &publisher);
  }
  check(status);
  self.publisher.reset(publisher);
  return self;
}

} // namespace

nb::object snapshot_of(const lade_part &part, nb::handle path, const std::optional<std::string> &format) {
  lade_snapshot *snapshot = nullptr;
  lade_status status;
  if (!path.is_none()) (void)format_of(path_from(path, "path"), format);
  if (path.is_none() && format) refuse("format is \"" + *format + "\"; expected None without a path");
  {
    Unlocked unlocked;
    status = lade_snapshot_take(&part, 1, nullptr, &snapshot);
  }
  check(status);
  SnapshotObject self;
  self.snapshot.reset(snapshot);
  if (path.is_none()) return nb::cast(std::move(self));
  save(self, path, format);
  return nb::none();
}

void bind_observe(nb::module_ &module) {
  nb::class_<SnapshotObject>(module, "Snapshot",
                             "A picture of memory that PinnedPool.snapshot() and DeviceAllocator.snapshot() took. A "
                             "notebook shows it as a page.")
      .def("save", &save, nb::arg("path"), nb::arg("format").none() = nb::none(),
           nb::sig("def save(self, path: str | os.PathLike[str], format: str | None = None) -> None"),
           "Write it to a file. As DeviceAllocator.snapshot().")
      .def("html", &page, "The page that a browser shows, which needs no network.")
      .def(
          "_repr_html_",
          [](const SnapshotObject &self) {
            return "<iframe style=\"width:100%;height:40em;border:0\" srcdoc=\"" + html_text(page(self)) +
                   "\"></iframe>";
          });
  Locked<PublisherObject>(module, "Publisher", "Counters that other processes read: publish() gives it.")
      .def(
          "update",
          [](const PublisherObject &self) {
            if (!self.publisher) refuse("the Publisher is closed");
            check(lade_publish_update(self.publisher.get()));
          },
          "Refresh the counters now.\n\nRaises\n------\nBusyError\n    The publisher's thread is just doing so.")
      .def("close", &PublisherObject::close, "Withdraw the counters.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); }, nb::sig("def __enter__(self) -> Publisher"))
      .def(
          "__exit__", [](PublisherObject &self, nb::args) { self.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  module.def(
      "publish", &publish, nb::arg("parts"), nb::kw_only(), nb::arg("interval") = 1.0, nb::arg("control") = false,
      nb::sig("def publish(*parts: PinnedPool | DeviceAllocator, interval: float = 1.0, control: bool = False) -> "
              "Publisher"),
      "Let other processes of the same user read the counters of pools and allocators: ``lade top``, ``lade stats "
      "PID``.\n\n"
      "The objects cannot be closed before the publisher is.\n\n"
      "Parameters\n----------\nparts : PinnedPool, DeviceAllocator\n"
      "interval : float\n    Seconds between refreshes, by a thread of the library.\n"
      "control : bool\n    These processes may also take snapshots, and turn histories on and off.\n\n"
      "Returns\n-------\nPublisher\n    Withdrawn by close(), by the end of a ``with``, and with its last reference.");
}

lade_history_options history_options(std::optional<uint64_t> max_entries, bool stacks) {
  lade_history_options options;
  lade_history_options_init(&options);
  options.enabled = max_entries.has_value();
  options.max_entries = max_entries.value_or(0);
  options.level = LADE_CONTEXT_NEVER;
  if (stacks && max_entries) stacks_add(options);
  return options;
}

} // namespace lade_python
