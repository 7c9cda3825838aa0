/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rights and attributes of a file that replaces another.
 *
 *   closed to all but its owner -> attributes -> owner, group -> access control lists -> mode
 *
 * I1  At no time does the new file allow any access that the old one does not. So it is closed first. Access control
 *     lists name other users and take effect at once, so they come after the group is right; the mode's group bits
 *     limit them, and come last.
 * I2  A right or attribute that cannot be kept only takes access away. Without the old group its members count as
 *     others, and so did the members of the new group: both get only what both had. Without the old lists, which may
 *     forbid what the mode allows, the owner alone keeps access.
 * I3  Some things do not survive, as a write into the old file would have removed them: the set-user-id, set-group-id
 *     and sticky bits, capabilities, and signatures of its bytes.
 * Locks: none; the file belongs to one thread.
 */
#include "base/file_rights.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

enum { ALL_RIGHTS = 0777, OTHERS_RIGHTS = 0077, OWNER_RIGHTS = 0700, CLOSED = 0600 };

static const char access_list[] = "system.posix_acl_access";

typedef struct takeover {
  int old; /* open for reading; -1: it is not readable */
  int fd;
  struct stat of_old, of_new;
  bool group_kept, lists_kept;
  int code;       /* errno of the first loss */
  char lost[256]; /* what was lost, for the log */
  char names[XATTR_LIST_MAX];
  char value[XATTR_SIZE_MAX], other[XATTR_SIZE_MAX];
} takeover;

static lade_status rights_error(const char *doing, const char *path, int code) {
  char text[128];
  return ladei_error(LADE_ERR_IO, code, "%s %s: %s", doing, path, strerror_r(code, text, sizeof text));
}

static void lose(takeover *t, const char *what, const char *name) {
  size_t length = strlen(t->lost);
  t->code = t->code != 0 ? t->code : errno;
  snprintf(t->lost + length, sizeof t->lost - length, "%s%s%s", length > 0 ? ", " : "", what, name);
}

/* --- extended attributes ------------------------------------------------------------------------------------------ */

/* The file system or a sandbox has no such attribute. */
static bool is_absent(int code) { return code == ENODATA || code == ENOTSUP || code == ENOSYS; }

static bool begins_with(const char *name, const char *prefix) { return strncmp(name, prefix, strlen(prefix)) == 0; }

static bool is_list(const char *name) { return begins_with(name, "system."); }

/* Other name spaces belong to the file system (where a file lies, how it is packed), as do the marks of overlays. */
static bool is_attribute(const char *name) {
  bool common = begins_with(name, "user.") || begins_with(name, "security.") || begins_with(name, "trusted.");
  bool of_bytes = strcmp(name, "security.capability") == 0 || strcmp(name, "security.ima") == 0 ||
                  strcmp(name, "security.evm") == 0; /* I3 */
  return common && !of_bytes && !begins_with(name, "trusted.overlay.") && !begins_with(name, "user.overlay.");
}

/* False with errno: the new file lacks the attribute, or has another value of it. */
static bool attribute_keep(takeover *t, const char *name) {
  ssize_t bytes = fgetxattr(t->old, name, t->value, sizeof t->value);
  if (bytes < 0) return false;
  if (fgetxattr(t->fd, name, t->other, sizeof t->other) == bytes && memcmp(t->value, t->other, (size_t)bytes) == 0)
    return true;
  return fsetxattr(t->fd, name, t->value, (size_t)bytes, 0) == 0;
}

/* Removes a list that the new file got from its folder, and the old one does not have. */
static bool access_list_remove(const takeover *t) { return fremovexattr(t->fd, access_list) == 0 || is_absent(errno); }

static void access_list_keep(takeover *t) {
  bool known = t->old >= 0 && fgetxattr(t->old, access_list, NULL, 0) >= 0;
  if (t->old < 0) errno = EACCES;
  bool absent = !known && is_absent(errno);
  /* A list also refers to the file's own group: with another group it would mean something else. */
  t->lists_kept = absent ? access_list_remove(t) : known && t->group_kept && attribute_keep(t, access_list);
  if (!t->lists_kept) {
    lose(t, "access control list", "");
    (void)access_list_remove(t); /* the mode closes the rest of it */
  }
}

