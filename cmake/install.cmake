# SPDX-License-Identifier: Apache-2.0
# Installs the library, headers, struct table, pkg-config file, CMake package, tool, completion and man pages. Each has
# one of these components: runtime, development, tool, mpi (the comparison with Open MPI), python (cmake/python.cmake).
# A default component holds for what names none.
include(CMakePackageConfigHelpers)

set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
install(TARGETS expar expar-shmem expar-nvshmem EXPORT expar LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  COMPONENT runtime NAMELINK_COMPONENT development)
install(DIRECTORY include/expar include/openshmem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(FILES ${PROJECT_BINARY_DIR}/abi/abi.json DESTINATION ${CMAKE_INSTALL_DATADIR}/expar)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/expar)
install(EXPORT expar NAMESPACE expar:: FILE exparTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/exparConfig.cmake.in ${PROJECT_BINARY_DIR}/exparConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# While the major version is 0, every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/exparConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/exparConfig.cmake ${PROJECT_BINARY_DIR}/exparConfigVersion.cmake
  DESTINATION ${package_dir})

# The file finds the prefix from its own path, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name expar expar-shmem expar-nvshmem)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

# These find the libexpar beside them.
set_target_properties(expar-shmem expar-nvshmem PROPERTIES INSTALL_RPATH "$ORIGIN")

# Wrappers of the compilers. Their names say in which language they compile.
file(RELATIVE_PATH include_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(tools/openshmem/oshcc.in ${PROJECT_BINARY_DIR}/oshcc @ONLY)
foreach(wrapper oshcc oshc++ oshcxx)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/oshcc DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME ${wrapper})
endforeach()
install(FILES man/oshcc.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
file(CONFIGURE OUTPUT oshcc_link.1 CONTENT ".so man1/oshcc.1\n")
foreach(name oshc++ oshcxx)
  install(FILES ${PROJECT_BINARY_DIR}/oshcc_link.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME ${name}.1)
endforeach()

if(EXPAR_TOOL)
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME tool)
  install(PROGRAMS tools/openshmem/oshrun DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(FILES ${PROJECT_BINARY_DIR}/oshcc_link.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 RENAME oshrun.1)
  set_target_properties(expar_command PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
  install(TARGETS expar_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET expar-bench-mpi)
    set_target_properties(expar-bench-mpi PROPERTIES INSTALL_RPATH "$ORIGIN/${lib_from_bin}")
    install(TARGETS expar-bench-mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mpi)
  endif()

  # The tool prints its manual from the texts of --help and the table of environment variables; under an emulator, where
  # it is made for another processor.
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
  set(manual ${PROJECT_BINARY_DIR}/man/expar.1)
  add_custom_command(OUTPUT ${manual} DEPENDS expar_command
    COMMAND expar_command man > ${manual})
  foreach(subcommand run bench info check demo completion)
    set(page ${PROJECT_BINARY_DIR}/man/expar-${subcommand}.1)
    add_custom_command(OUTPUT ${page} DEPENDS expar_command
      COMMAND expar_command man ${subcommand} > ${page})
    list(APPEND manual ${page})
  endforeach()
  add_custom_target(manual ALL DEPENDS ${manual})
  install(FILES ${manual} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)

  # And the scripts with which shells complete its arguments, to where each shell looks for them.
  set(EXPAR_ZSH_DIR ${CMAKE_INSTALL_DATADIR}/zsh/site-functions CACHE STRING "Where zsh's completion is installed")
  set(completion ${PROJECT_BINARY_DIR}/completion)
  file(MAKE_DIRECTORY ${completion})
  foreach(shell bash zsh fish)
    add_custom_command(OUTPUT ${completion}/expar.${shell} DEPENDS expar_command
      COMMAND expar_command completion ${shell} > ${completion}/expar.${shell})
  endforeach()
  add_custom_target(completion ALL DEPENDS ${completion}/expar.bash ${completion}/expar.zsh ${completion}/expar.fish)
  install(FILES ${completion}/expar.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME expar)
  install(FILES ${completion}/expar.zsh DESTINATION ${EXPAR_ZSH_DIR} RENAME _expar)
  install(FILES ${completion}/expar.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()

# The man pages of the calls are made from the headers, where there is a Python.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
find_program(EXPAR_PYTHON3 python3)
mark_as_advanced(EXPAR_PYTHON3)
if(EXPAR_PYTHON3)
  string(TIMESTAMP manual_date "%B %d, %Y" UTC)
  string(REPLACE " 0" " " manual_date "${manual_date}") # mdoc's dates have no zero before the day
  file(GLOB manual_sources CONFIGURE_DEPENDS include/expar/*.h man/*.py man/examples/*.c)
  list(APPEND manual_sources ${PROJECT_SOURCE_DIR}/src/base/env_table.h)
  set(manual_stamp ${PROJECT_BINARY_DIR}/man3.made)
  add_custom_command(OUTPUT ${manual_stamp} DEPENDS ${manual_sources}
    COMMAND ${EXPAR_PYTHON3} -B ${PROJECT_SOURCE_DIR}/man/make.py ${PROJECT_SOURCE_DIR}/include
      ${PROJECT_BINARY_DIR}/man3 ${manual_date} ${CMAKE_C_COMPILER}
    COMMAND ${CMAKE_COMMAND} -E touch ${manual_stamp} VERBATIM)
  add_custom_target(manual_calls ALL DEPENDS ${manual_stamp})
  install(DIRECTORY ${PROJECT_BINARY_DIR}/man3/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)
else()
  message(STATUS "expar: no man pages of calls, since there is no python3")
endif()
install(FILES ${PROJECT_SOURCE_DIR}/man/expar_kernel.3 ${PROJECT_SOURCE_DIR}/man/expar_pgas.3
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man3)

# Documentation and examples.
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# docs/site makes the site, and has no pages.
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN site EXCLUDE)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.cu" PATTERN "*.py" PATTERN "*.ipynb"
  PATTERN __pycache__ EXCLUDE)

# Removes the files that the last `cmake --install` of this build tree has installed.
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -DMANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
  -P ${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake VERBATIM)
