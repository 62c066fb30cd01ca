# SPDX-License-Identifier: Apache-2.0
# The settings of all compilations, and the folders of the outputs.
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
# An installed program finds the library beside it, whatever the prefix is.
file(RELATIVE_PATH lib_from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set(CMAKE_INSTALL_RPATH "$ORIGIN/${lib_from_bin}")

add_compile_definitions(_GNU_SOURCE)
# -Wvla, -Walloca: no array on the stack may grow with a number of the run, such as that of ranks.
add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wvla -Walloca)
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
# Log lines name files relative to the root of the sources, wherever they were built.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(EXPAR_WERROR)
  add_compile_options(-Werror)
endif()
if(EXPAR_SANITIZE)
  add_compile_options(-fsanitize=${EXPAR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${EXPAR_SANITIZE})
endif()
if(EXPAR_FUZZ)
  # Shows the fuzzer which branches an input takes.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
