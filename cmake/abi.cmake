# SPDX-License-Identifier: Apache-2.0
# The compiler makes the table of public structs and enumerations: as a file for bindings, and as text in the library. A
# program that has loaded the library can read it there.
set(abi_folder ${PROJECT_BINARY_DIR}/abi)
set(abi_table ${abi_folder}/abi.json)
file(MAKE_DIRECTORY ${abi_folder})
file(GLOB abi_sources CONFIGURE_DEPENDS include/expar/*.h tools/abi/table.*)

add_custom_command(OUTPUT ${abi_folder}/abi_table.c DEPENDS ${abi_sources}
  COMMAND ${PROJECT_SOURCE_DIR}/tools/abi/table.sh ${PROJECT_SOURCE_DIR}/include ${CMAKE_C_COMPILER} > ${abi_folder}/abi_table.c
  VERBATIM)
add_executable(abi_table ${abi_folder}/abi_table.c)
set_target_properties(abi_table PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${abi_folder})
target_include_directories(abi_table PRIVATE include)
add_custom_command(OUTPUT ${abi_table} DEPENDS abi_table COMMAND abi_table > ${abi_table} VERBATIM)

# The text is written as the bytes of an array, because C17 does not allow a literal of that length.
add_custom_command(OUTPUT ${abi_folder}/abi_text.h DEPENDS ${abi_table} ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake
  COMMAND ${CMAKE_COMMAND} -DFILE=${abi_table} -DOUT=${abi_folder}/abi_text.h -P ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake
  VERBATIM)
target_sources(expar_objects PRIVATE ${abi_folder}/abi_text.h)
target_include_directories(expar_objects PRIVATE ${abi_folder})
