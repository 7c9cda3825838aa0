/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory: addresses and physical memory are separate.
 *
 *   reservation   |--------- range, kind RESERVED ---------|
 *   mappings          |-- h1 --|-- h2 --|    |-- h1 --|         a handle may be mapped in several places
 *   physical      device's memory file: [h1][h2] ...            a handle's bytes stay while it lives
 *                 exportable handles: a file each               ... or a descriptor of its file, in any process
 *
 * I1  Mappings lie whole inside one reservation and do not overlap.
 * I2  A handle lives while references + mapped_count > 0; it charges its device as long, and its extent of the file is
 *     never reused for another handle.
 * I3  Once work has named a reservation's addresses, they are always mapped to something: if a handle was unmapped
 *     under running work, spare pages take its place, so a copy that races with the unmapping does no harm.
 * Locks: rt->lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/size.h"
#include "runtime/soft/ops/enter.h"
#include "runtime/soft/ops/ops.h"
#include "runtime/soft/state/address.h"
#include "runtime/soft/state/devices.h"
#include "runtime/soft/state/findings.h"
#include "runtime/soft/state/hazard.h"
#include "runtime/soft/state/lock.h"
#include "runtime/soft/state/mappings.h"

/* The device of an op of this group, or NULL with an error recorded. */
static soft_device *vm_device(soft_runtime *rt, soft_op op, int ordinal, lade_status *out_status) {
  *out_status = ladei_soft_enter(rt, op);
  if (*out_status != LADE_OK) return NULL;
  soft_device *device = ladei_soft_device_use(rt, op, ordinal, out_status);
  if (device == NULL || !device->description.no_virtual_memory) return device;
  *out_status = ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                            "%s: device %d has no virtual memory", ladei_soft_op_name(op), ordinal);
  return NULL;
}

static lade_status bad_range(soft_op op, const void *address, size_t bytes, const char *expected) {
  return ladei_soft_refuse(op, LADEI_SOFT_NATIVE_INVALID_VALUE, "range", expected, "%zu bytes at %p", bytes, address);
}

static bool is_whole(const soft_device *device, size_t bytes) {
  return bytes != 0 && bytes < LADEI_SIZE_LIMIT && bytes % device->description.vm_granularity_bytes == 0;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static lade_status vm_granularity(void *self, int ordinal, size_t *out_minimum_bytes, size_t *out_recommended_bytes) {
  lade_status status;
  const soft_device *device = vm_device(soft_self(self), SOFT_OP_vm_granularity, ordinal, &status);
  if (device == NULL) return status;
  *out_minimum_bytes = *out_recommended_bytes = device->description.vm_granularity_bytes;
  return LADE_OK;
}

static lade_status vm_reserve(void *self, int ordinal, size_t bytes, size_t align, void **out_address) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  soft_device *device = vm_device(rt, SOFT_OP_vm_reserve, ordinal, &status);
  if (device == NULL) return status;
  size_t granularity = device->description.vm_granularity_bytes;
  /* A reservation may exceed the device, and so the limit of a device's size: callers reserve 9/8 of it. */
  bool whole = bytes != 0 && bytes < 2 * LADEI_SIZE_LIMIT && bytes % granularity == 0;
  if (!whole || (align != 0 && !ladei_is_power_of_two(align)))
    return bad_range(SOFT_OP_vm_reserve, NULL, bytes, "a multiple of the granularity, aligned to a power of two");
  ladei_soft_lock(rt);
  device->active = true;
  const soft_range *range =
      ladei_soft_range_new(rt, SOFT_RANGE_RESERVED, device, false, bytes, ladei_size_max(align, granularity), -1);
  if (range != NULL) *out_address = soft_address_of(soft_tree_key(&range->node));
  ladei_soft_unlock(rt);
  if (range != NULL) return LADE_OK;
  return ladei_error(LADE_ERR_OUT_OF_DEVICE_MEMORY, LADEI_SOFT_NATIVE_OUT_OF_MEMORY,
                     "vm_reserve: no room for %zu bytes of addresses", bytes);
}

