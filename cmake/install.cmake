# Where things go: library, headers, pkg-config file, CMake package, tool, man pages.
include(CMakePackageConfigHelpers)

install(TARGETS expar EXPORT expar LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/expar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
foreach(section 1 3 7)
  file(GLOB pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/man/*.${section})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/expar)
install(EXPORT expar NAMESPACE expar:: FILE exparTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/exparConfig.cmake.in ${PROJECT_BINARY_DIR}/exparConfig.cmake
  INSTALL_DESTINATION ${package_dir})
# While the major version is 0, every minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/exparConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/exparConfig.cmake ${PROJECT_BINARY_DIR}/exparConfigVersion.cmake
  DESTINATION ${package_dir})

# The prefix is found from where the file lies, so that an installed tree can be moved.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/expar.pc.in ${PROJECT_BINARY_DIR}/expar.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/expar.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
