/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the rendezvous, with descriptors.
 *
 * M1  A message is taken whole or refused; the descriptors of a refused one are closed.
 * M2  The fields of a message are checked before use: a rank is below the size, a text is terminated.
 * Locks: none.
 */
#include "group/local/messages.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

typedef union control {
  struct cmsghdr header; /* its alignment */
  char bytes[CMSG_SPACE(sizeof(int) * LADEI_GROUP_FDS)];
} control;

int ladei_group_message_send(int socket, const void *message, size_t bytes, const int *fds, size_t fd_count) {
  control ctl;
  struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = bytes};
  assert(fd_count <= LADEI_GROUP_FDS);
  struct msghdr head = {.msg_iov = &part, .msg_iovlen = 1};
  if (fd_count > 0) {
    memset(&ctl, 0, sizeof ctl);
    head.msg_control = ctl.bytes;
    head.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    struct cmsghdr *first = CMSG_FIRSTHDR(&head);
    *first = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int) * fd_count)};
    memcpy(CMSG_DATA(first), fds, sizeof(int) * fd_count);
  }
  ssize_t sent;
  do sent = sendmsg(socket, &head, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : (size_t)sent == bytes ? 0 : EPROTO;
}

static void fds_close(const int *fds, size_t count) {
  for (size_t i = 0; i < count; i++) (void)close(fds[i]);
}

/* Takes the descriptors of a message. False: there were more than `capacity`; the rest are closed. */
static bool fds_take(struct msghdr *head, int *fds, size_t capacity, size_t *out_count) {
  bool fits = true;
  *out_count = 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(head); c != NULL; c = CMSG_NXTHDR(head, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (*out_count < capacity) {
        fds[(*out_count)++] = fd;
      } else {
        (void)close(fd);
        fits = false;
      }
    }
  }
  return fits;
}

int ladei_group_message_receive(int socket, void *message, size_t bytes, int *fds, size_t capacity, size_t *out_count) {
  control ctl;
  struct iovec part = {.iov_base = message, .iov_len = bytes};
  struct msghdr head = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = ctl.bytes, .msg_controllen = sizeof ctl.bytes};
  ssize_t got;
  *out_count = 0;
  do got = recvmsg(socket, &head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (got < 0 && errno == EINTR);
  if (got < 0) return errno;
  bool fits = fds_take(&head, fds, capacity, out_count);
  if (got == 0 && *out_count == 0) return ECONNRESET; /* hung up */
  if (fits && (size_t)got == bytes && (head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0) return 0;
  assert(*out_count <= capacity);
  fds_close(fds, *out_count); /* M1 */
  *out_count = 0;
  return EPROTO;
}

lade_status ladei_group_hello_check(const ladei_group_hello *hello, const ladei_group_shared *shared, int32_t transport,
                                    int32_t process) {
  const char *name = shared->name;
  if (hello->size != shared->size) {
    return ladei_error(LADE_ERR_PEER, 0, "group \"%s\": rank %u (process %d) has a size of %u, rank 0 one of %u", name,
                       (unsigned)hello->rank, (int)process, (unsigned)hello->size, (unsigned)shared->size);
  }
  if (hello->rank == 0 || hello->rank >= shared->size) {
    return ladei_error(LADE_ERR_PEER, 0, "group \"%s\": process %d came as rank %u of %u", name, (int)process,
                       (unsigned)hello->rank, (unsigned)shared->size);
  }
  if (hello->slots != shared->slots || hello->slot_bytes != shared->slot_bytes || hello->transport != transport) {
    return ladei_error(
        LADE_ERR_PEER, 0,
        "group \"%s\": rank %u (process %d) has %u slots of %llu bytes, transport %d; rank 0 %u of %llu, "
        "transport %d",
        name, (unsigned)hello->rank, (int)process, (unsigned)hello->slots, (unsigned long long)hello->slot_bytes,
        (int)hello->transport, (unsigned)shared->slots, (unsigned long long)shared->slot_bytes, (int)transport);
  }
  return LADE_OK;
}

lade_status ladei_group_answer_check(ladei_group_answer *answer, size_t fd_count, const ladei_group_shared *shared) {
  answer->text[sizeof answer->text - 1] = '\0';
  ladei_text_tame(answer->text);
  bool is_one = memcmp(answer->magic, LADEI_GROUP_MAGIC, sizeof answer->magic) == 0;
  if (is_one && answer->status != LADE_OK) {
    bool known = ladei_status_is_error(answer->status);
    return ladei_error(known ? (lade_status)answer->status : LADE_ERR_PEER, 0, "%s", answer->text);
  }
  if (is_one && fd_count == (answer->lives != 0 ? shared->size + 1u : 1u)) return LADE_OK;
  return ladei_error(LADE_ERR_PEER, 0, "group \"%s\": what rank 0 answers is no answer of this version", shared->name);
}
