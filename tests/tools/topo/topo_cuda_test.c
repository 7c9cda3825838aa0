/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Across sources: The nodes of GPUs, found by their PCI addresses: the runtime "cuda" over the loopback driver, on a
 * machine from XML.
 */
#include <stdlib.h>

#include "tests/shim/lade_test.h"
#include "tests/support/temp_dir.h"
#include "tools/topo/survey.h"

#define NODE(cpuset, nodeset, index)                                                                                   \
  "<object type=\"Package\" os_index=\"" index "\" cpuset=\"" cpuset "\" complete_cpuset=\"" cpuset                    \
  "\" nodeset=\"" nodeset "\" complete_nodeset=\"" nodeset "\">\n<object type=\"NUMANode\" os_index=\"" index          \
  "\" cpuset=\"" cpuset "\" complete_cpuset=\"" cpuset "\" nodeset=\"" nodeset "\" complete_nodeset=\"" nodeset        \
  "\" local_memory=\"1073741824\"/>\n<object type=\"PU\" os_index=\"" index "\" cpuset=\"" cpuset                      \
  "\" complete_cpuset=\"" cpuset "\" nodeset=\"" nodeset "\" complete_nodeset=\"" nodeset "\"/>\n"

/* Two nodes; below the second one a PCI device with the address of the loopback driver's device 0. */
static const char machine_xml[] =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
    "<topology version=\"2.0\">\n<object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" "
    "allowed_cpuset=\"0x3\" nodeset=\"0x3\" complete_nodeset=\"0x3\" allowed_nodeset=\"0x3\">\n" NODE(
        "0x1", "0x1",
        "0") "</object>\n" NODE("0x2", "0x2",
                                "1") "<object type=\"Bridge\" depth=\"0\" bridge_type=\"0-1\" "
                                     "bridge_pci=\"ffff:[00-00]\">\n"
                                     "<object type=\"PCIDev\" pci_busid=\"ffff:00:00.0\" pci_type=\"0302 [10de:2330] "
                                     "[10de:16c1] a1\" "
                                     "pci_link_speed=\"0\"/>\n</object>\n</object>\n</object>\n</topology>\n";

LADE_TEST(TopoCuda, NodeOfAGpuIsThatOfItsPciAddress) {
  support_temp_dir dir;
  lade_runtime *runtime = NULL;
  survey s;
  LADE_ASSERT(support_temp_dir_create(&dir));
  char *path = support_temp_dir_path(&dir, "machine.xml");
  support_file_write(path, machine_xml, sizeof machine_xml - 1);
  ladei_pinned_hooks hooks = {LADEI_TOPOLOGY_XML, path, NULL, 0, 0};
  LADE_ASSERT_OK(lade_runtime_open("cuda", NULL, &runtime));
  lade_status status = survey_make(runtime, &hooks, true, &s);
  LADE_EXPECT_OK(status);
  if (status == LADE_OK) {
    LADE_EXPECT_GT_SIZE(s.device_count, 1);
    LADE_EXPECT(!s.software);
    LADE_EXPECT_EQ_STR(s.devices[0].info.pci_bus_id, "ffff:00:00.0");
    LADE_EXPECT_EQ_INT(s.devices[0].near_node, 1);
    LADE_EXPECT_EQ_INT(s.devices[0].pinned_node, 1);
    LADE_EXPECT_OK(s.devices[0].trial.status);
    LADE_EXPECT_EQ_INT(s.devices[0].trial.numa_node, 1);
    LADE_EXPECT_EQ_INT(s.devices[1].near_node, -1); /* the machine has no device at its address */
    survey_dispose(&s);
  }
  LADE_EXPECT_OK(lade_runtime_close(runtime));
  free(path);
  support_temp_dir_remove(&dir);
}
