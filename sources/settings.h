/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of sources, under the names that the tools of AWS use: environment variables, and files of profiles.
 *
 *   region     AWS_REGION, AWS_DEFAULT_REGION, `region` of the profile, us-east-1
 *   endpoint   AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, `endpoint_url` of the profile; NULL: that of AWS
 *   CA file    AWS_CA_BUNDLE, `ca_bundle` of the profile; NULL: libcurl's own
 *   proxies    http_proxy, https_proxy, no_proxy, and the same in capitals
 *   profile    AWS_PROFILE, "default"; in AWS_CONFIG_FILE, ~/.aws/config, and AWS_SHARED_CREDENTIALS_FILE, ~/.aws/credentials
 *
 * Variables are copied once, since another thread of the program may change them. Files are read at each question for a
 * value of the profile: tools replace credentials in them.
 */
#ifndef LADE_SOURCES_SETTINGS_H
#define LADE_SOURCES_SETTINGS_H

#include "sources/url.h"

enum { LADEI_SOURCE_VARIABLES = 24 };

typedef struct ladei_source_settings {
  char *variables[LADEI_SOURCE_VARIABLES];
  char *region, *endpoint, *ca_file;
} ladei_source_settings;

/* LADE_ERR_OUT_OF_HOST_MEMORY; nothing is to be freed then. */
lade_status ladei_source_settings_read(ladei_source_settings *out);
void ladei_source_settings_free(ladei_source_settings *settings);

/* The copy of a variable; NULL: not set, or empty. */
const char *ladei_source_variable(const ladei_source_settings *settings, const char *name);

/* A value of the profile, from its file of credentials if it is there, else from the other one: the caller's to free.
 * NULL: neither has it; or, with *lost, there is no memory to find out. */
char *ladei_source_profile_value(const ladei_source_settings *settings, const char *key, bool *lost);

/* The caller's to free; NULL of NULL, and, with *lost, where there is no memory. */
char *ladei_source_text_copy(const char *text, bool *lost);

/* The value of `key` in [section] of a file's text; no bytes: there is none. Indented lines belong to the line above,
 * and are left out. */
ladei_source_span ladei_source_profile_find(const char *text, const char *section, const char *key);

/* The proxy to use; "": none. */
const char *ladei_source_proxy(const ladei_source_settings *settings, bool tls);

#endif /* LADE_SOURCES_SETTINGS_H */
