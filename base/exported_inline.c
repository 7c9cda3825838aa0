/* SPDX-License-Identifier: Apache-2.0 */
/* The inline functions of the headers, as symbols of the library: for languages that call it without its headers. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define LADE_INLINE_AS_SYMBOLS

#include "lade/config.h"
#include "lade/device.h"
#include "lade/graph.h"
#include "lade/group.h"
#include "lade/history.h"
#include "lade/inspect.h"
#include "lade/lade.h"
#include "lade/loader.h"
#include "lade/log.h"
#include "lade/pinned.h"
#include "lade/pipeline.h"
#include "lade/runtime.h"
#include "lade/safetensors.h"
#include "lade/soft.h"
#include "lade/stacks.h"
#include "lade/status.h"