static lade_status vm_address_free(void *self, void *address, size_t bytes) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_vm_address_free);
  if (status != LADE_OK) return status;
  soft_range *range = ladei_soft_range_at(rt, address);
  if (range == NULL || range->kind != SOFT_RANGE_RESERVED || soft_tree_key(&range->node) != soft_key_of(address) ||
      range->bytes != bytes)
    status = bad_range(SOFT_OP_vm_address_free, address, bytes, "a whole reservation");
  else if (ladei_soft_mapping_from(rt, soft_tree_key(&range->node), soft_tree_key(&range->node) + bytes) != NULL)
    status = bad_range(SOFT_OP_vm_address_free, address, bytes, "a reservation without mappings");
  else
    ladei_soft_range_end(rt, range);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- physical memory --------------------------------------------------------------------------------------------- */

/* Marks a file as memory of a software device: sealed to its size, for good. */
enum { FILE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Its name gives the device of the memory, also to a process that imports it. */
#define FILE_NAME "lade-soft-memory-"

static bool file_new(soft_vm *vm) {
  struct stat facts;
  char name[sizeof FILE_NAME + 12];
  (void)snprintf(name, sizeof name, FILE_NAME "%d", vm->device);
  int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return false;
  if (ftruncate(file, (off_t)vm->bytes) != 0 || fcntl(file, F_ADD_SEALS, FILE_SEALS) != 0 || fstat(file, &facts) != 0) {
    close(file);
    return false;
  }
  vm->file = file;
  vm->inode = facts.st_ino;
  return true;
}

/* Room for a handle in a file: one of its own if it is exportable. False: the system refuses. */
static bool extent_new(soft_device *device, soft_vm *vm, bool exportable) {
  if (exportable) return file_new(vm);
  if (device->description.addresses_only) return true;
  if (device->memory_file < 0) device->memory_file = memfd_create("lade-soft-device", MFD_CLOEXEC);
  if (device->memory_file < 0) return false;
  vm->offset = device->memory_file_end;
  if (ftruncate(device->memory_file, (off_t)(vm->offset + vm->bytes)) != 0) return false;
  device->memory_file_end += vm->bytes;
  return true;
}

static void vm_free_if_unused(soft_runtime *rt, soft_vm *vm) {
  if (vm->references != 0 || vm->mapped_count != 0) return;
  soft_device *device = &rt->devices[vm->device];
  if (vm->file >= 0) {
    close(vm->file);
    vm->file = -1;
  } else if (device->memory_file >= 0) {
    fallocate(device->memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)vm->offset, (off_t)vm->bytes);
  }
  ladei_soft_memory_uncharge(device, vm->bytes);
  ladei_soft_table_put(&rt->vm_table, vm);
}

/* A file whose memory another process made. */
typedef struct foreign_file {
  int descriptor;
  uint64_t inode;
  size_t bytes;
} foreign_file;

static bool file_adopt(soft_vm *vm, const foreign_file *foreign) {
  vm->file = fcntl(foreign->descriptor, F_DUPFD_CLOEXEC, 0);
  vm->inode = foreign->inode;
  return vm->file >= 0;
}

/* In a foreign file, or if that is NULL in new memory. */
static lade_status create_locked(soft_runtime *rt, soft_device *device, size_t bytes, bool exportable,
                                 const foreign_file *foreign, ladei_vm_handle *out_handle) {
  if (!ladei_soft_memory_charge(device, bytes))
    return ladei_soft_out_of_device_memory(SOFT_OP_vm_create, device, bytes);
  soft_vm *vm = ladei_soft_table_take(&rt->vm_table);
  if (vm != NULL) {
    vm->device = device->ordinal;
    vm->bytes = bytes;
    vm->file = -1;
    vm->offset = 0;
    vm->references = 1;
    vm->mapped_count = 0;
    if (foreign != NULL ? file_adopt(vm, foreign) : extent_new(device, vm, exportable)) {
      ladei_soft_table_publish(&rt->vm_table, vm);
      *out_handle = ladei_soft_table_handle(&rt->vm_table, vm);
      return LADE_OK;
    }
    ladei_soft_table_put(&rt->vm_table, vm);
  }
  ladei_soft_memory_uncharge(device, bytes);
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "%s: the system refuses %zu bytes",
                     foreign != NULL ? "vm_import" : "vm_create", bytes);
}

