# SPDX-License-Identifier: Apache-2.0
# The site of the documentation (docs/site/build.py). Its target is not part of `all`: it needs Sphinx. `make install`
# builds it first. Whatever is built is installed.
find_program(EXPAR_SPHINX sphinx-build)
mark_as_advanced(EXPAR_SPHINX)
set(site ${PROJECT_BINARY_DIR}/site)
if(EXPAR_TOOL AND EXPAR_PYTHON3 AND EXPAR_SPHINX AND NOT CMAKE_CROSSCOMPILING AND NOT EXPAR_SANITIZE)
  add_custom_target(site DEPENDS expar expar_command USES_TERMINAL VERBATIM
    COMMAND ${EXPAR_PYTHON3} -B ${PROJECT_SOURCE_DIR}/docs/site/build.py ${PROJECT_SOURCE_DIR} ${site}
      $<TARGET_FILE:expar_command> $<TARGET_FILE:expar> ${CMAKE_C_COMPILER})
endif()
install(DIRECTORY ${site}/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL COMPONENT site)
