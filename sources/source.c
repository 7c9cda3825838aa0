/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client: one thread that runs all exchanges, by libcurl's multi interface.
 *
 *   begin --> queue --> ready --> under way --> complete          the client's thread
 *             (any        ^           |
 *             thread)     |           v
 *                         +------- paused                         an attempt that may be repeated
 *
 * Each host has a queue of those that are ready, and so many under way as options.requests says: a chunk of a thousand
 * small ranges opens no thousand connections, and a silent host holds up its own requests alone.
 *
 * A read that fails in a way that may pass is tried again, from the byte that it has reached, after a pause that doubles
 * and of which half is random, so that clients of one server do not come back together; a server's Retry-After can make
 * it longer. Other reads go on meanwhile.
 *
 * Credentials are loaded when the first signed request needs them, again five minutes before their end, and again when
 * the server says that they are over: by a thread of their own (renewal.h), since services may take seconds to answer. Signed
 * reads are held while there are none that are good; other reads go on.
 *
 * I1  A read is in one place: queue, its host's `ready`, `paused`, `held`, under way (it has an exchange), or the caller's.
 * I2  A read is touched no more once it is completed; neither is its object, which may be closed by then.
 * I3  A read ends after options.attempts attempts at most, each of which ends options.stall_s after its last bytes.
 * I4  host->under_way counts the exchanges of its reads, at most options.requests.
 * I5  While a read is held credentials are being loaded.
 * I6  A cancelled request that was sent whole is answered, or has its attempt end: the server may do what it says after a
 *     connection was closed, when its client cleans up.
 * Locks: `lock` guards queue, `end` and `over` of reads; no call of libcurl is made under it. All else is the thread's.
 */
#include "sources/source.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/thread.h"
#include "sources/exchange.h"
#include "sources/renewal.h"

enum { CONNECT_MS = 10000, STALL_S = 30, ATTEMPTS = 10, PAUSE_MS = 200, REQUESTS = 64 };
enum { PAUSES_MOST = 50, RETRY_AFTER_MOST_S = 60 };
enum { RENEW_S = 300, RENEW_PAUSE_MS = 10000, SKEW_LEAST_S = 60, POLL_MOST_MS = 60000, LOOK_MS = 100 };
static const uint64_t ns_of_ms = 1000000;

TAILQ_HEAD(exchanges, ladei_source_exchange);

struct ladei_source_client {
  ladei_libcurl curl;
  ladei_curl_multi *multi;
  ladei_source_settings settings; /* constant */
  ladei_source_options limits;    /* constant */
  pthread_t thread;
  ladei_lock lock;
  ladei_condition ended;           /* a run is over */
  struct ladei_source_reads queue; /* begun, and not seen by the thread */
  bool end;
  SLIST_HEAD(hosts, ladei_source_host) hosts;
  struct ladei_source_reads paused, held;
  struct exchanges under_way, idle;
  ladei_source_credentials credentials;
  unsigned credentials_number; /* of those loaded last */
  bool credentials_over;       /* the server says so, ... */
  lade_error refusal;          /* ... in these words */
  uint64_t renew_ns;           /* those that are good are not loaded again before */
  ladei_source_renewal renewal;
  time_t skew_s; /* the servers' clock, ahead of this one */
  uint64_t random;
  _Atomic(uint64_t) retries;
};

/* --- the end of a read -------------------------------------------------------------------------------------------- */

static void read_complete(ladei_source_read *read, lade_status status) {
  assert(read->exchange == NULL); /* I1: it becomes the caller's */
  assert(status != LADE_OK ? status != LADE_NOT_READY : read->sends != NULL || read->done == read->bytes);
  const ladei_source_object *object = read->object;
  if (status != LADE_OK && read->sends != NULL) {
    ladei_error_prefix(status, "writing %.200s, %s, attempt %u of %u: ", object->target.shown, read->sends->what,
                       read->attempt, object->client->limits.attempts);
  } else if (status != LADE_OK) {
    ladei_error_prefix(status, "reading %.200s, bytes %llu to %llu, attempt %u of %u: ", object->target.shown,
                       (unsigned long long)read->offset, (unsigned long long)(read->offset + read->bytes - 1),
                       read->attempt, object->client->limits.attempts);
  }
  ladei_lock_assert_none_held();
  read->complete(read, status);
}

static bool is_cancelled(const ladei_source_read *read) {
  return atomic_load_explicit(&read->object->cancelled, memory_order_relaxed);
}