static lade_status vm_create(void *self, int ordinal, size_t bytes, bool exportable, ladei_vm_handle *out_handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  soft_device *device = vm_device(rt, SOFT_OP_vm_create, ordinal, &status);
  if (device == NULL) return status;
  if (!is_whole(device, bytes)) return bad_range(SOFT_OP_vm_create, NULL, bytes, "a multiple of the granularity");
  ladei_soft_lock(rt);
  device->active = true;
  status = create_locked(rt, device, bytes, exportable, NULL, out_handle);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status vm_stale(soft_runtime *rt, soft_op op, ladei_vm_handle handle) {
  return ladei_soft_stale(rt, op, LADE_ERR_INVALID_ARGUMENT, "memory handle", handle);
}

static lade_status vm_release(void *self, ladei_vm_handle handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_vm_release);
  if (status != LADE_OK) return status;
  soft_vm *vm = ladei_soft_table_find(&rt->vm_table, handle);
  if (vm == NULL) {
    status = vm_stale(rt, SOFT_OP_vm_release, handle);
  } else {
    if (--vm->references == 0) ladei_soft_table_hide(&rt->vm_table, vm);
    vm_free_if_unused(rt, vm);
  }
  return ladei_soft_unlock_with(rt, status);
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

static lade_status map_check(soft_runtime *rt, void *address, size_t bytes, const soft_vm *vm) {
  const soft_range *range = ladei_soft_range_at(rt, address);
  const soft_device *device = &rt->devices[vm->device];
  bool inside = range != NULL && range->kind == SOFT_RANGE_RESERVED && ladei_soft_range_covers(range, address, bytes);
  if (!inside || bytes != vm->bytes || soft_key_of(address) % device->description.vm_granularity_bytes != 0)
    return bad_range(SOFT_OP_vm_map, address, bytes, "the whole handle, at whole granules of a reservation");
  if (range->has_bytes == (device->description.addresses_only != 0))
    return bad_range(SOFT_OP_vm_map, address, bytes, "addresses of the same kind of device as the memory");
  if (ladei_soft_mapping_at(rt, address) != NULL ||
      ladei_soft_mapping_from(rt, soft_key_of(address), soft_key_of(address) + bytes) != NULL)
    return bad_range(SOFT_OP_vm_map, address, bytes, "addresses without a mapping");
  return LADE_OK;
}

static lade_status map_locked(soft_runtime *rt, void *address, size_t bytes, ladei_vm_handle handle) {
  soft_vm *vm = ladei_soft_table_find(&rt->vm_table, handle);
  if (vm == NULL) return vm_stale(rt, SOFT_OP_vm_map, handle);
  LADEI_TRY(map_check(rt, address, bytes, vm));
  const soft_device *device = &rt->devices[vm->device];
  soft_mapping *mapping = calloc(1, sizeof *mapping);
  bool mapped = mapping != NULL;
  if (mapped && !device->description.addresses_only) {
    int file = vm->file >= 0 ? vm->file : device->memory_file;
    mapped =
        mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)vm->offset) != MAP_FAILED;
  }
  if (!mapped) {
    free(mapping);
    return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "vm_map: the system refuses to map %zu bytes", bytes);
  }
  mapping->bytes = bytes;
  mapping->vm = vm;
  vm->mapped_count++;
  soft_tree_insert(&rt->mappings, &mapping->node, soft_key_of(address));
  return LADE_OK;
}

