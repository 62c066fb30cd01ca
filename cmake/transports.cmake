# SPDX-License-Identifier: Apache-2.0
# Transports. The CMakeLists.txt of each transport's folder declares it. The table in which the library finds them is
# made from that.

# expar_transport(name order source…): the sources of the folder define `transport_ops transport_<name>`. Lower orders
# come first if EXPAR_TRANSPORTS is not set. The caller of the folder has set transport_target.
function(expar_transport name order)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(${transport_target} PRIVATE ${ARGN})
  set_property(TARGET ${transport_target} APPEND PROPERTY EXPAR_TRANSPORTS ${order}-${name})
endfunction()

# expar_transport_table(target): makes the table of the transports of the target, and a header with their names.
function(expar_transport_table target)
  get_target_property(known ${target} EXPAR_TRANSPORTS)
  list(SORT known COMPARE NATURAL)
  set(lines "")
  list(TRANSFORM known REPLACE "^[0-9]+-" "")
  list(JOIN known "," names)
  foreach(name ${known})
    string(APPEND lines "TRANSPORT(${name})\n")
  endforeach()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target}_transports)
  file(CONFIGURE OUTPUT ${folder}/transports.inc CONTENT "${lines}")
  file(CONFIGURE OUTPUT ${folder}/transport_names.h CONTENT "#define TRANSPORT_NAMES \"${names}\"\n")
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/net/transports.c)
  target_include_directories(${target} PRIVATE ${folder})
endfunction()
