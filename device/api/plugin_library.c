/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plug-ins from shared libraries: two functions by the names of their symbols, as PyTorch's pluggable allocator has
 * them, as callbacks of lade_device_plugin.
 *
 *   lade_device_plugin.alloc --> library_alloc --> alloc(size, device, stream)
 *   lade_device_plugin.free  --> library_free  --> free(pointer, size, device, stream)
 *
 * L1  A plugin whose callbacks are those of this file has a library, which is loaded until the unload.
 * Locks: none.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/types.h>

#include "base/cancellation.h"
#include "base/error.h"
#include "base/library_functions.h"
#include "lade/device.h"

typedef void *(*alloc_function)(ssize_t bytes, int device, lade_stream stream);
typedef void (*free_function)(void *pointer, ssize_t bytes, int device, lade_stream stream);

typedef struct plugin_library {
  void *handle;
  alloc_function alloc;
  free_function free;
} plugin_library;

static lade_status library_alloc(void *user, size_t bytes, int device, lade_stream stream, void **out) {
  const plugin_library *library = user;
  void *pointer = library->alloc((ssize_t)bytes, device, stream);
  if (pointer == NULL) return LADE_ERR_OUT_OF_DEVICE_MEMORY;
  *out = pointer;
  return LADE_OK;
}

static lade_status library_free(void *user, void *pointer, size_t bytes, int device, lade_stream stream) {
  const plugin_library *library = user;
  library->free(pointer, (ssize_t)bytes, device, stream);
  return LADE_OK;
}

static const char call[] = "lade_device_plugin_load";

static lade_status symbol_find(void *handle, const char *field, const char *symbol, void *out_function) {
  if (ladei_library_function_find(handle, symbol, out_function)) return LADE_OK;
  return ladei_error_argument(call, field, "a symbol that the library has, not NULL", "\"%s\"", symbol);
}

static lade_status library_open(const char *path, const char *alloc_symbol, const char *free_symbol,
                                plugin_library *library) {
  library->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library->handle == NULL) {
    const char *why = dlerror();
    return ladei_error(LADE_ERR_IO, 0, "%s: %s cannot be loaded: %s", call, path,
                       why != NULL ? why : "no reason given");
  }
  lade_status status = symbol_find(library->handle, "alloc_symbol", alloc_symbol, &library->alloc);
  if (status == LADE_OK) status = symbol_find(library->handle, "free_symbol", free_symbol, &library->free);
  if (status != LADE_OK) (void)dlclose(library->handle);
  return status;
}

static lade_status plugin_load(const char *path, const char *alloc_symbol, const char *free_symbol,
                               lade_device_plugin *out) {
  plugin_library *library = calloc(1, sizeof *library);
  if (library == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: no memory", call);
  lade_status status = library_open(path, alloc_symbol, free_symbol, library);
  if (status != LADE_OK) {
    free(library);
    return status;
  }
  lade_device_plugin_init(out);
  out->user = library;
  out->alloc = library_alloc;
  out->free = library_free;
  return LADE_OK;
}

lade_status lade_device_plugin_load(const char *path, const char *alloc_symbol, const char *free_symbol,
                                    lade_device_plugin *out) {
  if (path == NULL || alloc_symbol == NULL || free_symbol == NULL || out == NULL) {
    return ladei_error_null(__func__, path == NULL           ? "path"
                                      : alloc_symbol == NULL ? "alloc_symbol"
                                      : free_symbol == NULL  ? "free_symbol"
                                                             : "out");
  }
  int cancellation = ladei_cancellation_hold();
  lade_status status = plugin_load(path, alloc_symbol, free_symbol, out);
  ladei_cancellation_resume(cancellation);
  return status;
}

void lade_device_plugin_unload(lade_device_plugin *plugin) {
  if (plugin == NULL || plugin->alloc != library_alloc) return; /* L1 */
  plugin_library *library = plugin->user;
  int cancellation = ladei_cancellation_hold();
  (void)dlclose(library->handle);
  free(library);
  lade_device_plugin_init(plugin);
  ladei_cancellation_resume(cancellation);
}
