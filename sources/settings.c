/* SPDX-License-Identifier: Apache-2.0 */
#include "sources/settings.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { PROFILE_FILE_MOST = 1 << 20 };

static const char *const names[LADEI_SOURCE_VARIABLES] = {
    "HOME",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_CA_BUNDLE",
    "AWS_PROFILE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
};

const char *ladei_source_variable(const ladei_source_settings *settings, const char *name) {
  for (size_t i = 0; i < LADEI_SOURCE_VARIABLES; i++)
    if (strcmp(names[i], name) == 0) return settings->variables[i];
  assert(false && "a variable that is not in the list");
  return NULL;
}

static const char *either(const char *first, const char *second) { return first != NULL ? first : second; }

const char *ladei_source_proxy(const ladei_source_settings *settings, bool tls) {
  const char *proxy =
      tls ? either(ladei_source_variable(settings, "https_proxy"), ladei_source_variable(settings, "HTTPS_PROXY"))
          : either(ladei_source_variable(settings, "http_proxy"), ladei_source_variable(settings, "HTTP_PROXY"));
  return either(proxy, "");
}

/* --- profiles ----------------------------------------------------------------------------------------------------- */

static ladei_source_span trimmed(ladei_source_span span) {
  while (span.bytes > 0 && strchr(" \t\r", span.at[0]) != NULL) span = (ladei_source_span){span.at + 1, span.bytes - 1};
  while (span.bytes > 0 && strchr(" \t\r", span.at[span.bytes - 1]) != NULL) span.bytes--;
  return span;
}

static bool span_is(ladei_source_span span, const char *text) {
  return strlen(text) == span.bytes && memcmp(span.at, text, span.bytes) == 0;
}

/* Whether [the line] opens the section; "profile x" opens x. */
static bool section_is(ladei_source_span line, const char *section) {
  const char *end = memchr(line.at, ']', line.bytes);
  if (end == NULL) return false;
  ladei_source_span name = trimmed((ladei_source_span){line.at + 1, (size_t)(end - line.at) - 1});
  if (name.bytes > 8 && memcmp(name.at, "profile ", 8) == 0)
    name = trimmed((ladei_source_span){name.at + 8, name.bytes - 8});
  return span_is(name, section);
}

ladei_source_span ladei_source_profile_find(const char *text, const char *section, const char *key) {
  bool inside = false;
  for (const char *at = text; *at != '\0'; at += *at == '\n' ? 1 : 0) {
    ladei_source_span line = {at, strcspn(at, "\n")};
    at += line.bytes;
    const char *equals = memchr(line.at, '=', line.bytes);
    if (line.bytes > 0 && line.at[0] == '[')
      inside = section_is(line, section);
    else if (inside && equals != NULL && line.at[0] != ' ' && line.at[0] != '\t' &&
             span_is(trimmed((ladei_source_span){line.at, (size_t)(equals - line.at)}), key))
      return trimmed((ladei_source_span){equals + 1, line.bytes - (size_t)(equals + 1 - line.at)});
  }
  return (ladei_source_span){text, 0};
}

char *ladei_source_text_copy(const char *text, bool *lost) {
  char *copy = text != NULL ? strdup(text) : NULL;
  *lost = *lost || (text != NULL && copy == NULL);
  return copy;
}

/* NULL: there is no such file, or *lost. */
static char *file_text(const char *path, bool *lost) {
  FILE *file = fopen(path, "re");
  char *text = file != NULL ? malloc(PROFILE_FILE_MOST) : NULL;
  *lost = *lost || (text == NULL && (file != NULL || errno == ENOMEM));
  if (text != NULL) text[fread(text, 1, PROFILE_FILE_MOST - 1, file)] = '\0';
  if (file != NULL) (void)fclose(file);
  return text;
}

static char *file_value(const ladei_source_settings *settings, const char *path, const char *key, bool *lost) {
  const char *profile = either(ladei_source_variable(settings, "AWS_PROFILE"), "default");
  char *text = file_text(path, lost);
  ladei_source_span found = text != NULL ? ladei_source_profile_find(text, profile, key) : (ladei_source_span){NULL, 0};
  char *value = found.bytes > 0 ? strndup(found.at, found.bytes) : NULL;
  *lost = *lost || (found.bytes > 0 && value == NULL);
  if (text != NULL) explicit_bzero(text, strlen(text));
  free(text);
  return value;
}

char *ladei_source_profile_value(const ladei_source_settings *settings, const char *key, bool *lost) {
  static const char *const files[][2] = {{"AWS_SHARED_CREDENTIALS_FILE", "credentials"}, {"AWS_CONFIG_FILE", "config"}};
  char *value = NULL, home[4096];
  for (size_t i = 0; i < 2 && value == NULL && !*lost; i++) {
    const char *path = ladei_source_variable(settings, files[i][0]);
    (void)snprintf(home, sizeof home, "%s/.aws/%s", either(ladei_source_variable(settings, "HOME"), ""), files[i][1]);
    value = file_value(settings, either(path, home), key, lost);
  }
  return value;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

static char *value_of(const ladei_source_settings *settings, const char *first, const char *second, const char *key,
                      bool *lost) {
  const char *variable = either(ladei_source_variable(settings, first), ladei_source_variable(settings, second));
  return variable != NULL ? ladei_source_text_copy(variable, lost) : ladei_source_profile_value(settings, key, lost);
}

lade_status ladei_source_settings_read(ladei_source_settings *out) {
  bool lost = false;
  *out = (ladei_source_settings){.region = NULL};
  for (size_t i = 0; i < LADEI_SOURCE_VARIABLES; i++) {
    const char *value = getenv(names[i]);
    if (value == NULL || value[0] == '\0') continue;
    out->variables[i] = ladei_source_text_copy(value, &lost);
  }
  out->endpoint = value_of(out, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "endpoint_url", &lost);
  out->ca_file = value_of(out, "AWS_CA_BUNDLE", "AWS_CA_BUNDLE", "ca_bundle", &lost);
  out->region = value_of(out, "AWS_REGION", "AWS_DEFAULT_REGION", "region", &lost);
  if (out->region == NULL) out->region = ladei_source_text_copy("us-east-1", &lost);
  if (!lost) return LADE_OK;
  ladei_source_settings_free(out);
  return ladei_error(LADE_ERR_OUT_OF_HOST_MEMORY, 0, "no memory for the settings of URLs");
}

void ladei_source_settings_free(ladei_source_settings *settings) {
  for (size_t i = 0; i < LADEI_SOURCE_VARIABLES; i++) {
    if (settings->variables[i] != NULL) explicit_bzero(settings->variables[i], strlen(settings->variables[i]));
    free(settings->variables[i]);
  }
  free(settings->region);
  free(settings->endpoint);
  free(settings->ca_file);
}
