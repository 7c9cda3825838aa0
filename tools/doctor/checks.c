/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of `lade doctor`. Each looks by itself, by the library's own call or file; none changes anything, and only
 * `registration` makes a context on a device, while it looks.
 */
#include "tools/doctor/checks.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/library_functions.h"
#include "config/config.h"
#include "host/budget/limits.h"
#include "lade/pinned.h"
#include "lade/runtime.h"
#include "loaders/libarchive.h"
#include "tools/common/options.h"
#include "tools/topo/pages.h"
#include "tools/topo/survey.h"

static void put(char out[FINDING_TEXT_BYTES], const char *format, va_list arguments) {
  vsnprintf(out, FINDING_TEXT_BYTES, format, arguments);
}

__attribute__((format(printf, 2, 3))) static void found(finding *out, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  put(out->found, format, arguments);
  va_end(arguments);
}

__attribute__((format(printf, 3, 4))) static void advise(finding *out, finding_state state, const char *format, ...) {
  va_list arguments;
  out->state = state;
  va_start(arguments, format);
  put(out->advice, format, arguments);
  va_end(arguments);
}

/* ---- The GPU ----------------------------------------------------------------------------------------------------- */

static void driver_look(finding *out) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    bool wsl = access("/dev/dxg", F_OK) == 0;
    found(out, "no libcuda.so.1");
    advise(out, FINDING_TO_DO,
           wsl ? "in WSL2 the driver is that of Windows: install it there, and add /usr/lib/wsl/lib to the library path"
               : "install NVIDIA's driver (CUDA 12.0 or newer), in a container start it with --gpus all; without a GPU "
                 "the software device does (runtime cpu)");
    return;
  }
  int (*version_get)(int *) = NULL;
  int version = 0;
  if (ladei_library_function_find(library, "cuDriverGetVersion", &version_get)) (void)version_get(&version);
  dlclose(library);
  found(out, "libcuda.so.1, CUDA %d.%d", version / 1000, version % 1000 / 10);
  if (version < 12000) advise(out, FINDING_TO_DO, "lade needs a driver of CUDA 12.0 or newer (525.60 and later)");
}

static void gpu_look(finding *out) {
  lade_runtime *runtime = NULL;
  lade_device_info info;
  char size[SIZE_TEXT_BYTES];
  int count = 0;
  if (lade_runtime_open("cuda", NULL, &runtime) != LADE_OK) {
    found(out, "none: %.300s", lade_last_error()->text);
    if (strstr(out->found, "without the CUDA headers") != NULL)
      advise(out, FINDING_TO_DO,
             "no driver helps this build: build lade again where CUDA's headers are (pip install nvidia-cuda-runtime "
             "nvidia-cuda-crt in a virtual environment that is active, or a toolkit with CUDA_HOME set to its folder); "
             "cmake then says runtime \"cuda\": ON");
    else
      advise(out, FINDING_TO_DO,
             "see the driver; in a container /dev/nvidia* must be there; CUDA_VISIBLE_DEVICES must not hide all");
    return;
  }
  lade_device_info_init(&info);
  lade_status status = lade_runtime_device_count(runtime, &count);
  if (status == LADE_OK && count > 0) status = lade_runtime_device_info(runtime, 0, &info);
  if (status == LADE_OK && count > 0)
    found(out, "%d, the first: %s, %s", count, info.name, size_text(info.total_bytes, size));
  else
    found(out, "none: %.300s", count == 0 ? "the driver names no device" : lade_last_error()->text);
  if (status != LADE_OK || count == 0) advise(out, FINDING_TO_DO, "look at nvidia-smi, and at CUDA_VISIBLE_DEVICES");
  (void)lade_runtime_close(runtime);
}

/* A page, by the call that pools make; the driver says only then whether it can. */
static lade_status page_pin(lade_runtime *runtime) {
  lade_pinned_options options;
  lade_pinned_pool *pool = NULL;
  void *page = NULL;
  lade_pinned_options_init(&options);
  options.sources = LADE_PINNED_SOURCE_REGISTER;
  options.budget = LADE_PINNED_BUDGET_OFF;
  LADEI_TRY(lade_pinned_pool_create(runtime, &options, &pool));
  lade_status status = lade_pinned_alloc(pool, 1, &page);
  if (status == LADE_OK) (void)lade_pinned_free(pool, page);
  (void)lade_pinned_pool_destroy(pool, true);
  return status;
}

