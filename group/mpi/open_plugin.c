/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the plug-in for MPI. It stays open: MPI has threads, and code that runs at exit. */
#include "group/mpi/open_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/library_functions.h"

/* RTLD_GLOBAL: Open MPI opens parts of itself, which look for its symbols there. */
static void *library_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE); }

/* Looks beside the file of this code, in the lib folder beside it, and in the places of the dynamic linker. */
static void *plugin_find(void) {
  static const char *const places[] = {"/", "/../lib/"};
  Dl_info info;
  char path[4096];
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    if (dladdr(places, &info) == 0 || info.dli_fname == NULL) break;
    const char *slash = strrchr(info.dli_fname, '/');
    int folder = slash == NULL ? 1 : (int)(slash - info.dli_fname);
    int length = snprintf(path, sizeof path, "%.*s%s" LADEI_MPI_PLUGIN_FILE, folder,
                          slash == NULL ? "." : info.dli_fname, places[i]);
    void *library = length > 0 && (size_t)length < sizeof path ? library_open(path) : NULL;
    if (library != NULL) return library;
  }
  return library_open(LADEI_MPI_PLUGIN_FILE);
}

static lade_status table_find(const char *path, const ladei_mpi_plugin **out) {
  void *library = path != NULL ? library_open(path) : plugin_find();
  if (library == NULL)
    return ladei_error(LADE_ERR_UNSUPPORTED, 0, "MPI: %s; it is built with lade where cmake finds an MPI", dlerror());
  ladei_mpi_plugin_get_function get;
  bool has = ladei_library_function_find(library, LADEI_MPI_PLUGIN_SYMBOL, &get);
  const ladei_mpi_plugin *plugin = has ? get() : NULL;
  if (plugin != NULL && plugin->version == LADEI_MPI_PLUGIN_VERSION) {
    *out = plugin;
    return LADE_OK;
  }
  return ladei_error(LADE_ERR_UNSUPPORTED, 0, "MPI: %s is the plug-in of another version of lade",
                     path != NULL ? path : LADEI_MPI_PLUGIN_FILE);
}

lade_status ladei_mpi_plugin_open(const char *path, bool may_initialize, const ladei_mpi_plugin **out) {
  char text[300] = "";
  const ladei_mpi_plugin *plugin = NULL;
  LADEI_TRY(table_find(path, &plugin));
  int code = plugin->begin(may_initialize, text, sizeof text);
  if (code != 0) return ladei_error(LADE_ERR_UNSUPPORTED, code, "MPI: %s", text);
  *out = plugin;
  return LADE_OK;
}