static lade_status vm_map(void *self, void *address, size_t bytes, ladei_vm_handle handle) {
  soft_runtime *rt = soft_self(self);
  LADEI_TRY(ladei_soft_enter_locked(rt, SOFT_OP_vm_map));
  lade_status status = map_locked(rt, address, bytes, handle);
  return ladei_soft_unlock_with(rt, status);
}

/* [address, address + bytes) consists of whole mappings without a gap. */
static bool mappings_are_whole(const soft_runtime *rt, const void *address, size_t bytes) {
  uint64_t next = soft_key_of(address), end = next + bytes;
  while (next < end) {
    const soft_mapping *mapping = ladei_soft_mapping_at(rt, soft_address_of(next));
    if (mapping == NULL || soft_tree_key(&mapping->node) != next || mapping->bytes > end - next) return false;
    next += mapping->bytes;
  }
  return bytes != 0;
}

static void addresses_clear(const soft_range *range, void *address, size_t bytes) {
  if (!range->has_bytes) return;
  int protection = range->inflight != 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  mmap(address, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static void unmap_locked(soft_runtime *rt, void *address, size_t bytes) {
  uint64_t begin = soft_key_of(address), end = begin + bytes;
  addresses_clear(ladei_soft_range_at(rt, address), address, bytes);
  ladei_soft_hazard_forget(rt, begin, bytes);
  soft_mapping *mapping;
  while ((mapping = ladei_soft_mapping_from(rt, begin, end)) != NULL) {
    ladei_ordered_set_remove(&rt->mappings, &mapping->node);
    mapping->vm->mapped_count--;
    vm_free_if_unused(rt, mapping->vm);
    free(mapping);
  }
}

static lade_status vm_unmap(void *self, void *address, size_t bytes) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_vm_unmap);
  if (status != LADE_OK) return status;
  if (!mappings_are_whole(rt, address, bytes))
    status = bad_range(SOFT_OP_vm_unmap, address, bytes, "whole mapped handles");
  else
    unmap_locked(rt, address, bytes);
  return ladei_soft_unlock_with(rt, status);
}

static lade_status access_locked(soft_runtime *rt, void *address, size_t bytes, int device, bool writable) {
  if (!mappings_are_whole(rt, address, bytes))
    return bad_range(SOFT_OP_vm_set_access, address, bytes, "whole mapped handles");
  uint64_t begin = soft_key_of(address), end = begin + bytes, bit = (uint64_t)1 << device;
  for (uint64_t next = begin; next < end; next += ladei_soft_mapping_from(rt, next, end)->bytes) {
    int owner = ladei_soft_mapping_from(rt, next, end)->vm->device;
    if (writable && owner != device && rt->devices[owner].description.no_peer_access) {
      return ladei_error(LADE_ERR_UNSUPPORTED, LADEI_SOFT_NATIVE_NOT_SUPPORTED,
                         "vm_set_access: device %d cannot use memory of device %d", device, owner);
    }
  }
  for (uint64_t next = begin; next < end; next += ladei_soft_mapping_from(rt, next, end)->bytes) {
    soft_mapping *mapping = ladei_soft_mapping_from(rt, next, end);
    mapping->access = writable ? mapping->access | bit : mapping->access & ~bit;
  }
  return LADE_OK;
}

static lade_status vm_set_access(void *self, void *address, size_t bytes, int ordinal, bool writable) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  if (vm_device(rt, SOFT_OP_vm_set_access, ordinal, &status) == NULL) return status;
  ladei_soft_lock(rt);
  status = access_locked(rt, address, bytes, ordinal, writable);
  return ladei_soft_unlock_with(rt, status);
}

/* ---- export: the memory's own file ------------------------------------------------------------------------------- */

