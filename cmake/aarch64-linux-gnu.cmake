# SPDX-License-Identifier: Apache-2.0
#
# Builds lade on another machine for 64-bit ARM, with Debian's cross compiler and its packages for arm64 (`tools/setup cross`):
#
#   cmake -B build-arm64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ENV{PKG_CONFIG_LIBDIR} /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/share/pkgconfig)
find_program(lade_emulator qemu-aarch64)
if(lade_emulator)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${lade_emulator})
endif()
