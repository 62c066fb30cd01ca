# SPDX-License-Identifier: Apache-2.0
# The build of the fuzzers: the two layers that read what comes before a group stands, and the targets of tests/fuzz.
add_subdirectory(src/base)
add_subdirectory(src/boot)

# No transport is compiled, but the table of environment variables names them.
set(names_folder ${PROJECT_BINARY_DIR}/transports)
file(CONFIGURE OUTPUT ${names_folder}/transport_names.h CONTENT "#define TRANSPORT_NAMES \"none\"\n")
target_include_directories(expar_objects PRIVATE ${names_folder})

add_library(expar_internal STATIC)
target_link_libraries(expar_internal PUBLIC expar_objects)
add_subdirectory(tests/fuzz)