static lade_status vm_export(void *self, ladei_vm_handle handle, int *out_fd) {
  soft_runtime *rt = soft_self(self);
  lade_status status = ladei_soft_enter_locked(rt, SOFT_OP_vm_export);
  if (status != LADE_OK) return status;
  const soft_vm *vm = ladei_soft_table_find(&rt->vm_table, handle);
  int fd = -1;
  if (vm == NULL)
    status = vm_stale(rt, SOFT_OP_vm_export, handle);
  else if (vm->file < 0)
    status = ladei_soft_refuse(SOFT_OP_vm_export, LADEI_SOFT_NATIVE_INVALID_VALUE, "handle", "one made exportable",
                               "%#llx", (unsigned long long)handle);
  else if ((fd = fcntl(vm->file, F_DUPFD_CLOEXEC, 0)) < 0)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "vm_export: the system refuses a descriptor");
  ladei_soft_unlock(rt);
  if (status == LADE_OK) *out_fd = fd;
  return status;
}

/* The live handle of this file; NULL if it is another process's, or its last handle is gone. */
static soft_vm *handle_of_file(soft_runtime *rt, uint64_t inode) {
  for (uint32_t i = 0; i < atomic_load(&rt->vm_table.count); i++) {
    soft_vm *vm = ladei_soft_table_at(&rt->vm_table, i);
    if (atomic_load(&vm->slot.live) && vm->file >= 0 && vm->inode == inode) return vm;
  }
  return NULL;
}

/* The device of a file's memory: by its name, or `named` without /proc or without such a device here. */
static soft_device *device_of_file(soft_runtime *rt, int descriptor, soft_device *named) {
  static const char prefix[] = "/memfd:" FILE_NAME;
  char path[64], name[sizeof prefix + 64];
  int ordinal = -1;
  (void)snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(path, name, sizeof name - 1);
  name[length < 0 ? 0 : length] = '\0';
  if (strncmp(name, prefix, sizeof prefix - 1) == 0) ordinal = atoi(name + sizeof prefix - 1);
  bool known = ordinal >= 0 && ordinal < rt->device_count && !rt->devices[ordinal].description.no_virtual_memory;
  return known ? &rt->devices[ordinal] : named;
}

/* Adds a reference to a handle of this process. Another process's memory becomes a handle here, charged to its device,
 * as if both used the same one. */
static lade_status import_locked(soft_runtime *rt, soft_device *device, const foreign_file *file,
                                 ladei_vm_handle *out_handle) {
  soft_vm *vm = handle_of_file(rt, file->inode);
  if (vm == NULL) return create_locked(rt, device, file->bytes, true, file, out_handle);
  vm->references++;
  *out_handle = ladei_soft_table_handle(&rt->vm_table, vm);
  return LADE_OK;
}

static lade_status vm_import(void *self, int ordinal, int fd, ladei_vm_handle *out_handle) {
  soft_runtime *rt = soft_self(self);
  lade_status status;
  soft_device *device = vm_device(rt, SOFT_OP_vm_import, ordinal, &status);
  if (device == NULL) return status;
  struct stat facts;
  bool sealed = fcntl(fd, F_GET_SEALS) == FILE_SEALS && fstat(fd, &facts) == 0;
  if (!sealed || !is_whole(device, (size_t)facts.st_size))
    return ladei_soft_refuse(SOFT_OP_vm_import, LADEI_SOFT_NATIVE_INVALID_VALUE, "fd", "a descriptor from vm_export",
                             "%d", fd);
  const foreign_file file = {.descriptor = fd, .inode = facts.st_ino, .bytes = (size_t)facts.st_size};
  ladei_soft_lock(rt);
  status = import_locked(rt, device_of_file(rt, fd, device), &file, out_handle);
  return ladei_soft_unlock_with(rt, status);
}

void ladei_soft_vm_ops(lade_runtime_ops *ops) {
  ops->vm_granularity = vm_granularity;
  ops->vm_reserve = vm_reserve;
  ops->vm_address_free = vm_address_free;
  ops->vm_create = vm_create;
  ops->vm_release = vm_release;
  ops->vm_map = vm_map;
  ops->vm_unmap = vm_unmap;
  ops->vm_set_access = vm_set_access;
  ops->vm_export = vm_export;
  ops->vm_import = vm_import;
}
