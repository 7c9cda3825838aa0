/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: Fields of options that have no meaning yet must be 0, in every struct: a later version may give them one, and a
 * program that was built with it must be told that this library knows nothing of it.
 */
#include <lade/lade.h>

#include "tests/shim/lade_test.h"

typedef struct objects {
  lade_runtime *runtime;
  lade_pinned_pool *pool;
  lade_device_allocator *allocator;
  lade_pipeline *pipeline;
  lade_graph_tree *tree;
  lade_graph_function *function;
} objects;

static lade_status body(lade_graph_context *context, void *user) {
  (void)context, (void)user;
  return LADE_OK;
}

static void objects_make(objects *o) {
  LADE_ASSERT_OK(lade_runtime_open("sim", NULL, &o->runtime));
  LADE_ASSERT_OK(lade_pinned_pool_create(o->runtime, NULL, &o->pool));
  LADE_ASSERT_OK(lade_device_allocator_create(o->runtime, 0, NULL, &o->allocator));
  LADE_ASSERT_OK(lade_pipeline_create(o->runtime, o->pool, NULL, &o->pipeline));
  LADE_ASSERT_OK(lade_graph_tree_create(o->allocator, NULL, &o->tree));
  lade_graph_function_options options;
  lade_graph_function_options_init(&options);
  options.body = body;
  LADE_ASSERT_OK(lade_graph_tree_function_add(o->tree, &options, &o->function));
}

static void objects_end(objects *o) {
  LADE_EXPECT_OK(lade_graph_tree_destroy(o->tree, true));
  LADE_EXPECT_OK(lade_pipeline_destroy(o->pipeline, false));
  LADE_EXPECT_OK(lade_device_allocator_destroy(o->allocator, true));
  LADE_EXPECT_OK(lade_pinned_pool_destroy(o->pool, true));
  LADE_EXPECT_OK(lade_runtime_close(o->runtime));
}

/* Options of `type` with 1 in `field`, given to `call` as `options`. */
#define EXPECT_RESERVED(type, field, call)                                                                             \
  do {                                                                                                                 \
    type options;                                                                                                      \
    type##_init(&options);                                                                                             \
    options.field = 1;                                                                                                 \
    LADE_EXPECT_STATUS(LADE_ERR_INVALID_ARGUMENT, call);                                                               \
    LADE_EXPECT_CONTAINS_STR(lade_last_error()->text, #field " is 1; expected 0");                                     \
  } while (0)

static void pools_refuse(objects *o) {
  lade_pinned_pool *pool;
  lade_device_pool_id id = {7, 7};
  EXPECT_RESERVED(lade_pinned_options, reserved, lade_pinned_pool_create(o->runtime, &options, &pool));
  EXPECT_RESERVED(lade_pinned_options, reserved_2, lade_pinned_pool_create(o->runtime, &options, &pool));
  EXPECT_RESERVED(lade_device_pool_options, reserved, lade_device_pool_create(o->allocator, &options, &id));
  EXPECT_RESERVED(lade_device_suspend_options, reserved, lade_device_pool_suspend(o->allocator, id, &options, NULL));
  EXPECT_RESERVED(lade_history_options, reserved, lade_device_history_set(o->allocator, &options));
  EXPECT_RESERVED(lade_history_options, reserved, lade_pinned_history_set(o->pool, &options));
}

static void graphs_refuse(objects *o) {
  lade_graph_tree *tree;
  lade_graph_function *function;
  EXPECT_RESERVED(lade_graph_tree_options, reserved, lade_graph_tree_create(o->allocator, &options, &tree));
  EXPECT_RESERVED(lade_graph_function_options, reserved, lade_graph_tree_function_add(o->tree, &options, &function));
  EXPECT_RESERVED(lade_graph_call, reserved, lade_graph_tree_run(o->tree, o->function, &options, NULL, 0, NULL));
}

static void data_refuse(objects *o) {
  lade_record_index *index;
  lade_loader *loader;
  LADE_ASSERT_OK(lade_index_create("txt", &index));
  EXPECT_RESERVED(lade_tar_options, reserved, lade_index_add_tar(index, "/nonexistent", &options));
  EXPECT_RESERVED(lade_loader_options, reserved,
                  (options.batch_records = 1, lade_loader_create(index, o->pipeline, o->allocator, &options, &loader)));
  lade_index_destroy(index);
}

/* Most structs took any value there, and only histories, software devices and groups refused one. */
LADE_TEST(ReservedFields, AreRefusedUnlessTheyAreZero) {
  objects o = {0};
  objects_make(&o);
  if (lade_test_has_failed()) return;
  pools_refuse(&o);
  graphs_refuse(&o);
  data_refuse(&o);
  objects_end(&o);
}
