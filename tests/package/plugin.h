/* SPDX-License-Identifier: Apache-2.0 */
/* What a plugin of a program exports that knows nothing of lade: plugin.c uses the library, plugin_test.c opens and closes it. */
#ifndef LADE_TESTS_PACKAGE_PLUGIN_H
#define LADE_TESTS_PACKAGE_PLUGIN_H

/* Each gives NULL, or what went wrong: static, or the calling thread's last error. */
typedef const char *plugin_call(void);

#define PLUGIN_CALLS(X)                                                                                                \
  X(open)     /* reads the environment, sets a log, makes one object of each kind on runtime "cpu" */                  \
  X(label)    /* names the calling thread, with no object of lade's: the thread keeps the name */                      \
  X(use)      /* takes and gives blocks, and has a call fail: on any thread, which then keeps some of it */            \
  X(transfer) /* through the pipeline's threads to the device and back */                                              \
  X(close)    /* destroys what open made */                                                                            \
  X(hush)     /* takes the log back */

#endif /* LADE_TESTS_PACKAGE_PLUGIN_H */
