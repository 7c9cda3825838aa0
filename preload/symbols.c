/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym and dlvsym, put before those of the C library: names of the driver lead to hooks, all others to the C library.
 *
 *   dlsym(handle, name)        decide ---- the answer --------------------------> returned
 *   (assembler, keeps the           \----- none: the C library's dlsym, jumped to with the registers as they came
 *    arguments)
 *
 * The C library's dlsym reads its own return address, to know the caller for RTLD_NEXT, RTLD_DEFAULT and the names
 * visible there; a call from here would make this library the caller. So the jump.
 *
 * S1  Every call that is not about a name of the driver ends in the C library's own function, with the caller's return
 *     address and arguments. Such a call allocates, locks and writes nothing except, once, the two pointers below.
 * S2  A name of the driver gets a hook only if the same look-up without this library finds the driver's function.
 *     RTLD_NEXT is left to the C library: it asks for the objects after the caller.
 * S3  A look-up that fails leaves its text for dlerror().
 * Locks: none.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "preload/driver.h"
#include "preload/libc_symbols.h"

/* The sanitisers look symbols up while they start, before instrumented code can run. */
#define UNINSTRUMENTED __attribute__((no_sanitize("thread", "address", "undefined")))

/* The functions of the C library, found once. */
static _Atomic(void *) libc_dlsym, libc_dlvsym;

UNINSTRUMENTED static void *libc_function(_Atomic(void *) *slot, const char *name) {
  void *function = atomic_load_explicit(slot, memory_order_relaxed);
  if (function == NULL) {
    function = ladei_preload_libc_symbol(name);
    atomic_store_explicit(slot, function, memory_order_relaxed);
  }
  return function;
}

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

/* The assembler below gets this in two registers: the address to jump to, or NULL and the answer. */
typedef struct symbol_decision {
  void *answer;
  void *jump;
} symbol_decision;

/* lade opened by the program itself talks to the driver as it does without this library. */
static bool is_lade(void *caller) {
  Dl_info object;
  if (dladdr(caller, &object) == 0 || object.dli_fname == NULL) return false;
  const char *slash = strrchr(object.dli_fname, '/');
  return strncmp(slash == NULL ? object.dli_fname : slash + 1, "liblade.so", strlen("liblade.so")) == 0;
}

/* Looks in the caller and the libraries that it was opened with. */
static void *found_beside(void *caller, const char *name) {
  Dl_info object;
  if (dladdr(caller, &object) == 0 || object.dli_fname == NULL) return NULL;
  void *scope = dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (scope == NULL) return NULL;
  void *found = ladei_preload_dlsym(scope, name);
  dlclose(scope);
  return ladei_preload_owns(found) ? NULL : found; /* the scope of the program itself has this library first */
}

/* The symbol that RTLD_DEFAULT finds after this library. */
static void *found_by_default(void *caller, const char *name) {
  void *found = ladei_preload_dlsym(RTLD_NEXT, name);
  if (found == NULL) found = found_beside(caller, name);
  return found != NULL ? found : ladei_preload_dlsym(RTLD_NEXT, name); /* S3 */
}

static void *symbol_answer(void *handle, const char *name, void *caller) {
  void *found = handle == RTLD_DEFAULT ? NULL : ladei_preload_dlsym(handle, name);
  /* A handle of the whole program finds this library first. */
  if (handle == RTLD_DEFAULT || ladei_preload_owns(found)) found = found_by_default(caller, name);
  return found == NULL ? NULL : ladei_preload_hook_named(name, found);
}

UNINSTRUMENTED static bool is_for_driver(void *handle, const char *name) {
  return name != NULL && name[0] == 'c' && name[1] == 'u' && handle != RTLD_NEXT && !ladei_preload_inside() &&
         ladei_preload_name_known(name);
}

UNINSTRUMENTED __attribute__((used, visibility("hidden"))) symbol_decision
ladei_preload_decide(void *handle, const char *name, void *caller) __asm__("ladei_preload_decide");
symbol_decision ladei_preload_decide(void *handle, const char *name, void *caller) {
  symbol_decision decision = {NULL, libc_function(&libc_dlsym, "dlsym")};
  if (is_for_driver(handle, name) && !is_lade(caller)) {
    decision.answer = symbol_answer(handle, name, caller);
    decision.jump = NULL;
  }
  return decision;
}

