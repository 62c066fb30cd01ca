# SPDX-License-Identifier: Apache-2.0
# CUDA kernels: embedded as text. If nvcc is there, each also has a generic variant for sm_90.
find_program(EXPAR_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin
  DOC "CUDA's compiler, for ready code of kernels; not needed")
if(NOT EXPAR_NVCC AND "$ENV{EXPAR_REQUIRE_KERNELS}" STREQUAL "1")
  message(FATAL_ERROR "EXPAR_REQUIRE_KERNELS=1 asks for every kernel to be compiled, and nvcc is not there")
endif()

set(EXPAR_READY_FROM "" CACHE PATH "Folder kernels/ of another build tree, whose ready code serves here where it is of the same files")

# Tests in CI run their kernels as CPU threads. On a GPU the run-time compiler can make them, which takes a minute.
option(EXPAR_READY_TEST_KERNELS "Also compile the kernels of tests, for machines with a GPU" OFF)

# A kernel has no registers to spill, and no local memory.
set(kernel_warnings -Xptxas -warn-spills,-warn-lmem-usage)
if(EXPAR_WERROR)
  set(kernel_warnings -Werror all-warnings ${kernel_warnings},-Werror)
endif()

# expar_embed_kernels(TARGET TABLE COUNT ROOTS FILES [TEXT]): adds a table of cuda_source to TARGET. TABLE is its name,
# COUNT that of its length. FILES are kernels and the headers they include, named relative to one of ROOTS. With TEXT
# no kernel is compiled.
function(expar_embed_kernels target table count roots files)
  set(folder ${PROJECT_BINARY_DIR}/kernels/${table})
  set(embedded ${folder}/sources.c)
  set(headers ${files})
  list(FILTER headers EXCLUDE REGEX "\\.cu$")
  set(includes -I${PROJECT_SOURCE_DIR}/src)
  foreach(root ${roots})
    list(APPEND includes -I${root})
  endforeach()
  set(cubins)
  set(cubin_folder NONE)
  file(MAKE_DIRECTORY ${folder})
  foreach(source ${files})
    # No test that runs under ThreadSanitizer has a GPU, real or simulated.
    if("TEXT" IN_LIST ARGN OR NOT EXPAR_NVCC OR NOT source MATCHES "\\.cu$" OR EXPAR_SANITIZE STREQUAL "thread")
      continue()
    endif()
    get_filename_component(name ${source} NAME)
    set(cubin_folder ${folder})
    set(cubin ${folder}/${name}.sm_90.cubin)
    # A source that only sets other macros includes the other source.
    file(STRINGS ${source} included REGEX "^#include \".*\\.cu\"$")
    list(TRANSFORM included REPLACE "^#include \"(.*)\"$" "${PROJECT_SOURCE_DIR}/src/\\1")
    add_custom_command(OUTPUT ${cubin}
      DEPENDS ${source} ${included} ${headers} ${kernel_headers} ${PROJECT_SOURCE_DIR}/cmake/ready_kernel.cmake
      COMMAND ${CMAKE_COMMAND} -DOUT=${cubin} -DREADY=${EXPAR_READY_FROM}/${table}/${name}.sm_90.cubin
        "-DINPUTS=${source};${included};${headers};${kernel_headers}"
        "-DMAKE=${EXPAR_NVCC};-cubin;-arch=sm_90;-std=c++17;-fmad=false;${kernel_warnings};${includes};-o;${cubin};${source}"
        -P ${PROJECT_SOURCE_DIR}/cmake/ready_kernel.cmake
      COMMENT "Compiling ${name} for sm_90" VERBATIM)
    list(APPEND cubins ${cubin})
  endforeach()
  add_custom_command(OUTPUT ${embedded}
    DEPENDS ${files} ${cubins} ${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake
    COMMAND ${CMAKE_COMMAND} -DOUT=${embedded} -DTABLE=${table} -DCOUNT=${count} "-DROOTS=${roots}"
      -DCUBINS=${cubin_folder} "-DFILES=${files}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake
    COMMENT "Embedding ${table}" VERBATIM)
  target_sources(${target} PRIVATE ${embedded})
endfunction()

# The library's own kernels. Their cubins lie in one folder, so kernels of all folders have different names.
set(kernels_folder ${PROJECT_SOURCE_DIR}/src/exec/cuda/kernels)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${kernels_folder}/*/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${kernels_folder}/*/*.h ${PROJECT_SOURCE_DIR}/src/link/device/*.h)
# The headers that they include from other folders.
foreach(header base/portable.h proto/normal.h proto/serving.h proto/low_latency.h proto/sends.h proto/signals.h proto/decisions.h proto/codec/codec.h proto/codec/logfmt.h proto/codec/number.h proto/codec/nvfp4.h net/proxy/ring.h net/proxy/waits.h
    net/gda/access.h net/gda/format.h net/gda/keys.h net/gda/queue.h net/gda/view.h net/gda/words.h)
  list(APPEND kernel_headers ${PROJECT_SOURCE_DIR}/src/${header})
endforeach()
expar_embed_kernels(expar_objects cuda_sources cuda_num_sources ${PROJECT_SOURCE_DIR}/src
  "${kernel_sources};${kernel_headers}")