/* All attributes, or all lists except the one that every file system with named rights knows. */
static void attributes_keep(takeover *t, ssize_t names_bytes, bool lists) {
  for (const char *name = t->names; name < t->names + names_bytes; name += strlen(name) + 1) {
    bool wanted = lists ? is_list(name) && strcmp(name, access_list) != 0 : is_attribute(name);
    if (!wanted || attribute_keep(t, name) || errno == ENODATA) continue;
    lose(t, "attribute ", name);
    t->lists_kept = t->lists_kept && !lists;
  }
}

/* --- owner, group, mode ------------------------------------------------------------------------------------------- */

static void owner_keep(takeover *t) {
  bool owner = t->of_old.st_uid == t->of_new.st_uid, group = t->of_old.st_gid == t->of_new.st_gid;
  if (!owner && fchown(t->fd, t->of_old.st_uid, t->of_old.st_gid) == 0) owner = group = true;
  if (!owner) lose(t, "owner", "");
  if (!group && fchown(t->fd, (uid_t)-1, t->of_old.st_gid) == 0) group = true;
  if (!group) lose(t, "group", "");
  t->group_kept = group;
}

/* I2 */
static mode_t mode_allowed(const takeover *t) {
  mode_t mode = t->of_old.st_mode & ALL_RIGHTS, both = mode >> 3 & mode & 7;
  if (!t->lists_kept) return mode & OWNER_RIGHTS;
  return t->group_kept ? mode : (mode & OWNER_RIGHTS) | both << 3 | both;
}

static mode_t mode_now(const takeover *t) {
  struct stat facts;
  return fstat(t->fd, &facts) == 0 ? facts.st_mode & ALL_RIGHTS : ALL_RIGHTS;
}

static lade_status mode_keep(takeover *t, const char *path) {
  mode_t mode = mode_allowed(t);
  if (mode_now(t) != mode && fchmod(t->fd, mode) != 0) lose(t, "mode", "");
  mode_t now = mode_now(t);
  return (now & OTHERS_RIGHTS & ~mode) == 0
             ? LADE_OK
             : ladei_error(LADE_ERR_IO, EPERM, "saving %s: the new file would have mode %04o; expected at most %04o",
                           path, (unsigned)now, (unsigned)mode);
}

/* I1 */
static lade_status file_close_to_others(takeover *t, const char *path) {
  if (fstat(t->fd, &t->of_new) != 0) return rights_error("saving", path, errno);
  if ((t->of_new.st_mode & OTHERS_RIGHTS) != 0)
    (void)fchmod(t->fd, CLOSED); /* where modes are fixed, mode_keep() compares them */
  return LADE_OK;
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static lade_status takeover_run(takeover *t, const char *path) {
  LADEI_TRY(file_close_to_others(t, path));
  ssize_t names_bytes = t->old >= 0 ? flistxattr(t->old, t->names, sizeof t->names) : 0;
  if (names_bytes < 0 && !is_absent(errno)) lose(t, "attributes", "");
  attributes_keep(t, names_bytes, false);
  owner_keep(t);
  access_list_keep(t);
  attributes_keep(t, names_bytes, true);
  lade_status status = mode_keep(t, path);
  if (status == LADE_OK && t->lost[0] != '\0') {
    char text[128];
    ladei_log(LADE_LOG_WARN, "saving %s: the new file has mode %04o and not all that the old one had: %s: %s", path,
              (unsigned)mode_now(t), t->lost, strerror_r(t->code, text, sizeof text));
  }
  return status;
}

/* False with errno; ENOENT: there is no such file. */
static bool old_open(int folder, const char *name, int *out_old, struct stat *out) {
  *out_old = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (*out_old < 0 && errno == ENOENT) return false;
  return (*out_old >= 0 ? fstat(*out_old, out) : fstatat(folder, name, out, 0)) == 0;
}

lade_status ladei_file_rights_keep(int folder, const char *name, int fd, const char *path, bool *out_there) {
  lade_status status = LADE_OK;
  takeover *t = calloc(1, sizeof *t);
  if (t == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "saving %s: no memory", path);
  t->fd = fd;
  bool found = old_open(folder, name, &t->old, &t->of_old);
  *out_there = found && S_ISREG(t->of_old.st_mode);
  if (*out_there)
    status = takeover_run(t, path);
  else if (!found && errno != ENOENT)
    status = rights_error("reading the rights of the old", path, errno);
  if (t->old >= 0) (void)close(t->old);
  free(t);
  return status;
}