static void registration_look(finding *out) {
  lade_runtime *runtime = NULL;
  if (lade_runtime_open("cuda", NULL, &runtime) != LADE_OK) {
    found(out, "not asked for, without a GPU");
    return;
  }
  if (page_pin(runtime) == LADE_OK) {
    found(out, "allowed");
  } else {
    found(out, "refused: %.300s", lade_last_error()->text);
    advise(
        out, FINDING_TO_DO,
        "pinned memory then is the driver's own: slower to get, and not placed near the device. In a container allow "
        "mlock, and see ulimit -l; under confidential computing the driver registers none");
  }
  (void)lade_runtime_close(runtime);
}

/* ---- Limits ------------------------------------------------------------------------------------------------------ */

#define ENOUGH_LOCKED_BYTES (UINT64_C(64) << 20) /* the default ring of a pipeline */
#define ENOUGH_GROUP_BYTES  (UINT64_C(1) << 30)

static void memlock_look(finding *out) {
  ladei_pinned_limits limits;
  char size[SIZE_TEXT_BYTES];
  ladei_pinned_limits_read("", &limits);
  found(out, "%s of locked memory", size_text(limits.memlock_bytes, size));
  if (limits.memlock_bytes < ENOUGH_LOCKED_BYTES && geteuid() != 0)
    advise(
        out, FINDING_TO_DO,
        "raise it: ulimit -l unlimited (limits.conf, LimitMEMLOCK=infinity), in a container --ulimit memlock=-1. The "
        "driver pins without it, but io_uring cannot register blocks");
}

static void cgroup_look(finding *out) {
  ladei_pinned_limits limits;
  char size[SIZE_TEXT_BYTES];
  ladei_pinned_limits_read("", &limits);
  if (limits.cgroup_headroom_bytes == LADEI_PINNED_NO_LIMIT) {
    found(out, "no limit on memory");
    return;
  }
  found(out, "%s of memory left", size_text(limits.cgroup_headroom_bytes, size));
  if (limits.cgroup_headroom_bytes < ENOUGH_GROUP_BYTES)
    advise(out, FINDING_TO_DO, "pinned memory counts: raise memory.max (--memory), or set pinned_max_mb");
}

/* ---- The kernel -------------------------------------------------------------------------------------------------- */

static void io_uring_look(finding *out) {
  struct io_uring_params parameters;
  memset(&parameters, 0, sizeof parameters);
  long fd = syscall(SYS_io_uring_setup, 2, &parameters);
  if (fd >= 0) {
    close((int)fd);
    found(out, "allowed");
    return;
  }
  int code = errno;
  found(out, "refused: %s", strerror(code));
  advise(out, FINDING_TO_DO,
         code == ENOSYS ? "the kernel is older than 5.1, or built without it; files are read with pread"
                        : "allow it: sysctl kernel.io_uring_disabled=0, in a container a seccomp profile that has "
                          "io_uring_setup; until then files are read with pread");
}

static void membarrier_look(finding *out) {
  long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  bool allowed = commands >= 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
  found(out, "%s", allowed ? "allowed" : "refused");
  if (!allowed)
    advise(out, FINDING_TO_DO,
           "allow membarrier in the seccomp profile (Linux 4.14 or newer): without it each call pays a fence");
}

static int numa_nodes_count(void) {
  int count = 0;
  char path[64];
  for (int node = 0; node < 1024; node++) {
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d", node);
    count += access(path, F_OK) == 0 ? 1 : 0;
  }
  return count;
}

static void numa_look(finding *out) {
  int count = numa_nodes_count(), mode = 0;
  if (count == 0) {
    found(out, "no nodes in /sys/devices/system/node");
    advise(out, FINDING_TO_DO, "mount /sys in the container; until then memory is bound to no node");
    return;
  }
  bool policy = syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0;
  found(out, "%d node%s%s", count, count == 1 ? "" : "s", policy ? "" : ", memory policies refused");
  if (count > 1 && !policy)
    advise(out, FINDING_TO_DO, "allow mbind and get_mempolicy: --cap-add SYS_NICE, or a seccomp profile that has them");
}

static void huge_pages_look(finding *out) {
  char mode[PAGES_MODE_BYTES];
  pages_transparent_mode("", mode);
  found(out, "transparent huge pages: %s", mode);
  if (strcmp(mode, "unknown") == 0)
    advise(out, FINDING_OPTIONAL, "mount /sys in the container to see them; a kernel without them has no such setting");
  else if (strcmp(mode, "always") != 0 && strcmp(mode, "madvise") != 0)
    advise(out, FINDING_TO_DO,
           "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled (as root): pinning takes a page fault per 4 KiB "
           "without");
}

