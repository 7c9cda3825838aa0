/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Credentials, from the first place that has some:
 *
 *   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
 *   the profile: aws_access_key_id, aws_secret_access_key, aws_session_token
 *   the container: AWS_CONTAINER_CREDENTIALS_FULL_URI, or _RELATIVE_URI at 169.254.170.2
 *   the instance: 169.254.169.254 (version 2), unless AWS_EC2_METADATA_DISABLED is true
 *
 * Container and instance are asked over HTTP, without a proxy. Each question has two seconds.
 */
#ifndef LADE_SOURCES_CREDENTIALS_H
#define LADE_SOURCES_CREDENTIALS_H

#include <stdatomic.h>

#include "sources/libcurl.h"
#include "sources/settings.h"
#include "sources/sign.h"

/* LADE_ERR_OUT_OF_HOST_MEMORY; LADE_ERR_IO, with EACCES: no place has credentials that can be used. Waits for up to eight seconds: four questions; once `stop` is true, which may be NULL, a second more at most. */
lade_status ladei_source_credentials_load(const ladei_libcurl *curl, const ladei_source_settings *settings,
                                          const _Atomic(bool) *stop, ladei_source_credentials *out);
void ladei_source_credentials_free(ladei_source_credentials *credentials);

/* The answer of a container or an instance. False: it is not one, and nothing is to be freed. */
bool ladei_source_credentials_parse(const char *json, ladei_source_credentials *out);

#endif /* LADE_SOURCES_CREDENTIALS_H */
