/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges of an object from a web server on the loopback into host memory, as a pipeline's client reads them: against plain sockets, one
 * thread with epoll that receives straight into the blocks. Throughput, and the processor time of this process alone.
 *
 *   nginx, one worker, sendfile ==> 64 ranges of 8 MiB, 8 or 64 under way, into as many blocks
 *
 * A second server is far away: it answers after 100 ms, and gives each connection 1 Gbit/s. It sleeps instead of a network, so
 * handshakes take no time, and TCP does not begin slowly. The bound is that of requests that follow each other on each connection:
 * under way * bytes / (100 ms + bytes / 125 MB/s).
 *
 * Every byte of the first, uncounted run of each is compared. Needs nginx.
 * usage: urls [the options of every benchmark (benchmarks/frame.h)]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/lock.h"
#include "benchmarks/frame.h"
#include "sources/source.h"

enum { FAR_NS = 100000000, FAR_BYTES_PER_S = 125000000, FAR_STEP = 128 << 10 };
enum { RANGES = 64, RANGE_BYTES = 8 << 20, QUICK_BYTES = 1 << 20, BLOCKS = 64, REPEATS = 7 };

static struct {
  char folder[512];
  size_t range_bytes;
  int port, far_port;
  pid_t server, far_server;
  ladei_source_client *client;
  char *blocks; /* NULL: not open yet */
} world;

/* How one variant is run. */
typedef struct setup {
  unsigned under_way;
  bool by_sockets;
  bool is_far;
  bool is_bound;  /* computed */
  bool processor; /* the value is processor seconds for a GiB; else GB/s */
  bool compared;  /* its bytes were */
} setup;

/* --- the server --------------------------------------------------------------------------------------------------- */

static bool failed(const char *what) {
  fprintf(stderr, "urls: %s: %s\n", what, strerror(errno));
  return false;
}

static unsigned char byte_at(uint64_t offset) { return (unsigned char)((offset * UINT64_C(0x9E3779B97F4A7C15)) >> 56); }

static bool file_write(const char *name, const char *text) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", world.folder, name);
  FILE *file = fopen(path, "w");
  if (file == NULL) return failed(path);
  bool good = fputs(text, file) >= 0;
  return fclose(file) == 0 && good;
}

static bool object_write(void) {
  char path[600];
  snprintf(path, sizeof path, "%s/object", world.folder);
  FILE *file = fopen(path, "w");
  unsigned char *piece = malloc(world.range_bytes);
  if (file == NULL || piece == NULL) return failed(path);
  bool good = true;
  for (uint64_t i = 0; i < RANGES && good; i++) {
    for (uint64_t k = 0; k < world.range_bytes; k++) piece[k] = byte_at(i * world.range_bytes + k);
    good = fwrite(piece, world.range_bytes, 1, file) == 1;
  }
  free(piece);
  return fclose(file) == 0 && good;
}

static struct sockaddr_in address_of(int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

static int port_free(void) {
  struct sockaddr_in address = address_of(0);
  socklen_t bytes = sizeof address;
  int s = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(s, (struct sockaddr *)&address, bytes) != 0 || getsockname(s, (struct sockaddr *)&address, &bytes) != 0)
    address.sin_port = 0;
  close(s);
  return ntohs(address.sin_port);
}

static int connection_open(int port) {
  struct sockaddr_in address = address_of(port);
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s >= 0 && connect(s, (struct sockaddr *)&address, sizeof address) == 0) return s;
  if (s >= 0) close(s);
  return -1;
}

