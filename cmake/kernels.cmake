# CUDA kernels: embedded in the library as text, with a generic variant for sm_90 each where nvcc is there.
set(kernels_folder ${PROJECT_SOURCE_DIR}/src/exec/cuda/kernels)
file(GLOB kernel_sources CONFIGURE_DEPENDS ${kernels_folder}/*.cu)
file(GLOB kernel_headers CONFIGURE_DEPENDS ${kernels_folder}/*.cuh ${kernels_folder}/*.h)
# And what they include of other folders.
foreach(header base/portable.h exec/index.h net/proxy/ring.h)
  list(APPEND kernel_headers ${PROJECT_SOURCE_DIR}/src/${header})
endforeach()

find_program(EXPAR_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin
  DOC "CUDA's compiler, for ready code of kernels; not needed")

set(kernel_files ${kernel_sources} ${kernel_headers})
set(embedded ${PROJECT_BINARY_DIR}/kernels/sources.c)
set(cubins)
set(cubin_folder NONE)
if(EXPAR_NVCC)
  set(cubin_folder ${PROJECT_BINARY_DIR}/kernels)
endif()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/kernels)
foreach(source ${kernel_sources})
  if(NOT EXPAR_NVCC)
    break()
  endif()
  get_filename_component(name ${source} NAME)
  set(cubin ${PROJECT_BINARY_DIR}/kernels/${name}.sm_90.cubin)
  add_custom_command(OUTPUT ${cubin} DEPENDS ${source} ${kernel_headers}
    COMMAND ${EXPAR_NVCC} -cubin -arch=sm_90 -std=c++17 -fmad=false -I${PROJECT_SOURCE_DIR}/src -o ${cubin} ${source}
    COMMENT "Compiling ${name} for sm_90" VERBATIM)
  list(APPEND cubins ${cubin})
endforeach()

add_custom_command(OUTPUT ${embedded}
  DEPENDS ${kernel_sources} ${kernel_headers} ${cubins} ${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake
  COMMAND ${CMAKE_COMMAND} -DOUT=${embedded} -DROOT=${PROJECT_SOURCE_DIR}/src -DCUBINS=${cubin_folder}
    "-DFILES=${kernel_files}"
    -P ${PROJECT_SOURCE_DIR}/cmake/embed_kernels.cmake
  COMMENT "Embedding kernels" VERBATIM)
target_sources(expar_objects PRIVATE ${embedded})