static void read_cancel(ladei_source_read *read) {
  if (read->sends != NULL)
    read_complete(read, ladei_error(LADE_ERR_CANCELLED, ECANCELED, "cancelled"));
  else
    read_complete(
        read, ladei_error(LADE_ERR_CANCELLED, ECANCELED, "cancelled after %zu of %zu bytes", read->done, read->bytes));
}

/* --- credentials -------------------------------------------------------------------------------------------------- */

static time_t client_time(const ladei_source_client *client) { return time(NULL) + client->skew_s; }

static bool same_text(const char *a, const char *b) { return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0); }

static int64_t credentials_left_s(const ladei_source_client *client) {
  const ladei_source_credentials *now = &client->credentials;
  return now->until != 0 ? now->until - client_time(client) : INT64_MAX;
}

static bool credentials_are_good(const ladei_source_client *client) {
  return client->credentials.key != NULL && !client->credentials_over && credentials_left_s(client) > 0;
}

/* Before a signed request. LADE_NOT_READY: it is to be held (I5). */
static lade_status credentials_ready(ladei_source_client *client) {
  bool good = credentials_are_good(client);
  bool due = !good || (credentials_left_s(client) <= RENEW_S && ladei_clock_ns(CLOCK_MONOTONIC) >= client->renew_ns);
  lade_status status = due && !client->renewal.under_way ? ladei_source_renewal_begin(&client->renewal) : LADE_OK;
  if (status != LADE_OK) client->renew_ns = ladei_clock_ns(CLOCK_MONOTONIC) + RENEW_PAUSE_MS * ns_of_ms;
  if (good) return LADE_OK;
  return status == LADE_OK ? LADE_NOT_READY : status;
}

/* Takes those that were found, unless they are the same. LADE_ERR_IO: so they are, and no longer good. */
static lade_status credentials_replace(ladei_source_client *client, ladei_source_credentials *found) {
  ladei_source_credentials *now = &client->credentials;
  bool same =
      same_text(found->key, now->key) && same_text(found->secret, now->secret) && same_text(found->token, now->token);
  ladei_source_credentials_free(same ? found : now);
  if (!same) {
    *now = *found;
    client->credentials_number++;
    client->credentials_over = false;
  }
  return credentials_are_good(client)
             ? LADE_OK
             : ladei_error(LADE_ERR_IO, EACCES, "the credentials are over, and there are no others");
}

/* --- attempts ----------------------------------------------------------------------------------------------------- */

static uint64_t random_next(ladei_source_client *client) {
  client->random = client->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return client->random >> 33;
}

static uint64_t pause_ns(ladei_source_client *client, const ladei_source_read *read, uint32_t retry_after_s) {
  assert(read->attempt > 0);
  uint64_t times = read->attempt <= 6 ? UINT64_C(1) << (read->attempt - 1) : PAUSES_MOST;
  uint64_t pause = client->limits.pause_ms * (times < PAUSES_MOST ? times : PAUSES_MOST) * ns_of_ms;
  uint64_t asked =
      (uint64_t)(retry_after_s < RETRY_AFTER_MOST_S ? retry_after_s : RETRY_AFTER_MOST_S) * 1000 * ns_of_ms;
  pause = pause / 2 + random_next(client) % (pause / 2 + 1);
  return pause > asked ? pause : asked;
}

/* The record has the reason. */
static void read_again(ladei_source_client *client, ladei_source_read *read, uint32_t retry_after_s) {
  if (is_cancelled(read)) {
    read_cancel(read);
    return;
  }
  if (read->attempt >= client->limits.attempts) {
    lade_error reason;
    ladei_error_save(&reason);
    reason.status = LADE_ERR_IO; /* it was LADE_NOT_READY */
    ladei_error_restore(&reason);
    read_complete(read, LADE_ERR_IO);
    return;
  }
  assert(read->exchange == NULL && (read->sends != NULL || read->done < read->bytes)); /* I1; else all is there */
  atomic_fetch_add_explicit(&client->retries, 1, memory_order_relaxed);
  read->again_ns = ladei_clock_ns(CLOCK_MONOTONIC) + pause_ns(client, read, retry_after_s);
  TAILQ_INSERT_TAIL(&client->paused, read, link);
}

static lade_status exchange_take(ladei_source_client *client, ladei_source_exchange **out) {
  *out = TAILQ_FIRST(&client->idle);
  if (*out == NULL) return ladei_source_exchange_create(&client->curl, &client->settings, &client->limits, out);
  TAILQ_REMOVE(&client->idle, *out, link);
  assert((*out)->read == NULL);
  return LADE_OK;
}

