/* SPDX-License-Identifier: Apache-2.0 */
/* Across sources: Peer access between devices, and device memory shared with another process. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/conformance/conformance.h"

/* --- Peers -------------------------------------------------------------------------------------------------------- */

CONFORMANCE_TEST(Peers, NoDeviceIsItsOwnPeer) {
  bool can = true;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 0, &can));
  LADE_EXPECT(!can);
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "peer_enable", NULL, OP(peer_enable, 0, 0));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "peer_disable", NULL, OP(peer_disable, 0, 0));
}

CONFORMANCE_TEST(Peers, AccessIsEnabledOnceOrTwiceAndDisabledOnce) {
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  if (!can) {
    EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "peer_enable", NULL, OP(peer_enable, 0, 1));
    return;
  }
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "peer_disable", NULL, OP(peer_disable, 0, 1));
  LADE_ASSERT_OK(OP(peer_enable, 0, 1));
  LADE_ASSERT_OK(OP(peer_enable, 0, 1));
  LADE_ASSERT_OK(OP(peer_disable, 0, 1));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "peer_disable", NULL, OP(peer_disable, 0, 1));
}

CONFORMANCE_TEST(Peers, EnabledDeviceUsesTheOthersMemory) {
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  NEEDS(can, "the devices cannot access each other");
  enum { BYTES = 20000 };
  LADE_ASSERT_OK(OP(peer_enable, 0, 1));
  void *there = conformance_device_memory(runtime, 1, BYTES), *here = conformance_device_pattern(runtime, 0, BYTES, 3);
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, there, here, BYTES, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, 1, there, BYTES, 3);
  LADE_ASSERT_OK(OP(peer_disable, 0, 1));
  LADE_ASSERT_OK(OP(device_free, 1, there));
  LADE_ASSERT_OK(OP(device_free, 0, here));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* Memory of device 1 of two kinds that have access of their own; one of them, with what gives device 0 access. */
typedef struct own_access {
  bool pool; /* else mapped memory */
  char *memory;
  size_t bytes;
  ladei_vm_handle handle;
  ladei_driver_pool driver_pool;
} own_access;

static void own_access_open(lade_runtime *runtime, own_access *m, const ladei_stream *stream) {
  size_t minimum = 0;
  void *memory = NULL;
  LADE_ASSERT_OK(OP(vm_granularity, 1, &minimum, &m->bytes));
  if (m->pool) {
    const ladei_pool_properties properties = {LADEI_POOL_DEVICE, 1, 0};
    LADE_ASSERT_OK(OP(pool_create, &properties, &m->driver_pool));
    LADE_ASSERT_OK(OP(pool_alloc, m->driver_pool, m->bytes, stream, &memory));
  } else {
    LADE_ASSERT_OK(OP(vm_reserve, 1, m->bytes, 0, &memory));
    LADE_ASSERT_OK(OP(vm_create, 1, m->bytes, false, &m->handle));
    LADE_ASSERT_OK(OP(vm_map, memory, m->bytes, m->handle));
    LADE_ASSERT_OK(OP(vm_set_access, memory, m->bytes, 1, true));
  }
  m->memory = memory;
  LADE_EXPECT_OK(OP(fill, memory, 9, m->bytes, stream));
  LADE_EXPECT_OK(OP(stream_synchronize, stream));
}

static void own_access_let_in(lade_runtime *runtime, own_access *m, bool in) {
  if (m->pool)
    LADE_EXPECT_OK(OP(pool_set_access, m->driver_pool, 0, in));
  else
    LADE_EXPECT_OK(OP(vm_set_access, m->memory, m->bytes, 0, in));
}

static void own_access_close(lade_runtime *runtime, own_access *m, const ladei_stream *stream) {
  if (m->pool) {
    LADE_EXPECT_OK(OP(pool_free, m->memory, stream));
    LADE_EXPECT_OK(OP(stream_synchronize, stream));
    LADE_EXPECT_OK(OP(pool_destroy, m->driver_pool));
  } else {
    LADE_EXPECT_OK(OP(vm_unmap, m->memory, m->bytes));
    LADE_EXPECT_OK(OP(vm_release, m->handle));
    LADE_EXPECT_OK(OP(vm_address_free, m->memory, m->bytes));
  }
}

