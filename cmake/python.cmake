# SPDX-License-Identifier: Apache-2.0
# The Python packages (python/). They are in an installed tree, unless EXPAR_PYTHON is off. The package expar is also in
# a wheel, with the library and the tool inside. The wheel is the component of that name; scikit-build-core installs it
# (pyproject.toml). The wheel of deep_ep needs no build (python/pyproject.toml).
set(python_found OFF)
if(EXPAR_PYTHON3)
  set(python_found ON)
endif()
option(EXPAR_PYTHON "Install the Python package, too" ${python_found})
set(EXPAR_PYTHON_DIR "" CACHE STRING "Where, below the prefix; empty: where the first python3 in PATH looks below it")

option(EXPAR_DEEP_EP "Install the Python package deep_ep, too" ON)

function(install_package name destination)
  install(DIRECTORY python/${name} DESTINATION ${destination} ${ARGN}
    FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE PATTERN ".*" EXCLUDE)
endfunction()

# The file is named by its soname, because a wheel has no links.
install_package(expar . COMPONENT wheel EXCLUDE_FROM_ALL)
install(TARGETS expar LIBRARY DESTINATION expar NAMELINK_SKIP COMPONENT wheel EXCLUDE_FROM_ALL)
install(CODE "file(RENAME \"\${CMAKE_INSTALL_PREFIX}/expar/libexpar.so.${PROJECT_VERSION}\"
  \"\${CMAKE_INSTALL_PREFIX}/expar/libexpar.so.${soversion}\")" COMPONENT wheel EXCLUDE_FROM_ALL)
if(EXPAR_TOOL)
  install(TARGETS expar_command RUNTIME DESTINATION expar/bin COMPONENT wheel EXCLUDE_FROM_ALL)
endif()

if(NOT EXPAR_PYTHON)
  return()
endif()
set(python_dir ${EXPAR_PYTHON_DIR})
if(NOT python_dir)
  # Debian's Python searches dist-packages.
  execute_process(COMMAND ${EXPAR_PYTHON3} -c "import os, sys, sysconfig
print('lib/python%d.%d/%s' % (*sys.version_info[:2], os.path.basename(sysconfig.get_path('purelib'))))"
    OUTPUT_VARIABLE python_dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
install_package(expar ${python_dir})
if(EXPAR_DEEP_EP)
  install(CODE "set(FOLDER \"\${CMAKE_INSTALL_PREFIX}/${python_dir}\")")
  install(SCRIPT cmake/other_deep_ep.cmake)
  install_package(deep_ep ${python_dir})
endif()
# The package uses the library and the tool in its folder, which are links to the installed ones.
function(install_link name folder target)
  file(RELATIVE_PATH path ${CMAKE_INSTALL_PREFIX}/${python_dir}/${folder} ${target})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/python)
  file(CREATE_LINK ${path} ${PROJECT_BINARY_DIR}/python/${name} SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/python/${name} DESTINATION ${python_dir}/${folder})
endfunction()
install_link(libexpar.so.${soversion} expar ${CMAKE_INSTALL_FULL_LIBDIR}/libexpar.so.${soversion})
if(EXPAR_TOOL)
  install_link(expar expar/bin ${CMAKE_INSTALL_FULL_BINDIR}/expar)
endif()
