/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of addresses.
 *
 * libdw gets the file that was loaded, its address at that time, and the debug information on this machine: the
 * callbacks below are those of elfutils that ask no server. A file whose build id has changed is not used.
 *
 * The types and prototypes are those of elfutils 0.158 and later (soname libdw.so.1), as far as they are needed: the
 * library is opened at run time, its headers are not used.
 *
 * Locks: `symbols_lock`, a plain mutex and not one of base/lock.h: one thread at a time uses libdw, which reads files
 * meanwhile. Frames are shown without it: the names in them live as long as the module.
 */
#include "history/symbols.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/library_functions.h"

/* ---- libdw ------------------------------------------------------------------------------------------------------- */

typedef struct dw_die {
  void *address, *unit, *abbreviation;
  long padding;
} dw_die;

typedef struct dw_attribute {
  unsigned code, form;
  unsigned char *value;
  void *unit;
} dw_attribute;

typedef struct dw_callbacks {
  void *find_elf, *find_debuginfo, *section_address;
  char **debuginfo_path;
} dw_callbacks;

enum { TAG_INLINED = 0x1d, TAG_FUNCTION = 0x2e, CALL_FILE = 0x58, CALL_LINE = 0x59, LINKAGE_NAME = 0x6e };

#define DW_FUNCTIONS(X)                                                                                                \
  X(void *, dwfl_begin, (const dw_callbacks *))                                                                        \
  X(void, dwfl_end, (void *))                                                                                          \
  X(void *, dwfl_report_elf, (void *, const char *, const char *, int, uint64_t, bool))                                \
  X(int, dwfl_report_end, (void *, void *, void *))                                                                    \
  X(int, dwfl_module_build_id, (void *, const unsigned char **, uint64_t *))                                           \
  X(void *, dwfl_module_getelf, (void *, uint64_t *))                                                                  \
  X(const char *, dwfl_module_addrinfo, (void *, uint64_t, uint64_t *, void *, uint32_t *, void **, uint64_t *))       \
  X(dw_die *, dwfl_module_addrdie, (void *, uint64_t, uint64_t *))                                                     \
  X(void *, dwfl_module_getdwarf, (void *, uint64_t *))                                                                \
  X(dw_die *, dwfl_module_nextcu, (void *, dw_die *, uint64_t *))                                                      \
  X(int, dwarf_getaranges, (void *, void **, size_t *))                                                                \
  X(int, dwarf_haspc, (dw_die *, uint64_t))                                                                            \
  X(void *, dwarf_getsrc_die, (dw_die *, uint64_t))                                                                    \
  X(int, dwarf_lineno, (void *, int *))                                                                                \
  X(const char *, dwarf_linesrc, (void *, uint64_t *, uint64_t *))                                                     \
  X(int, dwarf_getscopes, (dw_die *, uint64_t, dw_die **))                                                             \
  X(int, dwarf_getscopes_die, (dw_die *, dw_die **))                                                                   \
  X(uint64_t, dwarf_dieoffset, (dw_die *))                                                                             \
  X(dw_die *, dwarf_offdie, (void *, uint64_t, dw_die *))                                                              \
  X(int, dwarf_tag, (dw_die *))                                                                                        \
  X(const char *, dwarf_diename, (dw_die *))                                                                           \
  X(dw_attribute *, dwarf_attr, (dw_die *, unsigned, dw_attribute *))                                                  \
  X(dw_attribute *, dwarf_attr_integrate, (dw_die *, unsigned, dw_attribute *))                                        \
  X(const char *, dwarf_formstring, (dw_attribute *))                                                                  \
  X(int, dwarf_formudata, (dw_attribute *, uint64_t *))                                                                \
  X(int, dwarf_getsrcfiles, (dw_die *, void **, size_t *))                                                             \
  X(const char *, dwarf_filesrc, (void *, size_t, uint64_t *, uint64_t *))

typedef struct libdw {
#define DW_MEMBER(result, name, arguments) result(*name) arguments;
  DW_FUNCTIONS(DW_MEMBER)
#undef DW_MEMBER
  dw_callbacks callbacks;
} libdw;

static pthread_mutex_t symbols_lock = PTHREAD_MUTEX_INITIALIZER;