/* Note [Copies between devices]: by both calls, a fill and a batch, from a stream of device 0. */
static void own_access_try(lade_runtime *runtime, own_access *m, char *here, const ladei_stream *stream, bool in) {
  enum { BYTES = 5000 };
  void *dsts[] = {here};
  const void *srcs[] = {m->memory};
  size_t sizes[] = {BYTES};
  lade_status expected = in ? LADE_OK : LADE_ERR_INVALID_ARGUMENT;
  LADE_EXPECT_STATUS(expected, OP(copy, LADEI_COPY_D2D, here, m->memory, BYTES, stream));
  LADE_EXPECT_STATUS(expected, OP(fill, m->memory, 9, BYTES, stream));
  lade_status batch = OP(copy_batch, LADEI_COPY_D2D, 1, dsts, srcs, sizes, stream);
  if (batch != LADE_ERR_UNSUPPORTED) LADE_EXPECT_STATUS(expected, batch);
  LADE_EXPECT_STATUS(expected, OP(copy_peer, here, 0, m->memory, 0, BYTES, stream));
  LADE_EXPECT_OK(OP(copy_peer, here, 0, m->memory, 1, BYTES, stream));
  LADE_EXPECT_OK(OP(copy_peer, m->memory, 1, here, 0, BYTES, stream));
  LADE_EXPECT_OK(OP(stream_synchronize, stream));
}

CONFORMANCE_TEST(Peers, MappedMemoryAndThatOfPoolsHasAccessOfItsOwn) {
  NEEDS_TWO_DEVICES();
  bool can = false;
  LADE_ASSERT_OK(OP(peer_can_access, 0, 1, &can));
  NEEDS(can, "the devices cannot access each other");
  ladei_stream s0 = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  ladei_stream s1 = conformance_stream(runtime, 1, LADEI_STREAM_NON_BLOCKING);
  char *here = conformance_device_memory(runtime, 0, 5000);
  for (int kind = 0; kind < 2; kind++) {
    own_access m = {.pool = kind == 1};
    if (m.pool ? runtime->ops->pool_create == NULL : runtime->ops->vm_reserve == NULL) continue;
    lade_test_context("%s", m.pool ? "memory of a driver pool" : "mapped memory");
    own_access_open(runtime, &m, &s1);
    if (lade_test_has_failed()) return;
    own_access_try(runtime, &m, here, &s0, false);
    LADE_EXPECT_OK(OP(peer_enable, 0, 1));
    own_access_try(runtime, &m, here, &s0, false);
    LADE_EXPECT_OK(OP(peer_disable, 0, 1));
    own_access_let_in(runtime, &m, true);
    own_access_try(runtime, &m, here, &s0, true);
    own_access_let_in(runtime, &m, false);
    own_access_try(runtime, &m, here, &s0, false);
    own_access_close(runtime, &m, &s1);
  }
  LADE_ASSERT_OK(OP(device_free, 0, here));
  LADE_ASSERT_OK(OP(stream_destroy, s0.handle));
  LADE_ASSERT_OK(OP(stream_destroy, s1.handle));
}

/* Without access, too: a copy reaches memory of device_alloc from everywhere, a fill from its own device. */
CONFORMANCE_TEST(Peers, CopiesReachMemoryOfEachDevice) {
  NEEDS_TWO_DEVICES();
  enum { BYTES = 20000 };
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *a = conformance_device_pattern(runtime, 1, BYTES, 3), *b = conformance_device_memory(runtime, 1, BYTES);
  char *c = conformance_device_memory(runtime, 0, BYTES), *d = conformance_device_memory(runtime, 0, BYTES);
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, b, a, BYTES, &stream)); /* both on the other device */
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, c, b, BYTES, &stream));
  LADE_EXPECT_OK(OP(copy_peer, d, 1, b, 0, BYTES, &stream)); /* whichever devices are named */
  LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, OP(fill, a, 1, BYTES, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, 1, b, BYTES, 3);
  conformance_expect_device_pattern(runtime, 0, c, BYTES, 3);
  conformance_expect_device_pattern(runtime, 0, d, BYTES, 3);
  for (int i = 0; i < 2; i++) {
    LADE_ASSERT_OK(OP(device_free, 1, i == 0 ? a : b));
    LADE_ASSERT_OK(OP(device_free, 0, i == 0 ? c : d));
  }
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