/* Programs ask for no version of the driver's symbols: a hook replaces only a symbol that exists in that version. */
UNINSTRUMENTED __attribute__((used, visibility("hidden"))) symbol_decision
ladei_preload_decide_version(void *handle, const char *name, const char *version,
                             void *caller) __asm__("ladei_preload_decide_version");
symbol_decision ladei_preload_decide_version(void *handle, const char *name, const char *version, void *caller) {
  typedef void *dlvsym_function(void *, const char *, const char *);
  symbol_decision decision = {NULL, libc_function(&libc_dlvsym, "dlvsym")};
  if (decision.jump != NULL && is_for_driver(handle, name) && !is_lade(caller)) {
    decision.answer = ((dlvsym_function *)decision.jump)(handle, name, version);
    if (decision.answer != NULL && !ladei_preload_owns(decision.answer))
      decision.answer = ladei_preload_hook_named(name, decision.answer);
    decision.jump = NULL;
  }
  return decision;
}

/* ---- The functions themselves ------------------------------------------------------------------------------------ */

/* clang-format off */
#if defined(__x86_64__)
#define SYMBOL_FUNCTION(name, decide, caller_register)  \
  __asm__(".text\n"                                     \
          ".globl " name "\n"                           \
          ".type " name ", @function\n"                 \
          name ":\n"                                    \
          ".cfi_startproc\n"                            \
          "endbr64\n"                                   \
          "pushq %rdi\n"                                \
          ".cfi_adjust_cfa_offset 8\n"                  \
          "pushq %rsi\n"                                \
          ".cfi_adjust_cfa_offset 8\n"                  \
          "pushq %rdx\n"                                \
          ".cfi_adjust_cfa_offset 8\n"                  \
          "movq 24(%rsp), " caller_register "\n"        \
          "call " decide "\n"                           \
          "movq %rdx, %rcx\n"                           \
          "popq %rdx\n"                                 \
          ".cfi_adjust_cfa_offset -8\n"                 \
          "popq %rsi\n"                                 \
          ".cfi_adjust_cfa_offset -8\n"                 \
          "popq %rdi\n"                                 \
          ".cfi_adjust_cfa_offset -8\n"                 \
          "testq %rcx, %rcx\n"                          \
          "jnz 1f\n"                                    \
          "ret\n"                                       \
          "1: jmp *%rcx\n"                              \
          ".cfi_endproc\n"                              \
          ".size " name ", . - " name "\n")
SYMBOL_FUNCTION("dlsym", "ladei_preload_decide", "%rdx");
SYMBOL_FUNCTION("dlvsym", "ladei_preload_decide_version", "%rcx");
#elif defined(__aarch64__)
#define SYMBOL_FUNCTION(name, decide, caller_register)  \
  __asm__(".text\n"                                     \
          ".globl " name "\n"                           \
          ".type " name ", %function\n"                 \
          name ":\n"                                    \
          ".cfi_startproc\n"                            \
          "hint #34\n" /* bti c */                      \
          "stp x29, x30, [sp, #-48]!\n"                 \
          ".cfi_def_cfa_offset 48\n"                    \
          ".cfi_offset 29, -48\n"                       \
          ".cfi_offset 30, -40\n"                       \
          "mov x29, sp\n"                               \
          "stp x0, x1, [sp, #16]\n"                     \
          "str x2, [sp, #32]\n"                         \
          "mov " caller_register ", x30\n"              \
          "bl " decide "\n"                             \
          "mov x17, x0\n"                               \
          "mov x16, x1\n"                               \
          "ldp x0, x1, [sp, #16]\n"                     \
          "ldr x2, [sp, #32]\n"                         \
          "ldp x29, x30, [sp], #48\n"                   \
          ".cfi_restore 30\n"                           \
          ".cfi_restore 29\n"                           \
          ".cfi_def_cfa_offset 0\n"                     \
          "cbz x16, 1f\n"                               \
          "br x16\n"                                    \
          "1: mov x0, x17\n"                            \
          "ret\n"                                       \
          ".cfi_endproc\n"                              \
          ".size " name ", . - " name "\n")
SYMBOL_FUNCTION("dlsym", "ladei_preload_decide", "x2");
SYMBOL_FUNCTION("dlvsym", "ladei_preload_decide_version", "x3");
#else
#error "preload: dlsym() is written for x86-64 and 64-bit ARM"
#endif
/* clang-format on */