static bool server_start(void) {
  char conf[8192], prefix[600], errors[600];
  world.port = port_free();
  snprintf(conf, sizeof conf,
           "daemon off; worker_processes 1; pid %1$s/pid; error_log %1$s/errors; %3$s events {} http { access_log off; "
           "sendfile on; client_body_temp_path %1$s/t1; proxy_temp_path %1$s/t2; fastcgi_temp_path %1$s/t3; "
           "uwsgi_temp_path %1$s/t4; scgi_temp_path %1$s/t5; keepalive_requests 1000000; "
           "server { listen 127.0.0.1:%2$d; root %1$s; } }\n",
           world.folder, world.port, getuid() == 0 ? "user root;" : "");
  if (!file_write("nginx.conf", conf)) return false;
  snprintf(prefix, sizeof prefix, "%s/nginx.conf", world.folder);
  snprintf(errors, sizeof errors, "%s/errors", world.folder);
  world.server = fork();
  if (world.server == 0) {
    execlp("nginx", "nginx", "-p", world.folder, "-c", prefix, "-e", errors, (char *)NULL);
    execl("/usr/sbin/nginx", "nginx", "-p", world.folder, "-c", prefix, "-e", errors, (char *)NULL);
    _exit(127);
  }
  for (int i = 0; i < 500; i++) {
    int s = connection_open(world.port);
    if (s >= 0) {
      close(s);
      return true;
    }
    if (waitpid(world.server, NULL, WNOHANG) != 0) break;
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  fprintf(stderr, "urls: nginx does not start; is it installed?\n");
  return false;
}

/* --- the far server: a process with a thread for each connection -------------------------------------------------- */

static void sleep_until(const struct timespec *begun, uint64_t ns) {
  uint64_t at = (uint64_t)begun->tv_nsec + ns;
  struct timespec time = {begun->tv_sec + (time_t)(at / 1000000000), (long)(at % 1000000000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {
  }
}

/* False: the connection has ended. */
static bool far_answer(int socket, int object) {
  char text[4096];
  size_t bytes = 0;
  unsigned long long first, last;
  struct timespec begun;
  do {
    ssize_t got = recv(socket, text + bytes, sizeof text - 1 - bytes, 0);
    if (got <= 0) return false;
    bytes += (size_t)got;
    text[bytes] = '\0';
  } while (strstr(text, "\r\n\r\n") == NULL);
  const char *range = strstr(text, "Range: bytes=");
  if (range == NULL || sscanf(range, "Range: bytes=%llu-%llu", &first, &last) != 2) return false;
  clock_gettime(CLOCK_MONOTONIC, &begun);
  sleep_until(&begun, FAR_NS);
  int head =
      snprintf(text, sizeof text,
               "HTTP/1.1 206 Partial Content\r\nContent-Length: %llu\r\nContent-Range: bytes %llu-%llu/%llu\r\n\r\n",
               last + 1 - first, first, last, (unsigned long long)RANGES * world.range_bytes);
  bool good = send(socket, text, (size_t)head, MSG_NOSIGNAL | MSG_MORE) == head;
  for (off_t at = (off_t)first; good && at <= (off_t)last;) {
    size_t left = (size_t)((off_t)last + 1 - at);
    good = sendfile(socket, object, &at, left < FAR_STEP ? left : FAR_STEP) > 0;
    sleep_until(&begun, FAR_NS + (uint64_t)(at - (off_t)first) * (1000000000 / FAR_BYTES_PER_S));
  }
  return good;
}

static void *far_connection(void *argument) {
  int socket = (int)(intptr_t)argument, one = 1;
  char path[600];
  snprintf(path, sizeof path, "%s/object", world.folder);
  int object = open(path, O_RDONLY | O_CLOEXEC);
  (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  while (object >= 0 && far_answer(socket, object)) {
  }
  close(object);
  close(socket);
  return NULL;
}

static bool far_start(void) {
  struct sockaddr_in address = address_of(world.far_port = port_free());
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, BLOCKS) != 0)
    return failed("the far server");
  world.far_server = fork();
  while (world.far_server == 0) {
    pthread_t thread;
    int socket = accept(listener, NULL, NULL);
    if (socket < 0 || pthread_create(&thread, NULL, far_connection, (void *)(intptr_t)socket) != 0) _exit(1);
    (void)pthread_detach(thread);
  }
  close(listener);
  return world.far_server > 0;
}

/* --- plain sockets ------------------------------------------------------------------------------------------------ */

typedef struct connection {
  int socket;
  unsigned range;
  char *block;
  size_t done;
  char head[1024];
  size_t head_bytes;
  bool in_body;
} connection;

static bool range_ask(connection *c, unsigned range) {
  char text[256];
  uint64_t at = (uint64_t)range * world.range_bytes;
  c->range = range;
  c->done = c->head_bytes = 0;
  c->in_body = false;
  int bytes =
      snprintf(text, sizeof text, "GET /object HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nRange: bytes=%llu-%llu\r\n\r\n",
               world.port, (unsigned long long)at, (unsigned long long)(at + world.range_bytes - 1));
  return send(c->socket, text, (size_t)bytes, MSG_NOSIGNAL) == bytes;
}

/* Takes what the socket has. False: something is wrong. */
static bool connection_read(connection *c) {
  if (c->in_body) {
    ssize_t got = recv(c->socket, c->block + c->done, world.range_bytes - c->done, MSG_DONTWAIT);
    if (got > 0) c->done += (size_t)got;
    return got > 0 || (got < 0 && errno == EAGAIN);
  }
  ssize_t got = recv(c->socket, c->head + c->head_bytes, sizeof c->head - 1 - c->head_bytes, MSG_DONTWAIT);
  if (got <= 0) return got < 0 && errno == EAGAIN;
  c->head_bytes += (size_t)got;
  c->head[c->head_bytes] = '\0';
  char *body = strstr(c->head, "\r\n\r\n");
  if (body == NULL) return c->head_bytes < sizeof c->head - 1;
  c->in_body = true;
  c->done = c->head_bytes - (size_t)(body + 4 - c->head);
  memcpy(c->block, body + 4, c->done);
  return strncmp(c->head, "HTTP/1.1 206", 12) == 0;
}

static bool block_compare(const setup *s, unsigned range, const char *block) {
  if (s->compared) return true;
  for (uint64_t k = 0; k < world.range_bytes; k++)
    if ((unsigned char)block[k] != byte_at((uint64_t)range * world.range_bytes + k)) return false;
  return true;
}

static bool sockets_read(const setup *s) {
  connection connections[BLOCKS];
  struct epoll_event events[BLOCKS];
  unsigned next = 0, left = RANGES;
  int poll = epoll_create1(EPOLL_CLOEXEC);
  bool good = poll >= 0;
  for (unsigned i = 0; i < s->under_way; i++) {
    connection *c = &connections[i];
    c->socket = connection_open(s->is_far ? world.far_port : world.port);
    c->block = world.blocks + (size_t)i * world.range_bytes;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    good = good && c->socket >= 0 && epoll_ctl(poll, EPOLL_CTL_ADD, c->socket, &event) == 0 && range_ask(c, next++);
  }
  while (good && left > 0) {
    int count = epoll_wait(poll, events, BLOCKS, 10000);
    good = count > 0;
    for (int i = 0; i < count && good; i++) {
      connection *c = events[i].data.ptr;
      good = connection_read(c);
      if (!good || !c->in_body || c->done < world.range_bytes) continue;
      good = block_compare(s, c->range, c->block);
      left--;
      c->in_body = false;
      if (next < RANGES) good = good && range_ask(c, next++);
    }
  }
  for (unsigned i = 0; i < s->under_way; i++)
    if (connections[i].socket >= 0) close(connections[i].socket);
  close(poll);
  return good;
}

/* --- lade --------------------------------------------------------------------------------------------------------- */

typedef struct reading {
  const setup *s;
  ladei_lock lock;
  ladei_condition over;
  unsigned next, left;
  bool good;
  ladei_source_read reads[BLOCKS];
} reading;

static void range_begin(reading *r, ladei_source_read *read, ladei_source_object *object, unsigned range);

static void range_ended(ladei_source_read *read, lade_status status) {
  reading *r = read->user;
  unsigned range = (unsigned)(read->offset / world.range_bytes), next;
  bool good = status == LADE_OK && block_compare(r->s, range, read->buffer);
  ladei_lock_acquire(&r->lock);
  next = r->next < RANGES ? r->next++ : RANGES;
  ladei_lock_release(&r->lock);
  if (next < RANGES) range_begin(r, read, read->object, next);
  ladei_lock_acquire(&r->lock);
  r->good = r->good && good;
  if (--r->left == 0) ladei_condition_broadcast(&r->over);
  ladei_lock_release(&r->lock);
}

static void range_begin(reading *r, ladei_source_read *read, ladei_source_object *object, unsigned range) {
  char *block = world.blocks + (size_t)(read - r->reads) * world.range_bytes;
  *read = (ladei_source_read){.object = object,
                              .offset = (uint64_t)range * world.range_bytes,
                              .buffer = block,
                              .bytes = world.range_bytes,
                              .complete = range_ended,
                              .user = r};
  ladei_source_read_begin(read);
}

static bool lade_read(const setup *s) {
  reading *r = calloc(1, sizeof *r);
  char url[64];
  ladei_source_object *object;
  snprintf(url, sizeof url, "http://127.0.0.1:%d/object", s->is_far ? world.far_port : world.port);
  if (r == NULL || ladei_source_object_open(world.client, url, NULL, &object) != LADE_OK) return false;
  *r = (reading){.s = s, .left = RANGES, .next = s->under_way, .good = true};
  ladei_lock_init(&r->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&r->over);
  for (unsigned i = 0; i < s->under_way; i++) range_begin(r, &r->reads[i], object, i);
  ladei_lock_acquire(&r->lock);
  while (r->left > 0) ladei_condition_wait(&r->over, &r->lock);
  ladei_lock_release(&r->lock);
  bool good = r->good;
  ladei_condition_destroy(&r->over);
  ladei_lock_destroy(&r->lock);
  ladei_source_object_close(object);
  free(r);
  return good;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

static double processor_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static double run(void *user) {
  setup *s = user;
  const double bytes = (double)RANGES * (double)world.range_bytes, range = (double)world.range_bytes;
  if (s->is_bound) return s->under_way * range / (FAR_NS / 1e9 + range / FAR_BYTES_PER_S) / 1e9;
  double processor = processor_seconds(), begun = bench_seconds();
  bool good = s->by_sockets ? sockets_read(s) : lade_read(s);
  double seconds = bench_seconds() - begun, used = processor_seconds() - processor;
  if (!good) {
    fprintf(stderr, "urls: %s: wrong bytes, or: %s\n", s->by_sockets ? "sockets" : "lade", lade_last_error()->text);
    return (double)NAN;
  }
  s->compared = true;
  return s->processor ? used / (bytes / (1 << 30)) : bytes / seconds / 1e9;
}

static bool world_open(const bench *b) {
  static const ladei_source_options choices = {.attempts = 1};
  if (world.blocks != NULL) return true;
  world.range_bytes = bench_is_quick(b) ? QUICK_BYTES : RANGE_BYTES;
  snprintf(world.folder, sizeof world.folder, "%s/lade-urls-XXXXXX", bench_temporary_folder());
  if (mkdtemp(world.folder) == NULL) return failed(world.folder);
  world.blocks = malloc((size_t)BLOCKS * world.range_bytes);
  unsetenv("http_proxy");
  return world.blocks != NULL && object_write() && server_start() && far_start() &&
         ladei_source_client_create(&choices, &world.client) == LADE_OK;
}

static void world_close(void) {
  char command[600];
  if (world.client != NULL) ladei_source_client_destroy(world.client);
  if (world.server > 0) kill(world.server, SIGTERM);
  if (world.server > 0) waitpid(world.server, NULL, 0);
  if (world.far_server > 0) kill(world.far_server, SIGKILL);
  if (world.far_server > 0) waitpid(world.far_server, NULL, 0);
  snprintf(command, sizeof command, "rm -rf '%s'", world.folder);
  if (world.folder[0] != '\0' && system(command) != 0) failed(world.folder);
  free(world.blocks);
}

static bool case_run(bench *b, const bench_case *self) {
  const setup *asked = self->user;
  setup setups[] = {*asked, *asked, *asked};
  setups[1].by_sockets = true;
  setups[2].is_bound = true;
  bench_variant variants[] = {{"lade", run, &setups[0]}, {"sockets", run, &setups[1]}, {"bound", run, &setups[2]}};
  json_t *params = json_pack("{s:i, s:i, s:i}", "requests", RANGES, "bytes",
                             bench_is_quick(b) ? QUICK_BYTES : RANGE_BYTES, "under_way", (int)asked->under_way);
  return world_open(b) && bench_measure_repeats(b, bench_is_quick(b) ? 3 : REPEATS, self->name, params,
                                                asked->processor ? "s/GiB" : "GB/s", variants, asked->is_far ? 3 : 2);
}

int main(int argc, char **argv) {
  static const setup setups[] = {{.under_way = 8},
                                 {.under_way = 64},
                                 {.under_way = 8, .processor = true},
                                 {.under_way = 64, .processor = true},
                                 {.under_way = 8, .is_far = true}};
  static const bench_case cases[] = {
      {"throughput_8", "ranges read, 8 under way", case_run, &setups[0]},
      {"throughput_64", "the same, 64 under way", case_run, &setups[1]},
      {"processor_8", "processor time for them, 8 under way", case_run, &setups[2]},
      {"processor_64", "the same, 64 under way", case_run, &setups[3]},
      {"far_8", "ranges over 100 ms and 1 Gbit/s for each connection, 8 under way", case_run, &setups[4]},
  };
  int status = bench_main(argc, argv, "What does it cost to read a URL, beside plain sockets?", cases, 5);
  world_close();
  return status;
}