/* NULL: libdw is not installed. Lock held. */
static const libdw *libdw_get(void) {
  static const ladei_library_function names[] = {
#define DW_NAME(result, name, arguments) LADEI_LIBRARY_FUNCTION(libdw, name, name),
      DW_FUNCTIONS(DW_NAME)
#undef DW_NAME
          LADEI_LIBRARY_FUNCTION(libdw, callbacks.find_elf, dwfl_build_id_find_elf),
      LADEI_LIBRARY_FUNCTION(libdw, callbacks.find_debuginfo, dwfl_build_id_find_debuginfo)};
  static libdw functions;
  static bool tried, found;
  if (tried) return found ? &functions : NULL;
  tried = true;
  void *library = dlopen("libdw.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return NULL;
  found = ladei_library_functions_find(library, names, sizeof names / sizeof names[0], &functions) == NULL;
  return found ? &functions : NULL;
}

/* Data kept for a module. */
typedef struct symbols {
  void *session, *module;
} symbols;

static bool build_id_matches(const libdw *dw, void *module, const char *expected) {
  const unsigned char *id = NULL;
  uint64_t address;
  char hex[3];
  int bytes = dw->dwfl_module_build_id(module, &id, &address);
  if (expected[0] == '\0') return true;
  if (bytes <= 0 || strlen(expected) != 2 * (size_t)bytes) return false;
  for (int i = 0; i < bytes; i++) {
    snprintf(hex, sizeof hex, "%02x", id[i]);
    if (memcmp(hex, expected + 2 * i, 2) != 0) return false;
  }
  return true;
}

static symbols *symbols_open(const libdw *dw, const ladei_module *module) {
  uint64_t bias;
  struct stat file;
  if (stat(module->path, &file) != 0 || !S_ISREG(file.st_mode)) return NULL; /* other kinds may block the thread */
  symbols *own = calloc(1, sizeof *own);
  if (own == NULL) return NULL;
  own->session = dw->dwfl_begin(&dw->callbacks);
  if (own->session != NULL) own->module = dw->dwfl_report_elf(own->session, "", module->path, -1, module->base, true);
  bool usable = own->module != NULL && dw->dwfl_report_end(own->session, NULL, NULL) == 0 &&
                dw->dwfl_module_getelf(own->module, &bias) != NULL &&
                build_id_matches(dw, own->module, module->build_id);
  if (usable) return own;
  if (own->session != NULL) dw->dwfl_end(own->session);
  free(own);
  return NULL;
}

/* NULL: there are no names. Lock held. */
static symbols *symbols_of(const libdw *dw, ladei_module *module) {
  if (module->symbols_tried) return module->symbols;
  module->symbols_tried = true;
  module->symbols = symbols_open(dw, module);
  return module->symbols;
}

void ladei_symbols_close(ladei_module *module) {
  symbols *own = module->symbols;
  if (own == NULL) return;
  (void)pthread_mutex_lock(&symbols_lock);
  libdw_get()->dwfl_end(own->session);
  (void)pthread_mutex_unlock(&symbols_lock);
  free(own);
}

/* ---- Frames ------------------------------------------------------------------------------------------------------ */

static bool tag_is_function(int tag) { return tag == TAG_INLINED || tag == TAG_FUNCTION; }

static const char *name_of(const libdw *dw, dw_die *die) {
  dw_attribute attribute;
  const char *name = dw->dwarf_formstring(dw->dwarf_attr_integrate(die, LINKAGE_NAME, &attribute));
  return name != NULL ? name : dw->dwarf_diename(die);
}

/* The number in an attribute of a call; 0: none. */
static uint64_t number_of(const libdw *dw, dw_die *die, unsigned code) {
  dw_attribute attribute;
  uint64_t value = 0;
  return dw->dwarf_formudata(dw->dwarf_attr(die, code, &attribute), &value) == 0 ? value : 0;
}

/* The scopes around an address, innermost first, each followed by its enclosing one; the caller frees them. */
static int scopes_find(const libdw *dw, const symbols *own, dw_die *unit, uint64_t address, dw_die **out) {
  dw_die *found = NULL, innermost;
  uint64_t bias;
  *out = NULL;
  if (dw->dwarf_getscopes(unit, address, &found) <= 0) return 0;
  bool there = dw->dwarf_offdie(dw->dwfl_module_getdwarf(own->module, &bias), dw->dwarf_dieoffset(&found[0]),
                                &innermost) != NULL;
  free(found);
  return there ? dw->dwarf_getscopes_die(&innermost, out) : 0;
}

/* The frames at one address. */
enum { FRAMES_MOST = 64 };
typedef struct frame_list {
  lade_stack_frame frames[FRAMES_MOST];
  size_t count;
} frame_list;

static void frame_add(frame_list *list, const lade_stack_frame *frame) {
  if (list->count < FRAMES_MOST) list->frames[list->count++] = *frame;
}

/* Lists inlined frames. The last one, of the function that was not inlined, stays in `frame`. */
static void inlined_list(const libdw *dw, dw_die *unit, dw_die *scopes, int count, lade_stack_frame *frame,
                         frame_list *out) {
  void *files = NULL;
  size_t file_count = 0;
  bool known = dw->dwarf_getsrcfiles(unit, &files, &file_count) == 0;
  for (int i = 0; i < count; i++) {
    int tag = dw->dwarf_tag(&scopes[i]);
    if (!tag_is_function(tag)) continue;
    const char *name = name_of(dw, &scopes[i]);
    if (name != NULL) frame->function = name;
    if (tag == TAG_FUNCTION) break;
    frame->is_inlined = 1;
    frame_add(out, frame);
    uint64_t file = number_of(dw, &scopes[i], CALL_FILE);
    frame->is_inlined = 0;
    frame->function = NULL;
    frame->file = known && file < file_count ? dw->dwarf_filesrc(files, file, NULL, NULL) : NULL;
    frame->line = (uint32_t)number_of(dw, &scopes[i], CALL_LINE);
  }
}

/* The unit of an address. In a file without .debug_aranges, which clang does not write, libdw before 0.191 finds none. */
static dw_die *unit_find(const libdw *dw, const symbols *own, uint64_t address, uint64_t *bias) {
  void *ranges;
  size_t count;
  dw_die *unit = dw->dwfl_module_addrdie(own->module, address, bias);
  void *dwarf = dw->dwfl_module_getdwarf(own->module, bias);
  if (unit != NULL || dwarf == NULL || dw->dwarf_getaranges(dwarf, &ranges, &count) != 0 || count > 0) return unit;
  do {
    unit = dw->dwfl_module_nextcu(own->module, unit, bias);
  } while (unit != NULL && dw->dwarf_haspc(unit, address - *bias) <= 0);
  return unit;
}

static void libdw_list(const libdw *dw, const symbols *own, lade_stack_frame *frame, frame_list *out) {
  uint64_t at = frame->address - 1, bias = 0, offset;
  unsigned char symbol[24]; /* a GElf_Sym */
  int line = 0;
  dw_die *scopes = NULL;
  frame->function = dw->dwfl_module_addrinfo(own->module, at, &offset, symbol, NULL, NULL, NULL);
  dw_die *unit = unit_find(dw, own, at, &bias);
  void *source = unit == NULL ? NULL : dw->dwarf_getsrc_die(unit, at - bias);
  if (source != NULL) frame->file = dw->dwarf_linesrc(source, NULL, NULL);
  if (source != NULL && dw->dwarf_lineno(source, &line) == 0) frame->line = (uint32_t)line;
  int count = unit == NULL ? 0 : scopes_find(dw, own, unit, at - bias, &scopes);
  if (count > 0) inlined_list(dw, unit, scopes, count, frame, out);
  free(scopes);
  frame_add(out, frame);
}

/* Uses the loader's knowledge, for a library that is still loaded. */
static void loader_list(const ladei_module *module, lade_stack_frame *frame, frame_list *out) {
  Dl_info info;
  bool loaded = atomic_load(&module->until) == UINT64_MAX;
  if (loaded && dladdr((const void *)(uintptr_t)(frame->address - 1), &info) != 0) frame->function = info.dli_sname;
  frame_add(out, frame);
}

lade_status ladei_symbols_describe(ladei_module *module, uint64_t address, lade_stack_frame_visit visit,
                                   void *visitor) {
  lade_stack_frame frame = {.address = address};
  frame_list list = {.count = 0};
  if (module == NULL) return visit(visitor, &frame);
  frame.module = module->path;
  frame.base = module->base;
  frame.build_id = module->build_id[0] == '\0' ? NULL : module->build_id;
  (void)pthread_mutex_lock(&symbols_lock);
  const libdw *dw = libdw_get();
  const symbols *own = dw == NULL ? NULL : symbols_of(dw, module);
  if (own != NULL)
    libdw_list(dw, own, &frame, &list);
  else
    loader_list(module, &frame, &list);
  (void)pthread_mutex_unlock(&symbols_lock);
  lade_status status = LADE_OK;
  for (size_t i = 0; i < list.count && status == LADE_OK; i++) status = visit(visitor, &list.frames[i]);
  return status;
}