static void exchange_give(ladei_source_client *client, ladei_source_exchange *exchange) {
  assert(exchange->read->exchange == exchange);
  exchange->read->exchange = NULL;
  exchange->read = NULL;
  TAILQ_INSERT_HEAD(&client->idle, exchange, link);
}

/* An attempt begins. */
static lade_status read_send(ladei_source_client *client, ladei_source_read *read) {
  ladei_source_exchange *exchange;
  assert(read->exchange == NULL && read->attempt < client->limits.attempts); /* I1, I3 */
  read->attempt++;
  LADEI_TRY(exchange_take(client, &exchange));
  read->exchange = exchange;
  exchange->credentials = client->credentials_number;
  lade_status status =
      ladei_source_exchange_begin(exchange, read, &client->settings, &client->credentials, client_time(client));
  if (status == LADE_OK && client->curl.multi_add_handle(client->multi, exchange->easy) != 0)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "libcurl does not take a request");
  if (status != LADE_OK) {
    exchange_give(client, exchange);
    return status;
  }
  TAILQ_INSERT_TAIL(&client->under_way, exchange, link);
  read->object->host->under_way++;
  return LADE_OK;
}

static void exchange_remove(ladei_source_client *client, ladei_source_exchange *exchange) {
  (void)client->curl.multi_remove_handle(client->multi, exchange->easy);
  TAILQ_REMOVE(&client->under_way, exchange, link);
  assert(exchange->read->object->host->under_way > 0 && "I4");
  exchange->read->object->host->under_way--;
}

/* Whether a refused signature was refused for the time: takes the server's, by its header Date. */
static bool skew_take(ladei_source_client *client, const ladei_source_exchange *exchange) {
  if (!ladei_source_exchange_says(exchange, "RequestTimeTooSkewed")) return false;
  time_t date = client->curl.getdate(exchange->answer.date, NULL);
  time_t skew_s = date - time(NULL);
  if (date == -1 || labs(skew_s - client->skew_s) < SKEW_LEAST_S) return false;
  client->skew_s = skew_s;
  return true;
}

/* A server has refused a signature, for which the record has the reason. Whether the read is again the client's. */
static bool signature_mend(ladei_source_client *client, const ladei_source_exchange *exchange,
                           ladei_source_read *read) {
  if (skew_take(client, exchange)) {
    read_again(client, read, 0);
    return true;
  }
  if (read->attempt >= client->limits.attempts || (!ladei_source_exchange_says(exchange, "ExpiredToken") &&
                                                   !ladei_source_exchange_says(exchange, "TokenRefreshRequired")))
    return false;
  atomic_fetch_add_explicit(&client->retries, 1, memory_order_relaxed);
  if (exchange->credentials == client->credentials_number) {
    client->credentials_over = true;
    ladei_error_save(&client->refusal);
    read->refused = true;
  }
  TAILQ_INSERT_TAIL(&read->object->host->ready, read, link);
  return true;
}