/* The plain copy is captured, in each direction; copy_peer ends the capture, within one device, too. */
CONFORMANCE_TEST(Peers, CapturesTakeThePlainCopyAlone) {
  NEEDS_TWO_DEVICES();
  NEEDS_OP(capture_begin);
  enum { BYTES = 20000 };
  ladei_graph graph = NULL;
  ladei_graph_exec exec = NULL;
  ladei_stream stream = conformance_stream(runtime, 0, LADEI_STREAM_NON_BLOCKING);
  char *there = conformance_device_pattern(runtime, 1, BYTES, 5), *here = conformance_device_memory(runtime, 0, BYTES);
  LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
  LADE_EXPECT_OK(OP(copy, LADEI_COPY_D2D, here, there, BYTES, &stream));
  LADE_ASSERT_OK(OP(capture_end, &stream, &graph));
  LADE_ASSERT_OK(OP(graph_instantiate, graph, &exec));
  LADE_EXPECT_OK(OP(graph_launch, exec, &stream));
  LADE_EXPECT_OK(OP(stream_synchronize, &stream));
  conformance_expect_device_pattern(runtime, 0, here, BYTES, 5);
  LADE_ASSERT_OK(OP(graph_exec_destroy, exec));
  LADE_ASSERT_OK(OP(graph_destroy, graph));
  for (int source = 0; source < 2; source++) {
    LADE_ASSERT_OK(OP(capture_begin, &stream, LADEI_CAPTURE_RELAXED));
    EXPECT_REFUSED(LADE_ERR_CAPTURE, "copy_peer", NULL,
                   OP(copy_peer, here, 0, source == 0 ? here + BYTES / 2 : there, source, BYTES / 2, &stream));
    LADE_EXPECT_STATUS(LADE_ERR_CAPTURE, OP(capture_end, &stream, &graph));
  }
  LADE_ASSERT_OK(OP(device_free, 0, here));
  LADE_ASSERT_OK(OP(device_free, 1, there));
  LADE_ASSERT_OK(OP(stream_destroy, stream.handle));
}

CONFORMANCE_TEST(Peers, DescriptionCanForbidAccess) {
  NEEDS(runtime->software_device != NULL, "not a software device of this process");
  support_description description;
  support_description_init(&description);
  description.devices[1].no_peer_access = 1;
  lade_runtime *strict = support_runtime_open_with(lade_runtime_name(runtime), &description.options);
  if (strict == NULL) return;
  bool can = true;
  LADE_EXPECT_OK(strict->ops->peer_can_access(strict->self, 0, 1, &can));
  LADE_EXPECT(!can);
  EXPECT_REFUSED(LADE_ERR_UNSUPPORTED, "peer_enable", NULL, strict->ops->peer_enable(strict->self, 0, 1));
  support_runtime_close(strict);
}

/* --- Another process ---------------------------------------------------------------------------------------------- */

/*
 * The child is this program started anew, as fork() alone is no way to use a driver: a constructor finds the handle in
 * the environment, reads the memory, writes to it, and exits before any test runs.
 *
 * A software device's memory is its process's own: there the child may say that it cannot open the handle, and then the
 * exporting process must be able to, which a GPU's driver refuses.
 */
enum { IPC_BYTES = 10000 };
enum { CHILD_FAILED = 3, CHILD_CANNOT_OPEN = 4 };
static const char handle_variable[] = "LADE_CONFORMANCE_IPC_HANDLE";
static const char runtime_variable[] = "LADE_CONFORMANCE_IPC_RUNTIME";

/* Finds pattern 1 in the memory and leaves pattern 2. */
static bool change_pattern(lade_runtime *runtime, void *base) {
  char *bytes = malloc(IPC_BYTES);
  bool good = OP(copy_sync, 0, LADEI_COPY_D2H, bytes, base, IPC_BYTES) == LADE_OK &&
              support_pattern_mismatch(bytes, IPC_BYTES, 1, 0) == IPC_BYTES;
  support_pattern_fill(bytes, IPC_BYTES, 2, 0);
  good = good && OP(copy_sync, 0, LADEI_COPY_H2D, base, bytes, IPC_BYTES) == LADE_OK;
  free(bytes);
  return good;
}