/* ---- Libraries --------------------------------------------------------------------------------------------------- */

static void toolkit_look(finding *out) {
  const char *home = getenv("CUDA_HOME");
  const char *const folders[] = {home != NULL ? home : "", "/usr/local/cuda", "/usr"};
  char path[512];
  for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
    snprintf(path, sizeof path, "%s/include/cuda.h", folders[i]);
    if (folders[i][0] == '\0' || access(path, R_OK) != 0) continue;
    found(out, "%.300s", path);
    return;
  }
  found(out, "no cuda.h");
  advise(
      out, FINDING_OPTIONAL,
      "needed to build lade with its runtime cuda, not to run it: pip install nvidia-cuda-runtime nvidia-cuda-crt in a "
      "virtual environment that is active, or CUDA's toolkit, with CUDA_HOME set to its folder");
}

static void libarchive_look(finding *out) {
  ladei_libarchive library;
  bool opened = ladei_libarchive_open(&library) == LADE_OK;
  found(out, opened ? "libarchive.so.13" : "none");
  if (!opened)
    advise(out, FINDING_OPTIONAL, "needed for tar shards: the package libarchive13 (Debian) or libarchive (Fedora)");
}

static void stacks_look(finding *out) {
  void *unwind = dlopen("libunwind.so.8", RTLD_LAZY | RTLD_LOCAL);
  void *names = dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL);
  found(out, "%s, %s", unwind != NULL ? "libunwind.so.8" : "no libunwind.so.8",
        names != NULL ? "libdw.so.1" : "no libdw.so.1");
  if (unwind == NULL || names == NULL)
    advise(
        out, FINDING_OPTIONAL,
        "without libdw call stacks of histories and snapshots are addresses without names, without libunwind they take "
        "longer: the packages libdw1 and libunwind8 (Debian), elfutils-libs and libunwind (Fedora)");
  if (unwind != NULL) dlclose(unwind);
  if (names != NULL) dlclose(names);
}

/* Whether a line of a file has the word. */
static bool file_has(const char *path, const char *word) {
  char line[1024];
  bool has = false;
  FILE *file = fopen(path, "re");
  if (file == NULL) return false;
  while (!has && fgets(line, sizeof line, file) != NULL) has = strstr(line, word) != NULL;
  fclose(file);
  return has;
}

/* The ways from a disk to the device, the best first: the module nvidia-fs; the kernel's own peer-to-peer transfers,
 * with which cuFile needs no module; through host memory. */
static void cufile_look(finding *out) {
  void *library = dlopen("libcufile.so.0", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    found(out, "none");
    advise(out, FINDING_OPTIONAL, "needed for GPUDirect Storage (storage:cufile): libcufile of CUDA's toolkit");
    return;
  }
  dlclose(library);
  if (access("/proc/driver/nvidia-fs/version", F_OK) == 0) {
    found(out, "libcufile.so.0, with nvidia-fs");
    return;
  }
  bool kernel = file_has("/proc/kallsyms", "pci_p2pdma_");
  bool is_open = file_has("/proc/driver/nvidia/version", "Open Kernel Module");
  if (kernel && is_open) {
    found(out, "libcufile.so.0; P2PDMA: the kernel and the driver have it, no nvidia-fs");
    advise(out, FINDING_OPTIONAL,
           "P2PDMA needs CUDA 12.8 or newer and \"use_pci_p2pdma\": true in cufile.json (its path: "
           "CUFILE_ENV_PATH_JSON); else cuFile goes through host memory (compatibility mode)");
    return;
  }
  found(out, "libcufile.so.0, in compatibility mode: no nvidia-fs, and no P2PDMA (%s)",
        kernel ? "the driver is not the open one" : "the kernel has none");
  advise(out, FINDING_OPTIONAL,
         "files go through host memory, as without cuFile. For the direct way load the module nvidia-fs, or take a "
         "kernel 6.2 or newer with CONFIG_PCI_P2PDMA, NVIDIA's open kernel modules and CUDA 12.8");
}

/* ---- Python ------------------------------------------------------------------------------------------------------ */

/* Answers of python3; "-" means that something is missing. The script imports no package: PyTorch's import takes
 * seconds. */
typedef struct python_parts {
  char version[32], lade[64], other[16], torch[64], native[16];
} python_parts;

