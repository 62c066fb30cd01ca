# SPDX-License-Identifier: Apache-2.0
# Reads the version from its header.
set(version_header ${CMAKE_CURRENT_LIST_DIR}/../include/expar/status.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${version_header})
foreach(part MAJOR MINOR PATCH)
  file(STRINGS ${version_header} line REGEX "^#define EXPAR_VERSION_${part} +[0-9]+$")
  if(NOT line MATCHES "([0-9]+)$")
    message(FATAL_ERROR "${version_header} has no EXPAR_VERSION_${part}")
  endif()
  set(version_${part} ${CMAKE_MATCH_1})
endforeach()
set(version ${version_MAJOR}.${version_MINOR}.${version_PATCH})

# The loader asks for this version: until 1.0 every minor version may change the interface.
set(soversion ${version_MAJOR})
if(version_MAJOR EQUAL 0)
  set(soversion 0.${version_MINOR})
endif()