static void exchange_ended(ladei_source_client *client, ladei_source_exchange *exchange, int result) {
  ladei_source_read *read = exchange->read;
  assert(read->exchange == exchange); /* I1: under way */
  exchange_remove(client, exchange);
  lade_status status = ladei_source_exchange_end(exchange, result);
  exchange_give(client, exchange); /* its answer stays until the next attempt */
  if (status == LADE_ERR_IO && read->object->target.is_signed && signature_mend(client, exchange, read)) return;
  if (status == LADE_NOT_READY)
    read_again(client, read, exchange->answer.retry_after_s);
  else
    read_complete(read, status);
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* The host of an object, which is in the list from now on. NULL: no memory. */
static ladei_source_host *host_of(ladei_source_client *client, const ladei_source_target *target) {
  ladei_source_span authority = target->authority;
  ladei_source_host *host;
  SLIST_FOREACH (host, &client->hosts, link)
    if (host->tls == target->tls && strncmp(host->authority, authority.at, authority.bytes) == 0 &&
        host->authority[authority.bytes] == '\0')
      return host;
  host = calloc(1, sizeof *host + authority.bytes + 1);
  if (host == NULL) return NULL;
  host->tls = target->tls;
  memcpy(host->authority, authority.at, authority.bytes);
  TAILQ_INIT(&host->ready);
  SLIST_INSERT_HEAD(&client->hosts, host, link);
  return host;
}

static void read_ready(ladei_source_client *client, ladei_source_read *read) {
  ladei_source_object *object = read->object;
  if (object->host == NULL) object->host = host_of(client, &object->target);
  if (object->host != NULL)
    TAILQ_INSERT_TAIL(&object->host->ready, read, link);
  else
    read_complete(read, ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a request"));
}

static bool queue_take(ladei_source_client *client) {
  struct ladei_source_reads begun = TAILQ_HEAD_INITIALIZER(begun);
  ladei_source_read *read;
  ladei_lock_acquire(&client->lock);
  TAILQ_CONCAT(&begun, &client->queue, link);
  bool end = client->end;
  ladei_lock_release(&client->lock);
  while ((read = TAILQ_FIRST(&begun)) != NULL) {
    TAILQ_REMOVE(&begun, read, link);
    read_ready(client, read);
  }
  return end;
}

static void cancelled_end_of(struct ladei_source_reads *reads) {
  ladei_source_read *read, *next;
  for (read = TAILQ_FIRST(reads); read != NULL; read = next) {
    next = TAILQ_NEXT(read, link);
    if (!is_cancelled(read)) continue;
    TAILQ_REMOVE(reads, read, link);
    read_cancel(read);
  }
}

static void cancelled_end(ladei_source_client *client) {
  ladei_source_exchange *exchange, *next;
  ladei_source_host *host;
  for (exchange = TAILQ_FIRST(&client->under_way); exchange != NULL; exchange = next) {
    next = TAILQ_NEXT(exchange, link);
    ladei_source_read *read = exchange->read;
    if (!is_cancelled(read) || ladei_source_exchange_is_sent(exchange)) continue; /* I6 */
    exchange_remove(client, exchange);
    exchange_give(client, exchange);
    read_cancel(read);
  }
  cancelled_end_of(&client->paused);
  cancelled_end_of(&client->held);
  SLIST_FOREACH (host, &client->hosts, link) cancelled_end_of(&host->ready);
}

/* Pauses that are over. */
static void paused_ready(ladei_source_client *client) {
  ladei_source_read *read, *next;
  uint64_t now = ladei_clock_ns(CLOCK_MONOTONIC);
  for (read = TAILQ_FIRST(&client->paused); read != NULL; read = next) {
    next = TAILQ_NEXT(read, link);
    if (read->again_ns > now) continue;
    TAILQ_REMOVE(&client->paused, read, link);
    read_ready(client, read);
  }
}

/* An attempt begins, or the read is held. */
static void read_go(ladei_source_client *client, ladei_source_read *read) {
  lade_status status = read->object->target.is_signed ? credentials_ready(client) : LADE_OK;
  if (status == LADE_NOT_READY) {
    TAILQ_INSERT_TAIL(&client->held, read, link);
    return;
  }
  if (status == LADE_OK) status = read_send(client, read);
  if (status != LADE_OK) read_complete(read, status);
}

/* Begins attempts, as many as each host may have. */
static void ready_send(ladei_source_client *client) {
  ladei_source_host *host;
  ladei_source_read *read;
  SLIST_FOREACH (host, &client->hosts, link) {
    while (host->under_way < client->limits.requests && (read = TAILQ_FIRST(&host->ready)) != NULL) {
      TAILQ_REMOVE(&host->ready, read, link);
      read_go(client, read);
    }
  }
}

/* Held reads end with this error; one that the server has refused, with the server's. */
static void held_fail(ladei_source_client *client, const lade_error *error) {
  ladei_source_read *read;
  while ((read = TAILQ_FIRST(&client->held)) != NULL) {
    TAILQ_REMOVE(&client->held, read, link);
    const lade_error *reason = read->refused ? &client->refusal : error;
    ladei_error_restore(reason);
    read->attempt += read->refused ? 0 : 1;
    read_complete(read, reason->status);
  }
}

/* Credentials that were loaded meanwhile. */
static void renewal_take(ladei_source_client *client) {
  ladei_source_credentials found;
  ladei_source_read *read;
  lade_status status;
  lade_error error;
  if (!ladei_source_renewal_take(&client->renewal, &status, &found)) return;
  client->renew_ns = ladei_clock_ns(CLOCK_MONOTONIC) + RENEW_PAUSE_MS * ns_of_ms;
  if (status == LADE_OK) status = credentials_replace(client, &found);
  ladei_error_save(&error);
  if (!credentials_are_good(client)) held_fail(client, &error);
  while ((read = TAILQ_FIRST(&client->held)) != NULL) {
    TAILQ_REMOVE(&client->held, read, link);
    read->refused = false;
    read_ready(client, read);
  }
}

/* Until the next pause is over, in milliseconds. */
static int pause_left_ms(const ladei_source_client *client) {
  const ladei_source_read *read;
  uint64_t now = ladei_clock_ns(CLOCK_MONOTONIC), left_ns = POLL_MOST_MS * ns_of_ms;
  TAILQ_FOREACH (read, &client->paused, link) {
    uint64_t pause = read->again_ns > now ? read->again_ns - now : 0;
    left_ns = pause < left_ns ? pause : left_ns;
  }
  return (int)((left_ns + ns_of_ms - 1) / ns_of_ms);
}

static void ended_take(ladei_source_client *client) {
  ladei_curl_message *message;
  ladei_source_exchange *exchange;
  int left;
  while ((message = client->curl.multi_info_read(client->multi, &left)) != NULL) {
    int result = message->data.result; /* the message is gone with its handle */
    if (message->kind == LADEI_CURL_DONE &&
        client->curl.easy_getinfo(message->easy, LADEI_CURL_INFO_PRIVATE, &exchange) == LADEI_CURL_OK)
      exchange_ended(client, exchange, result);
  }
}

static void *client_main(void *argument) {
  ladei_source_client *client = argument;
  while (!queue_take(client)) {
    int running;
    cancelled_end(client);
    renewal_take(client);
    paused_ready(client);
    ready_send(client);
    (void)client->curl.multi_perform(client->multi, &running);
    ended_take(client);
    ready_send(client);
    (void)client->curl.multi_poll(client->multi, NULL, 0, pause_left_ms(client), NULL);
  }
  assert(TAILQ_EMPTY(&client->under_way) && TAILQ_EMPTY(&client->paused) && TAILQ_EMPTY(&client->held));
  return NULL;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

void ladei_source_read_begin(ladei_source_read *read) {
  ladei_source_client *client = read->object->client;
  assert(read->bytes > 0 && (read->buffer == NULL) != (read->places == NULL));
  if (read->buffer != NULL) read->rest = (ladei_source_place){.bytes = read->bytes, .memory = read->buffer};
  ladei_lock_acquire(&client->lock);
  TAILQ_INSERT_TAIL(&client->queue, read, link);
  ladei_lock_release(&client->lock);
  ladei_source_client_push(client);
}

typedef struct run {
  lade_status status;
  lade_error error;
} run;

static void run_ended(ladei_source_read *read, lade_status status) {
  ladei_source_client *client = read->object->client;
  run *r = read->user;
  r->status = status;
  ladei_error_save(&r->error);
  ladei_lock_acquire(&client->lock);
  read->over = true;
  ladei_condition_broadcast(&client->ended);
  ladei_lock_release(&client->lock);
}

/* Waits a tenth of a second for the end, or asks `look`, and cancels when that says so. Its status. */
static lade_status run_look(ladei_source_read *read, const ladei_source_look *look) {
  ladei_source_client *client = read->object->client;
  ladei_lock_assert_held(&client->lock);
  if (ladei_condition_wait_for(&client->ended, &client->lock, LOOK_MS * ns_of_ms) || read->over) return LADE_OK;
  ladei_lock_release(&client->lock);
  lade_status looked = look->call(look->user);
  if (looked != LADE_OK) ladei_source_object_cancel(read->object);
  if (looked != LADE_OK) ladei_source_client_push(client);
  ladei_lock_acquire(&client->lock);
  return looked;
}

lade_status ladei_source_read_run(ladei_source_read *read, const ladei_source_look *look) {
  ladei_source_client *client = read->object->client;
  lade_status looked = LADE_OK;
  lade_error why;
  run r;
  read->complete = run_ended;
  read->user = &r;
  ladei_source_read_begin(read);
  ladei_lock_acquire(&client->lock);
  while (!read->over)
    if (look == NULL || looked != LADE_OK)
      ladei_condition_wait(&client->ended, &client->lock);
    else if ((looked = run_look(read, look)) != LADE_OK)
      ladei_error_save(&why);
  ladei_lock_release(&client->lock);
  if (r.status == LADE_OK) return LADE_OK;
  ladei_error_restore(looked != LADE_OK ? &why : &r.error);
  return looked != LADE_OK ? looked : r.status;
}

void ladei_source_client_push(ladei_source_client *client) { (void)client->curl.multi_wakeup(client->multi); }

uint64_t ladei_source_client_retries(const ladei_source_client *client) {
  return atomic_load_explicit(&client->retries, memory_order_relaxed);
}

lade_status ladei_source_object_open(ladei_source_client *client, const char *text, const ladei_source_version *version,
                                     ladei_source_object **out) {
  ladei_source_url url;
  size_t at;
  const char *expected = ladei_source_url_parse(text, &url, &at);
  if (expected != NULL)
    return ladei_error(LADE_ERR_INVALID_ARGUMENT, 0, "a URL is refused at byte %zu; expected %s", at, expected);
  ladei_source_object *object = calloc(1, sizeof *object);
  if (object == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a URL");
  object->client = client;
  if (version != NULL) object->version = *version;
  lade_status status =
      ladei_source_target_make(&url, client->settings.endpoint, client->settings.region, &object->target);
  if (status != LADE_OK)
    free(object);
  else
    *out = object;
  return status;
}

const char *ladei_source_object_shown(const ladei_source_object *object) { return object->target.shown; }

const ladei_source_version *ladei_source_object_version(const ladei_source_object *object) { return &object->version; }

void ladei_source_object_close(ladei_source_object *object) {
  ladei_source_target_free(&object->target);
  free(object);
}

void ladei_source_object_cancel(ladei_source_object *object) {
  atomic_store_explicit(&object->cancelled, true, memory_order_relaxed);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static uint32_t chosen(uint32_t wanted, uint32_t otherwise) { return wanted != 0 ? wanted : otherwise; }

static void exchanges_destroy(ladei_source_client *client) {
  ladei_source_exchange *exchange;
  ladei_source_host *host;
  while ((host = SLIST_FIRST(&client->hosts)) != NULL) {
    SLIST_REMOVE_HEAD(&client->hosts, link);
    free(host);
  }
  while ((exchange = TAILQ_FIRST(&client->idle)) != NULL) {
    TAILQ_REMOVE(&client->idle, exchange, link);
    ladei_source_exchange_destroy(exchange);
  }
}

static void renewal_told(void *user) { ladei_source_client_push(user); }

/* Without its thread. */
static void client_free(ladei_source_client *client) {
  ladei_source_renewal_end(&client->renewal);
  exchanges_destroy(client);
  if (client->multi != NULL) (void)client->curl.multi_cleanup(client->multi);
  ladei_source_credentials_free(&client->credentials);
  ladei_source_settings_free(&client->settings);
  ladei_condition_destroy(&client->ended);
  ladei_lock_destroy(&client->lock);
  free(client);
}

lade_status ladei_source_client_create(const ladei_source_options *options, ladei_source_client **out) {
  ladei_source_client *client = calloc(1, sizeof *client);
  if (client == NULL) return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for a client of URLs");
  ladei_lock_init(&client->lock, LADEI_RANK_LEAF);
  ladei_condition_init(&client->ended);
  TAILQ_INIT(&client->queue);
  SLIST_INIT(&client->hosts);
  TAILQ_INIT(&client->paused);
  TAILQ_INIT(&client->held);
  TAILQ_INIT(&client->under_way);
  TAILQ_INIT(&client->idle);
  client->random = ladei_clock_ns(CLOCK_REALTIME);
  client->renewal = (ladei_source_renewal){
      .curl = &client->curl, .settings = &client->settings, .told = renewal_told, .user = client};
  client->limits = (ladei_source_options){.connect_ms = chosen(options->connect_ms, CONNECT_MS),
                                          .stall_s = chosen(options->stall_s, STALL_S),
                                          .attempts = chosen(options->attempts, ATTEMPTS),
                                          .pause_ms = chosen(options->pause_ms, PAUSE_MS),
                                          .requests = chosen(options->requests, REQUESTS)};
  lade_status status = ladei_libcurl_open(&client->curl);
  if (status == LADE_OK) status = ladei_source_settings_read(&client->settings);
  if (status == LADE_OK && (client->multi = client->curl.multi_init()) == NULL)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for libcurl");
  if (status == LADE_OK && ladei_thread_start(&client->thread, client_main, client) != 0)
    status = ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "the thread of URLs cannot be started");
  if (status == LADE_OK)
    *out = client;
  else
    client_free(client);
  return status;
}

void ladei_source_client_destroy(ladei_source_client *client) {
  ladei_lock_acquire(&client->lock);
  client->end = true;
  ladei_lock_release(&client->lock);
  ladei_source_client_push(client);
  pthread_join(client->thread, NULL);
  client_free(client);
}