static bool python_ask(python_parts *out) {
  static const char command[] =
      "python3 -c '"
      "import importlib.metadata as m, importlib.util as u, os, sys\n"
      "def version(name):\n"
      "    try: return m.version(name)\n"
      "    except m.PackageNotFoundError: return \"-\"\n"
      "lade, torch, spec = version(\"liblade\"), version(\"torch\"), u.find_spec(\"lade\")\n"
      "folder = os.path.dirname(spec.origin) if spec and spec.origin else \"\"\n"
      "native = os.path.join(folder, \"torch\", \"_torch_2_%s.so\" % (torch + \"..\").split(\".\")[1])\n"
      "print(sys.version.split()[0], lade, \"other\" if folder and lade == \"-\" else \"-\", torch, "
      "\"native\" if os.path.exists(native) else \"-\")\n' 2>/dev/null";
  char line[256] = "";
  FILE *answer = popen(command, "re");
  if (answer == NULL) return false;
  bool read = fgets(line, sizeof line, answer) != NULL;
  return pclose(answer) == 0 && read &&
         sscanf(line, "%31s %63s %15s %63s %15s", out->version, out->lade, out->other, out->torch, out->native) == 5;
}

static void python_look(finding *out) {
  python_parts parts;
  if (!python_ask(&parts)) {
    found(out, "no python3 that answers");
    advise(out, FINDING_OPTIONAL, "needed for the package and for pickles of snapshots");
  } else if (strcmp(parts.other, "-") != 0) {
    found(out, "Python %s, with a package lade that is another project's", parts.version);
    advise(out, FINDING_TO_DO, "pip uninstall lade; then pip install ./python in a clone of lade, which is liblade");
  } else if (strcmp(parts.lade, "-") == 0) {
    found(out, "Python %s, without liblade", parts.version);
    advise(out, FINDING_OPTIONAL, "for `import lade`: pip install ./python in a clone of lade");
  } else {
    found(out, "Python %s, liblade %s", parts.version, parts.lade);
  }
}

static void pytorch_look(finding *out) {
  python_parts parts;
  if (!python_ask(&parts) || strcmp(parts.torch, "-") == 0) {
    found(out, "none for this python3");
  } else if (strcmp(parts.lade, "-") == 0 || strcmp(parts.native, "-") != 0) {
    found(out, "PyTorch %s%s", parts.torch, strcmp(parts.lade, "-") == 0 ? "" : ", lade.torch has its native part");
  } else {
    found(out, "PyTorch %s, without the native part of lade.torch", parts.torch);
    advise(out, FINDING_OPTIONAL,
           "for lade behind PyTorch 2.8 to 2.15 with CUDA: pip install --force-reinstall --no-deps ./python in a clone "
           "of lade, with this PyTorch in the environment");
  }
}

/* ---- The environment --------------------------------------------------------------------------------------------- */

static void settings_look(finding *out) {
  ladei_settings_skips skips;
  lade_config config;
  lade_config_init(&config);
  if (lade_config_from_env(&config) != LADE_OK) {
    found(out, "%.300s", lade_last_error()->text);
    advise(out, FINDING_TO_DO, "correct the variable; `lade settings` shows the keys");
    return;
  }
  const char *variable = ladei_config_variable(&skips);
  found(out, "%s%s", variable == NULL ? "no variable is set" : "from ", variable == NULL ? "" : variable);
  if (skips.count == 0) return;
  found(out, "from %s; %zu key%s passed over, the first: %.*s", variable, skips.count, skips.count == 1 ? "" : "s",
        skips.first[0].key_bytes, skips.first[0].key);
  advise(out, FINDING_TO_DO,
         "lade does not know it, or does not serve it; LADE_LOG=warn names all, `lade settings` shows the keys");
}

const check checks[] = {{"driver", driver_look},
                        {"gpu", gpu_look},
                        {"registration", registration_look},
                        {"memlock", memlock_look},
                        {"cgroup", cgroup_look},
                        {"io_uring", io_uring_look},
                        {"membarrier", membarrier_look},
                        {"numa", numa_look},
                        {"huge_pages", huge_pages_look},
                        {"cuda_headers", toolkit_look},
                        {"libarchive", libarchive_look},
                        {"stacks", stacks_look},
                        {"cufile", cufile_look},
                        {"python", python_look},
                        {"pytorch", pytorch_look},
                        {"settings", settings_look}};
const size_t check_count = sizeof checks / sizeof checks[0];