static int child_serve(lade_runtime *runtime, const ladei_ipc_handle *handle) {
  void *base = NULL;
  if (OP(ipc_open, 0, handle, &base) != LADE_OK) return CHILD_CANNOT_OPEN;
  bool good = change_pattern(runtime, base);
  return good && OP(ipc_close, base) == LADE_OK ? 0 : CHILD_FAILED;
}

__attribute__((constructor)) static void child_main(void) {
  const char *text = getenv(handle_variable), *runtime_name = getenv(runtime_variable);
  if (text == NULL || runtime_name == NULL) return;
  ladei_ipc_handle handle;
  for (size_t i = 0; i < sizeof handle.bytes; i++) {
    unsigned byte = 0;
    if (sscanf(text + 2 * i, "%2x", &byte) != 1) _exit(CHILD_FAILED);
    handle.bytes[i] = (unsigned char)byte;
  }
  lade_runtime *runtime;
  support_description standard;
  support_description_init(&standard);
  if (lade_runtime_open(runtime_name, &standard.options, &runtime) != LADE_OK) _exit(CHILD_FAILED);
  int code = child_serve(runtime, &handle);
  if (code == CHILD_FAILED) fprintf(stderr, "child: %s\n", lade_last_error()->text);
  if (lade_runtime_close(runtime) != LADE_OK) code = CHILD_FAILED;
  _exit(code);
}

static int run_child(const char *runtime_name, const ladei_ipc_handle *handle) {
  char text[2 * sizeof handle->bytes + 1];
  for (size_t i = 0; i < sizeof handle->bytes; i++) snprintf(text + 2 * i, 3, "%02x", handle->bytes[i]);
  setenv(handle_variable, text, 1);
  setenv(runtime_variable, runtime_name, 1);
  extern char **environ;
  char program[] = "/proc/self/exe";
  char *arguments[] = {program, NULL};
  pid_t child;
  int status = -1, failed = posix_spawn(&child, program, NULL, NULL, arguments, environ);
  unsetenv(handle_variable);
  unsetenv(runtime_variable);
  if (failed != 0) {
    LADE_FAIL("cannot start the other process: %s", strerror(failed));
    return -1;
  }
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

CONFORMANCE_TEST(Ipc, WhoOpensTheHandleReadsAndWritesTheMemory) {
  NEEDS_OP(ipc_export);
  char *memory = conformance_device_pattern(runtime, 0, IPC_BYTES, 1);
  ladei_ipc_handle handle;
  /* Any address in the allocation names it. */
  lade_status exported = OP(ipc_export, memory + 100, &handle);
  if (exported == LADE_ERR_UNSUPPORTED) {
    LADE_ASSERT_OK(OP(device_free, 0, memory));
    LADE_SKIP("this device shares no memory between processes");
  }
  LADE_ASSERT_OK(exported);
  int code = run_child(lade_runtime_name(runtime), &handle);
  if (code == CHILD_CANNOT_OPEN) {
    void *base = NULL;
    LADE_ASSERT_OK(OP(ipc_open, 0, &handle, &base));
    LADE_EXPECT(change_pattern(runtime, base));
    LADE_ASSERT_OK(OP(ipc_close, base));
  } else {
    LADE_EXPECT_EQ_INT(code, 0);
  }
  conformance_expect_device_pattern(runtime, 0, memory, IPC_BYTES, 2);
  LADE_ASSERT_OK(OP(device_free, 0, memory));
}

CONFORMANCE_TEST(Ipc, OnlyDeviceMemoryIsExported) {
  NEEDS_OP(ipc_export);
  int on_stack = 0;
  ladei_ipc_handle handle;
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "ipc_export", NULL, OP(ipc_export, &on_stack, &handle));
  EXPECT_REFUSED(LADE_ERR_INVALID_ARGUMENT, "ipc_export", NULL, OP(ipc_export, NULL, &handle));
}
